"""Synaptic Intelligence (SI).

Paper: Zenke et al., "Continual Learning Through Synaptic Intelligence", 2017,
https://arxiv.org/abs/1703.04200
Reference: mammoth, tag neurips2020, which adds up lr * g^2 of the clipped sum of both gradients and so counts
the penalty as importance from the second task on: `path="reference"`, right for plain SGD only. The default
is the path integral of the paper, the task's own gradient times the step that was taken, whatever the
optimiser; a weight whose share came out negative counts as unimportant. The reference's clipping of the
gradient is kept.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.methods.base import Method, MethodConfig, Problem
from strongreplay.methods.gradients import (
    descend_with,
    flat_weights,
    gradient_of,
    quadratic_pull,
    shaped,
    trainable,
)
from strongreplay.types import Batch, Task, Terms


class SIConfig(MethodConfig):
    c: float = Field(0.5, ge=0, description="weight of the pull to the last task's weights")
    xi: float = Field(1.0, gt=0, description="damping where a weight hardly moved")
    clip: float | None = Field(1.0, gt=0, description="bound of every gradient entry; none: no clipping")
    path: Literal["canonical", "reference"] = Field(
        "canonical", description="importance from task gradient times step, or from lr * gradient^2"
    )


class SI(Method):
    anchor: Tensor  # (P,) theta*, the weights when the task began
    path: Tensor  # (P,) omega, how much each weight lowered the task's loss so far
    importance: Tensor  # (P,) Omega; zero, hence without effect, until the first task ends

    def __init__(self, net: nn.Module, problem: Problem, config: SIConfig | None = None) -> None:
        super().__init__()
        self.net, self.config = net, config or SIConfig()
        self.register_buffer("anchor", flat_weights(net))
        self.register_buffer("path", torch.zeros_like(self.anchor))
        self.register_buffer("importance", torch.zeros_like(self.anchor))

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        current = cross_entropy(self.net(batch.inputs), batch.labels)
        optimizer.zero_grad()
        current.backward()
        parameters = [parameter.detach() for parameter in trainable(self.net)]
        task_gradients = [gradient_of(parameter) for parameter in trainable(self.net)]
        penalty, gradients = quadratic_pull(self.net, self.anchor, self.importance, self.config.c)
        if self.config.clip is not None:
            for gradient in gradients:
                gradient.clamp_(-self.config.clip, self.config.clip)
        before = [parameter.clone() for parameter in parameters]
        descend_with(optimizer, self.net, gradients)
        if self.config.path == "canonical":
            torch._foreach_sub_(before, parameters)
            torch._foreach_addcmul_(shaped(self.path, self.net), task_gradients, before)
        else:
            rate = optimizer.param_groups[0]["lr"]
            torch._foreach_addcmul_(shaped(self.path, self.net), gradients, gradients, value=rate)
        return {"current": current.detach(), "penalty": penalty}

    def end_task(self, task: Task) -> None:
        weights = flat_weights(self.net)
        self.importance += self.path.clamp(min=0) / ((weights - self.anchor).square() + self.config.xi)
        self.anchor.copy_(weights)
        self.path.zero_()
