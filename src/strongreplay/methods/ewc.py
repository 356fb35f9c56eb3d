"""Elastic Weight Consolidation (EWC) with one anchor for each task.

Paper: Kirkpatrick et al., "Overcoming Catastrophic Forgetting in Neural Networks", 2017,
https://arxiv.org/abs/1612.00796
The penalty is lambda / 2 * sum over past tasks of F * (theta - theta*)^2. A sum of such terms is again one:
that of the sum of all F with the weighted mean of the anchors, and a constant (`anchors="folded"`, summed in
float64); `"separate"` keeps a pair of vectors for each task. oEWC keeps the last anchor in place of the mean.
F is the Fisher information of plain images in evaluation mode: the expectation over the net's labels, exact
up to ten classes, else with one drawn label for each image. Head rows of classes not met yet have F = 0.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.methods.base import (
    Method,
    MethodConfig,
    Problem,
    SavedGenerator,
    eval_logits,
    evaluation_mode,
)
from strongreplay.methods.gradients import (
    descend_along,
    every_label,
    expected_squares,
    flat_gradient,
    flat_weights,
    quadratic_pull,
    trainable,
    viewed_chunks,
    widened,
)
from strongreplay.nets import Classifier, with_features
from strongreplay.protocol import Batch, Split, Task, Terms

EXACT_CLASSES = 10  # with more, the expectation over labels is estimated by one draw


class EWCConfig(MethodConfig):
    penalty: float = Field(1.0, ge=0, description="lambda, weight of the pull to the weights of past tasks")
    fisher: Literal["true", "empirical", "max_pred", "batch"] = Field(
        "true",
        description="labels: the net's distribution, the given, the predicted; batch: square of batch means",
    )
    anchors: Literal["folded", "separate"] = Field(
        "folded", description="how past tasks are kept: two vectors in all, or two for each task"
    )


class EWC(Method):
    resized_buffers = ("seen", "curvature", "centre", "fishers", "anchors")
    seen: Tensor  # (C,) classes met so far
    curvature: Tensor  # (P,) float64, sum of F
    centre: Tensor  # (P,) float64, mean of the anchors, weighted by F
    rest: Tensor  # () float64, sum of F * (theta* - centre)^2
    fishers: Tensor  # (t, P) for separate anchors
    anchors: Tensor  # (t, P)
    total: Tensor
    importance: Tensor
    anchor: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: EWCConfig | None = None) -> None:
        super().__init__()
        self.net: Classifier = with_features(net, "ewc", problem.num_classes)
        self.config, self.plain_view = config or EWCConfig(), problem.test_view
        self.draws, self.weights = SavedGenerator(problem.generator("fisher labels")), trainable(self.net)
        start = flat_weights(self.weights)
        size = 0 if self.config.anchors == "separate" else len(start)
        for name, shape in (("curvature", (size,)), ("centre", (size,)), ("rest", ())):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        for name in ("fishers", "anchors"):
            self.register_buffer(name, start.new_empty(0, len(start)))
        self.register_buffer("seen", torch.zeros(problem.num_classes, dtype=torch.bool))
        # Curvature and centre in the precision of the weights; and the gradient of a step, always the same
        # tensor, so that parameters keep their views of it.
        for name in ("importance", "anchor", "total"):
            self.register_buffer(name, torch.zeros_like(start), persistent=False)
        self.num_finished = 0

    def begin_task(self, task: Task) -> Task:
        self.weights = trainable(self.net)  # loading a state may have replaced those of a head that grows
        self.prepare()
        return task

    def prepare(self) -> None:
        """Make what a step needs from what is kept."""
        start = flat_weights(self.weights)
        self.importance, self.anchor = self.curvature.to(start.dtype), self.centre.to(start.dtype)
        self.total = torch.zeros_like(start)

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        current = cross_entropy(self.net(batch.inputs), batch.labels)
        gradient, terms = flat_gradient(current, self.weights), {"current": current.detach()}
        if self.num_finished and self.config.penalty:
            terms["penalty"], pull = self.penalise()
            gradient = torch.add(gradient, pull, alpha=self.config.penalty, out=self.total)
        descend_along(optimizer, self.weights, gradient)
        return terms

    def penalise(self) -> tuple[Tensor, Tensor]:
        """The penalty, and its gradient divided by lambda."""
        half = self.config.penalty / 2
        if self.config.anchors == "separate":
            distance = flat_weights(self.weights) - self.anchors
            pulls = self.fishers * distance
            return half * (pulls * distance).sum(), pulls.sum(0)
        value, pull = quadratic_pull(self.weights, self.anchor, self.importance, half, self.total)
        return torch.add(value, self.rest, alpha=half).to(value.dtype), pull

    def end_task(self, task: Task) -> None:
        self.meet(task)
        fisher, anchor = self.fisher(task.train), flat_weights(self.weights)
        if self.config.anchors == "separate":
            self.fishers = torch.cat([self.fishers, fisher[None]])
            self.anchors = torch.cat([self.anchors, anchor[None]])
        else:
            self.fold(fisher.double(), anchor.double())
            self.prepare()
        self.num_finished += 1

    def fold(self, fisher: Tensor, anchor: Tensor) -> None:
        """Add a task: A (x - c)^2 + F (x - a)^2 is (A + F) (x - m)^2 + A s (a - c)^2, s = F / (A + F)."""
        before, apart = self.curvature, anchor - self.centre
        self.curvature = before + fisher
        share = torch.where(self.curvature > 0, fisher / self.curvature, 0)
        self.rest += torch.dot(before * share, apart.square())
        self.centre = torch.where(before > 0, self.centre + share * apart, anchor)

    def meet(self, task: Task) -> None:
        missing = self.net.head.out_features - len(self.seen)
        self.seen = torch.cat([self.seen, self.seen.new_zeros(max(missing, 0))])
        self.seen[list(task.classes)] = True

    def fisher(self, train: Split) -> Tensor:
        """(P,) importance of the weights for the samples; a mean, so equal data twice change nothing."""
        total = torch.zeros_like(flat_weights(self.weights))
        for chunk in viewed_chunks(train, self.plain_view, self.seen.device):
            total += self.squares(chunk)
        unmet = ~self.seen[: self.net.head.out_features]
        parts = total.split([parameter.numel() for parameter in self.weights])
        for parameter, part in zip(self.weights, parts, strict=True):
            if parameter is self.net.head.weight or parameter is self.net.head.bias:
                part.view_as(parameter)[unmet] = 0
        return total / max(len(train), 1)

    def squares(self, chunk: Split) -> Tensor:
        """(P,) the sum over the chunk's samples of squared gradients."""
        if self.config.fisher == "batch":
            with evaluation_mode(self.net):
                mean = flat_gradient(cross_entropy(self.net(chunk.inputs), chunk.labels), self.weights)
            return mean.square() * len(chunk)
        chances = eval_logits(self.net, chunk.inputs).softmax(1)
        return expected_squares(self.net, chunk.inputs, self.targets(chances, chunk))

    def targets(self, chances: Tensor, chunk: Split) -> Iterator[tuple[Tensor, Tensor]]:
        """Labels to compute gradients for, with their weights."""
        kind, every = self.config.fisher, torch.ones_like(chances[:, 0])
        if kind == "true" and chances.shape[1] <= EXACT_CLASSES:
            yield from every_label(chances)
        elif kind == "true":  # by inversion, with draws on the host
            draws = torch.rand(len(chances), 1, generator=self.draws.generator).to(chances)
            yield (chances.cumsum(1) <= draws).sum(1).clamp(max=chances.shape[1] - 1), every
        else:
            yield chances.argmax(1) if kind == "max_pred" else chunk.labels, every

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        self.weights = trainable(self.net)  # loading a state may have replaced those of the head
        before = [parameter.shape for parameter in self.weights]
        super().grow(num_classes, generator)
        self.weights = trainable(self.net)
        for name in ("curvature", "centre", "fishers", "anchors"):
            if getattr(self, name).numel() or name in ("fishers", "anchors"):
                setattr(self, name, widened(getattr(self, name), before, self.weights))
        self.prepare()

    def get_extra_state(self) -> int:
        return self.num_finished

    def set_extra_state(self, state: int) -> None:
        self.num_finished = state

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.prepare()
