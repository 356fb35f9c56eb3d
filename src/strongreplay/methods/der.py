"""Dark Experience Replay (DER).

Paper: Buzzega et al., "Dark Experience for General Continual Learning", 2020,
https://arxiv.org/abs/2004.07211
Reference: mammoth, tag neurips2020. Each sample is stored with the logits of its first forward pass: before
the step, augmented, in training mode, all columns. The distance is the mean over batch and classes.
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.base import (
    Method,
    Problem,
    ReplayConfig,
    descend,
    replay_count,
    squared_distance,
)
from strongreplay.protocol import Batch, Terms


class DERSamples(NamedTuple):
    images: Tensor
    logits: Tensor  # (M, C), the net's output when the sample was stored


class DERConfig(ReplayConfig):
    alpha: float = Field(0.3, ge=0, description="weight of the distance to stored logits; 0 replays nothing")


class DER(Method):
    def __init__(self, net: nn.Module, problem: Problem, config: DERConfig | None = None) -> None:
        super().__init__()
        self.net, self.config, self.view = net, config or DERConfig(), problem.train_view
        self.memory = Memory(DERSamples, self.config.memory_size, problem.generator("memory"))

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        logits = self.net(batch.inputs)
        terms = {"current": cross_entropy(logits, batch.labels)}
        # With alpha 0 a forward pass of replayed samples would still change batch-norm statistics: skip it.
        if len(self.memory) and self.config.alpha:
            replayed = self.memory.sample(replay_count(self.config, batch))
            replayed_logits = self.net(self.view(replayed.images))
            distance = squared_distance(replayed_logits, replayed.logits, self.memory.ragged)
            terms["backward"] = self.config.alpha * distance
        terms = descend(optimizer, terms)
        self.memory.add(DERSamples(batch.images, logits.detach()), batch.ids)
        return terms

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        super().grow(num_classes, generator)
        self.memory.widen("logits", num_classes)
