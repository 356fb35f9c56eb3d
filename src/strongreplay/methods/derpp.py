"""Dark Experience Replay++ (DER++).

Paper: Buzzega et al., "Dark Experience for General Continual Learning", 2020,
https://arxiv.org/abs/2004.07211
Reference: mammoth, tag neurips2020. A step draws from memory twice, so it has three forward passes. Here
alpha is the weight of logits and beta that of labels; in SER beta is the weight of forward consistency.
"""

import torch
from pydantic import Field
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.averaged import Averaging, AveragingConfig
from strongreplay.methods.base import (
    Problem,
    descend,
    replay_count,
    squared_distance,
)
from strongreplay.methods.samples import LogitSamples
from strongreplay.protocol import Batch, Terms


class DERPPConfig(AveragingConfig):
    alpha: float = Field(0.1, ge=0, description="weight of the distance to stored logits; 0 skips that draw")
    beta: float = Field(0.5, ge=0, description="weight of the loss on replayed labels; 0 skips that draw")


class DERPP(Averaging):
    def __init__(self, net: nn.Module, problem: Problem, config: DERPPConfig | None = None) -> None:
        super().__init__()
        self.net, self.config, self.view = net, config or DERPPConfig(), problem.train_view
        self.memory = Memory(LogitSamples, self.config.memory_size, problem.generator("memory"))
        self.average(self.config.average, problem.generator("average"))

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        logits = self.net(batch.inputs)
        terms = {"current": cross_entropy(logits, batch.labels)}
        count = replay_count(self.config, batch)
        if len(self.memory) and self.config.alpha:
            replayed = self.memory.sample(count)
            replayed_logits = self.net(self.view(replayed.images))
            distance = squared_distance(replayed_logits, replayed.logits, self.memory.ragged)
            terms["backward"] = self.config.alpha * distance
        if len(self.memory) and self.config.beta:
            replayed = self.memory.sample(count)
            replayed_logits = self.net(self.view(replayed.images))
            terms["replay"] = self.config.beta * cross_entropy(replayed_logits, replayed.labels)
        terms = descend(optimizer, terms)
        self.follow()
        self.memory.add(LogitSamples(batch.images, batch.labels, logits.detach()), batch.ids)
        return terms

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        super().grow(num_classes, generator)
        self.memory.widen("logits", num_classes)
