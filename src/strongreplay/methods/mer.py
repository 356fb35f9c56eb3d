"""Meta-Experience Replay (MER).

Paper: Riemer et al., "Learning to Learn without Forgetting by Maximizing Transfer and Minimizing
Interference", 2019, https://arxiv.org/abs/1810.11910
For each sample of the stream: a sequence of SGD steps on single samples, that one and some from memory; then
the weights go only a part of the way (Reptile). This favours weights whose gradients agree between samples.
Algorithms of the paper: 1 takes several sequences with the sample first, with a step back after each and at
the end; 6 takes one sequence with the sample last; 7 shuffles, and multiplies the sample's loss. `batch` is
not in the paper: one SGD step on a whole batch and replayed samples in place of a sequence, for nets with
batch norm.
Draws are with replacement, as in the reference (the authors' code). Steps are plain SGD with any optimiser.
Differences from the reference: the very first sample is learnt too; the reservoir is algorithm R; only
parameters go back, not batch-norm statistics.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.base import Method, MethodConfig, Problem
from strongreplay.methods.gradients import trainable
from strongreplay.methods.samples import LabelledSamples
from strongreplay.protocol import Batch, Terms


class MERConfig(MethodConfig):
    memory_size: int = Field(200, ge=0, description="samples kept")
    algorithm: Literal["1", "6", "7", "batch"] = Field(
        "6", description="of the paper, or `batch`: one step on the whole batch in place of a sequence"
    )
    num_draws: int = Field(2, ge=0, description="k, replayed samples in a sequence")
    repeats: int = Field(1, ge=1, description="s, sequences for each sample; 7: the factor of its loss")
    beta: float = Field(1.0, ge=0, le=1, description="part of the way after a sequence; not in 6 and 7")
    gamma: float = Field(0.3, ge=0, le=1, description="part of the way after all sequences of a sample")


class MER(Method):
    def __init__(self, net: nn.Module, problem: Problem, config: MERConfig | None = None) -> None:
        super().__init__()
        self.net, self.config, self.view = net, config or MERConfig(), problem.train_view
        self.memory = Memory(LabelledSamples, self.config.memory_size, problem.generator("memory"))
        self.weights: list[Tensor] = list(trainable(net))

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        self.weights, lr = list(trainable(self.net)), float(optimizer.param_groups[0]["lr"])
        size = len(batch) if self.config.algorithm == "batch" else 1
        losses, ids = [], batch.ids.split(size) if batch.ids is not None else [None] * len(batch)
        parts = zip(
            batch.images.split(size), batch.inputs.split(size), batch.labels.split(size), ids, strict=False
        )
        for images, inputs, labels, known in parts:
            losses.append(self.learn(inputs, labels, lr))
            self.memory.add(LabelledSamples(images, labels), known)
        return {"current": torch.stack(losses).mean()}

    def learn(self, inputs: Tensor, labels: Tensor, lr: float) -> Tensor:
        """Learn a sample (or batch) of the stream among samples from memory; returns its first loss."""
        config, losses = self.config, list[Tensor]()

        def sequence() -> None:
            losses.append(self.learn_sequence(inputs, labels, lr))

        def repeated(share: float) -> None:
            for _ in range(config.repeats):
                self.part_of_the_way(share, sequence)

        if config.algorithm == "6":
            repeated(config.gamma)
        elif config.algorithm == "7":
            self.part_of_the_way(config.gamma, sequence)
        else:
            self.part_of_the_way(config.gamma, partial(repeated, config.beta))
        return losses[0]

    def learn_sequence(self, inputs: Tensor, labels: Tensor, lr: float) -> Tensor:
        """SGD steps on new draws from memory and on the stream's sample; returns the loss of the latter."""
        steps, algorithm = self.draw(), self.config.algorithm
        if algorithm == "batch":
            xs, ys = zip(*steps, (inputs, labels), strict=True)
            return self.step(torch.cat(xs), torch.cat(ys), lr)
        place = {"1": 0, "6": len(steps)}.get(algorithm)
        if place is None:  # a shuffled sequence: draws are in random order, so only this place is drawn
            place = int(torch.randint(len(steps) + 1, (), generator=self.memory.generator))
        for x, y in steps[:place]:
            self.step(x, y, lr)
        loss = self.step(inputs, labels, lr, self.config.repeats if algorithm == "7" else 1)
        for x, y in steps[place:]:
            self.step(x, y, lr)
        return loss

    def draw(self) -> list[tuple[Tensor, Tensor]]:
        """min(k, number stored) samples as single batches; drawn independently, so with repeats."""
        count = min(self.config.num_draws, len(self.memory))
        if not count:
            return []
        chosen = torch.randint(len(self.memory), (count,), generator=self.memory.generator)
        replayed = self.memory.take(chosen)
        inputs = self.view(replayed.images)
        return list(zip(inputs.split(1), replayed.labels.split(1), strict=True))

    def step(self, inputs: Tensor, labels: Tensor, lr: float, factor: float = 1) -> Tensor:
        """One plain SGD step on the mean loss times a factor; returns the loss."""
        loss = cross_entropy(self.net(inputs), labels)
        slopes = torch.autograd.grad(loss, self.weights, materialize_grads=True)
        with torch.no_grad():
            torch._foreach_add_(self.weights, slopes, alpha=-lr * factor)
        return loss.detach()

    def part_of_the_way(self, share: float, learn: Callable[[], None]) -> None:
        """Change the parameters by learning, then move them back to a share of the way."""
        before = [weight.detach().clone() for weight in self.weights]
        learn()
        with torch.no_grad():
            torch._foreach_copy_(self.weights, torch._foreach_lerp(before, self.weights, share))
