"""Experience Replay with Asymmetric Cross-Entropy (ER-ACE).

Paper: Caccia et al., "New Insights on Reducing Abrupt Representation Change in Online Continual Learning",
2022, https://arxiv.org/abs/2104.05025
Stream samples compete only with classes of their own batch and with classes not seen yet; replayed
samples compete with all. Two forward passes, so batch norm sees the two batches apart.
Differences from the reference (the authors' code): an absent class stays open only if it was never met; there
the largest class met stays open too (`unseen="legacy"`). A linear head; the reference has a cosine one.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, normalize, pad
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.base import (
    Method,
    Problem,
    ReplayConfig,
    descend,
    replay_count,
)
from strongreplay.methods.samples import LabelledSamples
from strongreplay.nets import Classifier, with_features
from strongreplay.protocol import Batch, Task, Terms

CLOSED = -1e9  # finite: a row whose classes are all closed gives no NaN


class ERACEConfig(ReplayConfig):
    unseen: Literal["strict", "legacy"] = Field(
        "strict", description="open classes that are absent: never met, or from the largest met on (legacy)"
    )
    task_free: bool = Field(
        True, description="mask and replay from the first step; false: the first task is plain training"
    )
    head: Literal["linear", "cosine"] = Field(
        "linear", description="the last layer: linear, or ten times the cosine of features and weights"
    )


class CosineNet(nn.Module):
    """A classifier whose logits are ten times the cosines between features and the head's rows."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, inputs: Tensor) -> Tensor:
        features = normalize(self.classifier.features(inputs), dim=1, eps=1e-5)
        return 10 * linear(features, normalize(self.classifier.head.weight, dim=1, eps=1e-5))

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        self.classifier.grow(num_classes, generator)


class ERACE(Method):
    resized_buffers = ("seen",)  # a head that has grown has more classes
    seen: Tensor  # (C,) classes met so far

    def __init__(self, net: nn.Module, problem: Problem, config: ERACEConfig | None = None) -> None:
        super().__init__()
        self.net, self.config, self.view = net, config or ERACEConfig(), problem.train_view
        if self.config.head == "cosine":
            self.net = CosineNet(with_features(net, "er-ace with a cosine head", problem.num_classes))
        self.memory = Memory(LabelledSamples, self.config.memory_size, problem.generator("memory"))
        self.register_buffer("seen", torch.zeros(problem.num_classes, dtype=torch.bool))
        self.num_finished = 0  # tasks

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        logits, apart = self.net(batch.inputs), self.config.task_free or self.num_finished > 0
        present = self.meet(batch.labels, logits.shape[1])
        if apart:
            logits = logits.masked_fill(~open_classes(present, self.seen, self.config.unseen), CLOSED)
        terms = {"current": cross_entropy(logits, batch.labels)}
        if apart and len(self.memory):
            replayed = self.memory.sample(replay_count(self.config, batch))
            terms["replay"] = cross_entropy(self.net(self.view(replayed.images)), replayed.labels)
        terms = descend(optimizer, terms)
        self.memory.add(LabelledSamples(batch.images, batch.labels), batch.ids)
        return terms

    def meet(self, labels: Tensor, num_classes: int) -> Tensor:
        """(C,) the classes of a batch, which count as met from now on; the head may have grown."""
        if len(self.seen) != num_classes:
            self.seen = pad(self.seen, (0, num_classes - len(self.seen)))
        present = torch.zeros_like(self.seen).index_fill_(0, labels, True)
        self.seen |= present
        return present

    def end_task(self, task: Task) -> None:
        self.num_finished += 1

    def get_extra_state(self) -> int:
        return self.num_finished

    def set_extra_state(self, state: int) -> None:
        self.num_finished = state


def open_classes(present: Tensor, seen: Tensor, unseen: Literal["strict", "legacy"]) -> Tensor:
    """(C,) the classes that a stream batch competes with."""
    if unseen == "strict":
        return present | ~seen
    places = torch.arange(len(seen), device=seen.device)
    return present | (places >= (places * seen).amax())
