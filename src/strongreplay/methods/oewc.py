"""Online Elastic Weight Consolidation (oEWC).

Papers: Schwarz et al., "Progress & Compress", 2018, https://arxiv.org/abs/1805.06370; Kirkpatrick et al.,
"Overcoming Catastrophic Forgetting in Neural Networks", 2017, https://arxiv.org/abs/1612.00796
Reference: mammoth, tag neurips2020. The default keeps its form of the penalty, for which the published
weights were chosen: no factor 1/2, and the squared gradient of log p(y|x) at the true label is weighted by
p(y|x) (`fisher="mammoth"`). `"empirical"` drops that weight; `"true"` takes the expectation over the net's
predicted labels, at the cost of one backward pass per class.
Differences from the reference: per-sample gradients are computed in evaluation mode, which leaves running
statistics unchanged (`fisher_mode="train"` is the reference: single images in training mode, which change
them); the sum is divided by the number of samples, not by the number of batches times the batch size.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.methods.base import Method, MethodConfig, Problem, eval_logits
from strongreplay.methods.gradients import (
    descend_along,
    every_label,
    expected_squares,
    flat_gradient,
    flat_weights,
    quadratic_pull,
    trainable,
    viewed_chunks,
)
from strongreplay.protocol import Batch, Split, Task, Terms


class OEWCConfig(MethodConfig):
    penalty: float = Field(0.7, ge=0, description="lambda, weight of the pull to the last task's weights")
    gamma: float = Field(1.0, ge=0, le=1, description="decay of earlier importance at the end of each task")
    fisher: Literal["mammoth", "empirical", "true"] = Field(
        "mammoth", description="weight of labels: p(y|x) for the true one, 1 for it, or p(c|x) for all"
    )
    fisher_mode: Literal["eval", "train"] = Field(
        "eval", description="the net's mode for importance; train (reference) changes running statistics"
    )


class OEWC(Method):
    fisher: Tensor  # (P,) importance; zero, so without effect, until the first task ends
    anchor: Tensor  # (P,) theta*, the weights at the end of the last task
    total: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: OEWCConfig | None = None) -> None:
        super().__init__()
        self.weights = trainable(net)
        self.net, self.config, self.view = net, config or OEWCConfig(), problem.train_view
        self.register_buffer("anchor", flat_weights(self.weights))
        self.register_buffer("fisher", torch.zeros_like(self.anchor))
        # (P,) the gradient of a step; always the same tensor, so that parameters keep their views of it
        self.register_buffer("total", torch.zeros_like(self.anchor), persistent=False)

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        current = cross_entropy(self.net(batch.inputs), batch.labels)
        parameters, strength = self.weights, self.config.penalty
        gradient = flat_gradient(current, parameters)
        penalty, pull = quadratic_pull(parameters, self.anchor, self.fisher, strength, self.total)
        torch.add(gradient, pull, alpha=2 * strength, out=self.total)
        descend_along(optimizer, parameters, self.total)
        return {"current": current.detach(), "penalty": penalty}

    def end_task(self, task: Task) -> None:
        squares = self.squares_by_image if self.config.fisher_mode == "train" else self.squares
        total = torch.zeros_like(self.anchor)
        for chunk in viewed_chunks(task.train, self.view, self.anchor.device):
            total += squares(chunk)
        self.fisher.mul_(self.config.gamma).add_(total / len(task.train))
        self.anchor.copy_(flat_weights(self.weights))

    def squares(self, chunk: Split) -> Tensor:
        """(P,) the sum of weighted squared gradients, in evaluation mode."""
        logits = eval_logits(self.net, chunk.inputs)
        return expected_squares(self.net, chunk.inputs, self.targets(logits, chunk))

    def squares_by_image(self, chunk: Split) -> Tensor:
        """The same in training mode, one image at a time, because each changes the running statistics."""
        total, parameters = torch.zeros_like(self.anchor), self.weights
        for image, label in zip(chunk.inputs.split(1), chunk.labels.split(1), strict=True):
            logits = self.net(image)
            for labels, weight in self.targets(logits.detach(), Split(image, label)):
                total += weight * flat_gradient(cross_entropy(logits, labels), parameters, True).square()
        return total

    def targets(self, logits: Tensor, chunk: Split) -> Iterator[tuple[Tensor, Tensor]]:
        """Labels to compute gradients for, with their weights."""
        probabilities = logits.softmax(1)
        if self.config.fisher == "true":
            yield from every_label(probabilities)
        elif self.config.fisher == "mammoth":
            yield chunk.labels, probabilities.gather(1, chunk.labels[:, None])[:, 0]
        else:
            yield chunk.labels, torch.ones_like(probabilities[:, 0])
