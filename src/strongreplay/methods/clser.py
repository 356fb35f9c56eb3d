"""Complementary Learning System - Experience Replay (CLS-ER).

Paper: Arani et al., "Learning Fast, Learning Slow: A General Continual Learning Method based on Complementary
Learning System", 2022, https://arxiv.org/abs/2201.12604
Reference: the authors' code, NeurAI-Lab/CLS-ER: one cross-entropy over the concatenation of both batches, and
a second forward pass of the replayed batch for the distance, a mean over samples and classes. By our reading
of the paper, the stable net predicts; the reference scores all three nets, and so do we, as `predictors`.
The averaged nets get their batch-norm statistics from the replayed batches only. `statistics="working"`
copies those of the working net instead, which makes it a different method.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.averaged import AveragedNet, Statistics
from strongreplay.methods.base import Method, Problem, ReplayConfig, descend, replay_count
from strongreplay.methods.samples import LabelledSamples
from strongreplay.protocol import Batch, Terms


class CLSERConfig(ReplayConfig):
    memory_size: int = Field(200, ge=1, description="samples kept")
    penalty: float = Field(0.75, ge=0, description="lambda, weight of the distance to the averaged net")
    plastic_rate: float = Field(
        1.0, ge=0, le=1, description="probability to update the plastic net in a step"
    )
    plastic_decay: float = Field(0.99, ge=0, le=1, description="maximal decay of the plastic net's average")
    stable_rate: float = Field(1.0, ge=0, le=1, description="probability to update the stable net in a step")
    stable_decay: float = Field(0.999, ge=0, le=1, description="maximal decay of the stable net's average")
    eval_net: Literal["stable", "plastic", "working"] = Field("stable", description="the net that predicts")
    statistics: Statistics = Field(
        "replay", description="batch-norm statistics of averaged nets: replayed batches or working net"
    )


class CLSER(Method):
    def __init__(self, net: nn.Module, problem: Problem, config: CLSERConfig | None = None) -> None:
        super().__init__()
        self.net, self.config, self.view = net, config or CLSERConfig(), problem.train_view
        self.memory = Memory(LabelledSamples, self.config.memory_size, problem.generator("memory"))
        config, draws = self.config, problem.generator
        self.plastic = AveragedNet(
            net, config.plastic_rate, config.plastic_decay, draws("plastic updates"), config.statistics
        )
        self.stable = AveragedNet(
            net, config.stable_rate, config.stable_decay, draws("stable updates"), config.statistics
        )

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        terms = descend(optimizer, self.terms(batch))
        self.memory.add(LabelledSamples(batch.images, batch.labels), batch.ids)
        self.plastic.follow()
        self.stable.follow()
        return terms

    def terms(self, batch: Batch) -> Terms:
        if len(self.memory) == 0:
            return {"current": cross_entropy(self.net(batch.inputs), batch.labels)}
        replayed = self.memory.sample(replay_count(self.config, batch))
        inputs, labels = self.view(replayed.images), replayed.labels
        target = more_confident(self.stable(inputs), self.plastic(inputs), labels)
        distance = mse_loss(self.net(inputs), target)
        logits = self.net(torch.cat([batch.inputs, inputs]))
        return {
            "mixed": cross_entropy(logits, torch.cat([batch.labels, labels])),
            "consistency": self.config.penalty * distance,
        }

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        super().grow(num_classes, generator)
        self.plastic.take_head()
        self.stable.take_head()

    def answering_net(self) -> nn.Module:
        return self.predictors()[self.config.eval_net]

    def predictors(self) -> dict[str, nn.Module]:
        return {"stable": self.stable, "plastic": self.plastic, "working": self.net}


def more_confident(stable: Tensor, plastic: Tensor, labels: Tensor) -> Tensor:
    """For each sample, the logits of the net that gives its label more probability; plastic in a tie."""
    right = labels[:, None]
    chosen = stable.softmax(1).gather(1, right) > plastic.softmax(1).gather(1, right)
    return torch.where(chosen, stable, plastic)
