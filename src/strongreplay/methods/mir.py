"""Maximally Interfered Retrieval (MIR).

Paper: Aljundi et al., "Online Continual Learning with Maximally Interfered Retrieval", 2019,
https://arxiv.org/abs/1908.04742
Replays the samples whose loss a plain SGD step on the stream's batch would raise most, among candidates drawn
from earlier tasks. The gradient is the sum of two means. The same augmented images are scored and replayed.
Differences from the reference (the authors' code): scoring changes no running statistics; with `best`, stored
logits are read and written at the slots of the candidates (there, at wrong ones), and start as the logits of
the step that stored a sample, not as zeros (`best="legacy"`); the reservoir is algorithm R.
"""

from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.memory import Memory
from strongreplay.methods.base import Method, Problem, ReplayConfig, replay_count
from strongreplay.methods.gradients import after_step
from strongreplay.methods.norm_statistics import held_statistics
from strongreplay.methods.samples import TaskLogitSamples, TaskSamples
from strongreplay.protocol import Batch, Task, Terms


class Candidates(NamedTuple):
    slots: Tensor
    inputs: Tensor
    labels: Tensor
    known: Tensor  # (n,) of an earlier task; false only if the memory has too few of them
    stored: Tensor | None  # (n, C) logits, for `best`


class MIRConfig(ReplayConfig):
    num_candidates: int | None = Field(
        None, ge=1, description="samples that are scored in a step; none: five times those replayed"
    )
    iterations: int = Field(1, ge=1, description="steps on each batch, each with new candidates")
    best: Literal["off", "on", "legacy"] = Field(
        "off", description="score by the rise over the lowest loss so far; legacy: stored logits start as 0"
    )


class MIR(Method):
    def __init__(self, net: nn.Module, problem: Problem, config: MIRConfig | None = None) -> None:
        super().__init__()
        self.net, self.config, self.view = net, config or MIRConfig(), problem.train_view
        # Logits: those with the lowest loss so far
        kind: type[TaskSamples | TaskLogitSamples]
        kind = TaskSamples if self.config.best == "off" else TaskLogitSamples
        self.memory = Memory(kind, self.config.memory_size, problem.generator("memory"))
        self.num_finished = 0  # tasks; the number of the current one

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        for _ in range(self.config.iterations):
            terms, logits = self.step(batch, optimizer)
        tasks = torch.full_like(batch.labels, self.num_finished)
        new = TaskSamples(batch.images, batch.labels, tasks)
        if self.config.best == "off":
            self.memory.add(new, batch.ids)
        else:
            logits = torch.zeros_like(logits) if self.config.best == "legacy" else logits
            self.memory.add(TaskLogitSamples(*new, logits), batch.ids)
        return terms

    def step(self, batch: Batch, optimizer: Optimizer) -> tuple[Terms, Tensor]:
        """One optimiser step; the replayed batch adds its gradient to that of the stream's."""
        optimizer.zero_grad()
        logits = self.net(batch.inputs)
        terms = {"current": cross_entropy(logits, batch.labels)}
        terms["current"].backward()
        if len(self.memory) and self.num_finished:
            found = self.draw(batch)
            scores, before = self.score(found, optimizer)
            chosen = scores.argsort(descending=True, stable=True)[: replay_count(self.config, batch)]
            losses = cross_entropy(self.net(found.inputs[chosen]), found.labels[chosen], reduction="none")
            known = found.known[chosen]
            terms["replay"] = (losses * known).sum() / known.sum().clamp(min=1)
            terms["replay"].backward()
            self.keep_best(found, before)
        optimizer.step()
        return {name: term.detach() for name, term in terms.items()}, logits.detach()

    def draw(self, batch: Batch) -> Candidates:
        """Distinct samples of earlier tasks; random keys order them, so nothing waits for the device."""
        count, rows = self.config.num_candidates or 5 * replay_count(self.config, batch), self.memory.rows
        keys = torch.rand(len(self.memory), generator=self.memory.generator).to(batch.labels.device)
        slots = (keys + (rows.tasks == self.num_finished)).argsort()[:count]
        taken = self.memory.take(slots)
        stored = taken.logits if isinstance(taken, TaskLogitSamples) else None
        known = taken.tasks != self.num_finished
        return Candidates(slots, self.view(taken.images), taken.labels, known, stored)

    @torch.no_grad()
    def score(self, found: Candidates, optimizer: Optimizer) -> tuple[Tensor, Tensor]:
        """The rise of each candidate's loss by a plain SGD step with the gradient so far; present logits."""
        with held_statistics(self.net):
            before: Tensor = self.net(found.inputs)
            with after_step(optimizer):
                after = self.net(found.inputs)
        base = losses_of(before, found.labels)
        if found.stored is not None:
            base = torch.minimum(base, self.stored_losses(found, before))
        return (losses_of(after, found.labels) - base).where(found.known, -torch.inf), before

    def stored_losses(self, found: Candidates, before: Tensor) -> Tensor:
        """Losses of stored logits; columns that were added later count as they are now."""
        assert found.stored is not None
        return losses_of(torch.where(found.stored.isnan(), before, found.stored), found.labels)

    @torch.no_grad()
    def keep_best(self, found: Candidates, before: Tensor) -> None:
        """Store the present logits of candidates whose loss is lower than with their stored ones."""
        if found.stored is None:
            return
        better = losses_of(before, found.labels) < self.stored_losses(found, before)
        logits = torch.where((better & found.known)[:, None], before, found.stored)
        rows = self.memory.rows
        assert isinstance(rows, TaskLogitSamples)
        rows.logits.index_copy_(0, found.slots, logits)

    def end_task(self, task: Task) -> None:
        self.num_finished += 1

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        super().grow(num_classes, generator)
        self.memory.widen("logits", num_classes)

    def get_extra_state(self) -> int:
        return self.num_finished

    def set_extra_state(self, state: int) -> None:
        self.num_finished = state


def losses_of(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits, labels, reduction="none")
