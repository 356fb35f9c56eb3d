"""Strong Experience Replay (SER).

Paper: Zhuo et al., "Continual Learning with Strong Experience Replay", 2023,
https://arxiv.org/abs/2305.13622
Reference: https://github.com/visiontao/cl, model/ser.py. Its choices are the defaults, because they gave the
published numbers:
- consistency is the mean over samples and classes; the paper's squared norm is `consistency="sum"`;
- logits are stored from before the step, augmented, in training mode; the paper's listing stores them after
  the step, without augmentation: `stored_logits="after"`;
- replay starts with the second task. `early` starts it in the first one (ours, not in the paper): the stored
  logits then come from a net that was already trained with consistency, and larger alphas are better;
- the trained net predicts. With `average`, a moving average of its weights predicts, as in CLS-ER (ours, not
  in the paper); it is less biased towards the newest task.
Differences from the reference: the old net runs without gradients; augmentation and reservoir sampling work
on whole batches.
"""

from typing import Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.averaged import Averaging, AveragingConfig
from strongreplay.methods.base import (
    OldNet,
    Problem,
    descend,
    eval_logits,
    replay_count,
    squared_distance,
)
from strongreplay.methods.samples import LogitSamples
from strongreplay.protocol import Batch, Task, Terms

Term = Literal["current", "replay", "backward", "forward"]


class SERConfig(AveragingConfig):
    memory_size: int = Field(200, ge=1, description="samples kept")
    alpha: float = Field(0.2, ge=0, description="weight of backward consistency, on replayed samples")
    beta: float = Field(0.2, ge=0, description="weight of forward consistency, on the stream's samples")
    terms: tuple[Term, ...] = Field(
        ("current", "replay", "backward", "forward"), min_length=1, description="terms of the loss"
    )
    consistency: Literal["mean", "sum"] = Field(
        "mean", description="over classes: mean (reference) or sum (paper)"
    )
    stored_logits: Literal["before", "after"] = Field(
        "before", description="logits from before the step (reference) or after it"
    )
    early: bool | None = Field(
        None, description="replay in the first task too; none: no replay there, as published"
    )

    @field_validator("terms")
    @classmethod
    def name_each_once(cls, terms: tuple[Term, ...]) -> tuple[Term, ...]:
        if len(set(terms)) < len(terms):
            raise ValueError(f"method.terms must name each term once, got {','.join(terms)}")
        return terms


class SER(Averaging):
    def __init__(self, net: nn.Module, problem: Problem, config: SERConfig | None = None) -> None:
        super().__init__()
        self.net, self.old_net = net, OldNet(net)
        self.config, self.view, self.plain_view = config or SERConfig(), problem.train_view, problem.test_view
        self.memory = Memory(LogitSamples, self.config.memory_size, problem.generator("memory"))
        self.average(self.config.average, problem.generator("average"))

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        config = self.config
        logits = self.net(batch.inputs)  # f(x^t; theta_t)
        terms = {"current": cross_entropy(logits, batch.labels)}  # Eq. 2

        if self.old_net.exists or config.early:  # t > 1; as published the first task is plain training
            if len(self.memory) and ("replay" in config.terms or "backward" in config.terms):
                replayed = self.memory.sample(replay_count(config, batch))
                replayed_logits = self.net(self.view(replayed.images))  # f(x^m; theta_t)
                terms["replay"] = cross_entropy(replayed_logits, replayed.labels)  # Eq. 4
                terms["backward"] = config.alpha * self.distance(
                    replayed_logits, replayed.logits, self.memory.ragged
                )  # Eq. 6
            if "forward" in config.terms and self.old_net.exists:
                terms["forward"] = config.beta * self.distance(logits, self.old_net(batch.inputs))  # Eq. 7
            wanted = config.terms if self.old_net.exists else (*config.terms, "current")
            terms = {name: term for name, term in terms.items() if name in wanted}

        terms = descend(optimizer, terms)  # Eq. 8
        self.follow()
        if config.stored_logits == "after":
            logits = eval_logits(self.net, self.plain_view(batch.images))
        self.memory.add(LogitSamples(batch.images, batch.labels, logits.detach()), batch.ids)
        return terms

    def distance(self, logits: Tensor, target: Tensor, ragged: bool = False) -> Tensor:
        """Consistency over the columns of the target; the head may have grown since it was computed."""
        return squared_distance(logits, target, ragged, summed=self.config.consistency == "sum")

    def end_task(self, task: Task) -> None:
        self.old_net.take()  # theta_{t-1} <- theta_t

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        super().grow(num_classes, generator)
        self.memory.widen("logits", num_classes)
