"""Averaged Gradient Episodic Memory (A-GEM).

Paper: Chaudhry et al., "Efficient Lifelong Learning with A-GEM", 2019, https://arxiv.org/abs/1812.00420
Reference: mammoth, tag neurips2020. When a task ends, an equal share of its samples, drawn at random, is
stored. A step removes from its gradient the component that would raise the loss on a replayed batch.
"""

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
    draw_share,
    replay_count,
    share_of_memory,
)
from strongreplay.methods.gradients import descend_along, flat_gradient, trainable
from strongreplay.methods.samples import LabelledSamples
from strongreplay.protocol import Batch, Task, Terms


class AGEMConfig(ReplayConfig):
    memory_size: int = Field(200, ge=1, description="samples kept, an equal share per task")
    replay_size: int | None = Field(
        None, ge=1, description="replayed samples per step; none: as many as the batch has"
    )


def project(gradient: Tensor, reference: Tensor) -> Tensor:
    """The nearest vector whose dot product with `reference` is not negative; clamped, so without a sync."""
    excess = (gradient @ reference).clamp(max=0)
    squared_norm = (reference @ reference).clamp(min=torch.finfo(reference.dtype).tiny)
    return gradient.addcmul(reference, excess / squared_norm, value=-1)


class AGEM(Method):
    def __init__(self, net: nn.Module, problem: Problem, config: AGEMConfig | None = None) -> None:
        super().__init__()
        self.weights = trainable(net)
        self.net, self.config, self.view = net, config or AGEMConfig(), problem.train_view
        self.share = share_of_memory("agem", self.config.memory_size, problem)
        self.memory = Memory(LabelledSamples, self.config.memory_size, problem.generator("memory"))

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        current = cross_entropy(self.net(batch.inputs), batch.labels)
        if len(self.memory) == 0:
            return descend(optimizer, {"current": current})
        parameters = self.weights
        gradient = flat_gradient(current, parameters)
        replayed = self.memory.sample(replay_count(self.config, batch))
        replay = cross_entropy(self.net(self.view(replayed.images)), replayed.labels)
        descend_along(optimizer, parameters, project(gradient, flat_gradient(replay, parameters)))
        return {"current": current.detach(), "replay": replay.detach()}

    def end_task(self, task: Task) -> None:
        chosen = draw_share(self.memory, task.train, self.share, self.weights[0].device)
        self.memory.append(LabelledSamples(chosen.inputs, chosen.labels), chosen.ids)
