"""Experience Replay (ER).

Papers: Ratcliff 1990; Riemer et al., "Learning to Learn without Forgetting", 2019,
https://arxiv.org/abs/1810.11910
Reference: mammoth, tag neurips2020, which gave the published numbers: one cross-entropy over the
concatenation of the stream's and the replayed batch. The SER paper writes a sum of two means (`loss="sum"`);
with batches of equal size its gradient is twice as large, so the published learning rate takes larger steps.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.averaged import Averaging, AveragingConfig
from strongreplay.methods.base import Problem, descend, replay_count
from strongreplay.methods.samples import LabelledSamples
from strongreplay.protocol import Batch, Terms


class ERConfig(AveragingConfig):
    loss: Literal["concatenated", "sum"] = Field(
        "concatenated", description="one mean over both batches, or the sum of two means"
    )


class ER(Averaging):
    def __init__(self, net: nn.Module, problem: Problem, config: ERConfig | None = None) -> None:
        super().__init__()
        self.net, self.config, self.view = net, config or ERConfig(), problem.train_view
        self.memory = Memory(LabelledSamples, self.config.memory_size, problem.generator("memory"))
        self.average(self.config.average, problem.generator("average"))

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        terms = descend(optimizer, self.terms(batch))
        self.follow()
        self.memory.add(LabelledSamples(batch.images, batch.labels), batch.ids)
        return terms

    def terms(self, batch: Batch) -> Terms:
        if len(self.memory) == 0:
            return {"current": cross_entropy(self.net(batch.inputs), batch.labels)}
        replayed = self.memory.sample(replay_count(self.config, batch))
        inputs = self.view(replayed.images)
        if self.config.loss == "sum":
            return {
                "current": cross_entropy(self.net(batch.inputs), batch.labels),
                "replay": cross_entropy(self.net(inputs), replayed.labels),
            }
        logits = self.net(torch.cat([batch.inputs, inputs]))
        return {"mixed": cross_entropy(logits, torch.cat([batch.labels, replayed.labels]))}
