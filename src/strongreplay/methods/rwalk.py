"""Riemannian Walk (RWalk).

Paper: Chaudhry et al., "Riemannian Walk for Incremental Learning: Understanding Forgetting and
Intransigence", 2018, https://arxiv.org/abs/1801.10112
A weight is important if it has much Fisher information (a moving average of squared gradients) or if its
changes lowered the loss much for the distance they moved the net's predictions (a score of each interval of
steps). By our reading, the paper's few exemplars are a reservoir, replayed in one batch with the stream's;
without memory it is the plain penalty.
Differences from the reference (the authors' agem code): the Fisher information starts from the mean of the
first interval and each interval counts alone; there it starts at 0 and sums over the whole task, and the last
interval of a task is dropped (`fisher="legacy"`). Scores are averaged over tasks (`scores="legacy"` adds the
average to the old ones).
"""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.base import Method, Problem, ReplayConfig, replay_count
from strongreplay.methods.gradients import (
    descend_along,
    flat_gradient,
    flat_weights,
    is_plain,
    quadratic_pull,
    trainable,
    widened,
)
from strongreplay.methods.samples import LabelledSamples
from strongreplay.protocol import Batch, Task, Terms

# (P,) vectors: the path integral and the squared gradients of this interval, the weights at its start, the
# running Fisher information, scores of this task and of all tasks, the last task's weights and importance
VECTORS = ("path", "squares", "start", "fisher", "scores", "total_scores", "anchor", "importance")


class RWalkConfig(ReplayConfig):
    penalty: float = Field(1.0, ge=0, description="lambda, weight of the pull to the last task's weights")
    interval: int = Field(50, ge=2, description="steps between two scores")
    decay: float = Field(0.9, ge=0, le=1, description="share of the new interval in the Fisher information")
    xi: float = Field(1e-3, gt=0, description="damping for weights that hardly changed")
    fisher: Literal["interval", "legacy"] = Field(
        "interval", description="squared gradients of each interval, or summed over the task (reference)"
    )
    scores: Literal["mean", "legacy"] = Field(
        "mean", description="scores over tasks: averaged, or the average added to the old (reference)"
    )
    distance: Literal["full", "half"] = Field(
        "full", description="distance of predictions: F d^2 (reference), or half of it (paper)"
    )


class RWalk(Method):
    resized_buffers = VECTORS
    path: Tensor
    squares: Tensor
    start: Tensor
    fisher: Tensor
    scores: Tensor
    total_scores: Tensor
    anchor: Tensor
    importance: Tensor
    total: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: RWalkConfig | None = None) -> None:
        super().__init__()
        self.net, self.config, self.view = net, config or RWalkConfig(), problem.train_view
        self.weights = trainable(net)
        self.memory = Memory(LabelledSamples, self.config.memory_size, problem.generator("memory"))
        for name in VECTORS:
            self.register_buffer(name, torch.zeros_like(flat_weights(self.weights)))
        self.start, self.anchor = flat_weights(self.weights), flat_weights(self.weights)
        # (P,) the gradient of a step; always the same tensor, so that parameters keep their views of it
        self.register_buffer("total", torch.zeros_like(self.start), persistent=False)
        self.num_steps = self.num_squares = self.num_intervals = self.num_finished = 0

    def begin_task(self, task: Task) -> Task:
        self.weights = trainable(self.net)  # loading a state may have replaced those of a head that grows
        return task

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        if (self.num_steps + 1) % self.config.interval == 0:
            self.close_interval()
        inputs, labels, name = batch.inputs, batch.labels, "current"
        if len(self.memory):
            replayed = self.memory.sample(replay_count(self.config, batch))
            inputs = torch.cat([inputs, self.view(replayed.images)])
            labels, name = torch.cat([labels, replayed.labels]), "mixed"
        loss = cross_entropy(self.net(inputs), labels)
        gradient = flat_gradient(loss, self.weights)  # of the loss alone: the penalty has no importance
        self.squares.addcmul_(gradient, gradient)
        total, terms = gradient, {name: loss.detach()}
        if self.num_finished and self.config.penalty:
            strength, total = self.config.penalty, self.total
            terms["penalty"], pull = quadratic_pull(
                self.weights, self.anchor, self.importance, strength, total
            )
            torch.add(gradient, pull, alpha=2 * strength, out=total)
        self.step(optimizer, gradient, total)
        self.num_steps, self.num_squares = self.num_steps + 1, self.num_squares + 1
        self.memory.add(LabelledSamples(batch.images, batch.labels), batch.ids)
        return terms

    def step(self, optimizer: Optimizer, gradient: Tensor, total: Tensor) -> None:
        """One optimiser step; the path grows by minus the gradient times the change of the weights."""
        before = None if is_plain(optimizer) else flat_weights(self.weights)
        descend_along(optimizer, self.weights, total)
        if before is None:  # the step was -lr * total
            self.path.addcmul_(gradient, total, value=optimizer.param_groups[0]["lr"])
        else:
            self.path.addcmul_(gradient, before.sub_(flat_weights(self.weights)))

    def close_interval(self) -> None:
        """Score the weights, update the Fisher information, and begin the next interval."""
        config, weights = self.config, flat_weights(self.weights)
        legacy = config.fisher == "legacy"
        mean = self.squares / (config.interval if legacy else max(self.num_squares, 1))
        if not (legacy or self.num_intervals):
            self.fisher.copy_(mean)
        moved = (
            (weights - self.start).square_().mul_(self.fisher).mul_(0.5 if config.distance == "half" else 1)
        )
        self.scores += (self.path / (moved + config.xi)).relu_()
        if legacy or self.num_intervals:
            self.fisher.lerp_(mean, config.decay)
        self.start.copy_(weights)
        self.path.zero_()
        self.num_intervals += 1
        if not legacy:
            self.squares.zero_()
            self.num_squares = 0

    def end_task(self, task: Task) -> None:
        if self.config.fisher == "interval" and self.num_squares:
            self.close_interval()
        if not self.num_finished:
            self.total_scores.copy_(self.scores)
        elif self.config.scores == "mean":
            self.total_scores.add_(self.scores).div_(2)
        else:
            self.total_scores.mul_(1.5).add_(self.scores, alpha=0.5)
        self.importance = to_unit_range(self.fisher) + to_unit_range(self.total_scores)
        weights = flat_weights(self.weights)
        self.anchor.copy_(weights)
        self.start.copy_(weights)
        for vector in (self.path, self.scores, self.squares):
            vector.zero_()
        self.num_steps, self.num_squares, self.num_finished = 0, 0, self.num_finished + 1

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        self.weights = trainable(self.net)  # loading a state may have replaced those of the head
        before = [parameter.shape for parameter in self.weights]
        super().grow(num_classes, generator)
        self.weights = trainable(self.net)
        for name in VECTORS:
            setattr(self, name, widened(getattr(self, name), before, self.weights))
        self.start = flat_weights(self.weights)  # a head grows between tasks
        self.total = torch.zeros_like(self.start)

    def get_extra_state(self) -> tuple[int, int, int, int]:
        return self.num_steps, self.num_squares, self.num_intervals, self.num_finished

    def set_extra_state(self, state: tuple[int, int, int, int]) -> None:
        self.num_steps, self.num_squares, self.num_intervals, self.num_finished = state

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.total = torch.zeros_like(self.anchor)


def to_unit_range(vector: Tensor) -> Tensor:
    """Scaled linearly to 0 for the smallest and 1 for the largest entry; all 0 if they are equal."""
    low, high = vector.aminmax()
    return (vector - low) / (high - low + 1e-32)
