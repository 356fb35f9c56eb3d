"""Synaptic Intelligence (SI).

Paper: Zenke et al., "Continual Learning Through Synaptic Intelligence", 2017,
https://arxiv.org/abs/1703.04200
Reference: mammoth, tag neurips2020. It sums lr * g^2 of the clipped total gradient, so from the second task
on the penalty counts as importance too (`path="reference"`, correct for plain SGD only). The default is the
path integral of the paper: the task's own gradient times the actual step, for any optimiser; negative
importance is set to 0. Gradients are clipped as in the reference.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.methods.base import Method, MethodConfig, Problem
from strongreplay.methods.gradients import (
    descend_along,
    flat_gradient,
    flat_weights,
    is_plain,
    quadratic_pull,
    trainable,
)
from strongreplay.protocol import Batch, Task, Terms


class SIConfig(MethodConfig):
    c: float = Field(0.5, ge=0, description="weight of the pull to the last task's weights")
    xi: float = Field(1.0, gt=0, description="damping for weights that hardly changed")
    clip: float | None = Field(1.0, gt=0, description="clips every gradient entry; none: no clipping")
    path: Literal["canonical", "reference"] = Field(
        "canonical", description="importance from task gradient times step, or from lr * gradient^2"
    )


class SI(Method):
    anchor: Tensor  # (P,) theta*, the weights at the start of the task
    path: Tensor  # (P,) omega, how much each weight lowered the task's loss so far
    importance: Tensor  # (P,) Omega; zero, so without effect, until the first task ends
    total: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: SIConfig | None = None) -> None:
        super().__init__()
        self.weights = trainable(net)
        self.net, self.config = net, config or SIConfig()
        self.register_buffer("anchor", flat_weights(self.weights))
        self.register_buffer("path", torch.zeros_like(self.anchor))
        self.register_buffer("importance", torch.zeros_like(self.anchor))
        # (P,) the gradient of a step; always the same tensor, so that it stays in the cache and parameters
        # keep their views of it
        self.register_buffer("total", torch.zeros_like(self.anchor), persistent=False)

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        current = cross_entropy(self.net(batch.inputs), batch.labels)
        parameters = self.weights
        of_task = flat_gradient(current, parameters)
        penalty, pull = quadratic_pull(parameters, self.anchor, self.importance, self.config.c, self.total)
        total = torch.add(of_task, pull, alpha=2 * self.config.c, out=self.total)
        if self.config.clip is not None:
            total.clamp_(-self.config.clip, self.config.clip)
        before = None if is_plain(optimizer) else flat_weights(parameters)
        descend_along(optimizer, parameters, total)
        if self.config.path == "reference":
            self.path.addcmul_(total, total, value=optimizer.param_groups[0]["lr"])
        elif before is None:  # the step was -lr * total
            self.path.addcmul_(of_task, total, value=optimizer.param_groups[0]["lr"])
        else:
            self.path.addcmul_(of_task, before.sub_(flat_weights(parameters)))
        return {"current": current.detach(), "penalty": penalty}

    def end_task(self, task: Task) -> None:
        weights = flat_weights(self.weights)
        self.importance += self.path.clamp(min=0) / ((weights - self.anchor).square() + self.config.xi)
        self.anchor.copy_(weights)
        self.path.zero_()
