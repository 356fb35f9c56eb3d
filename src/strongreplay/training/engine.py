"""The two loops: train_task and evaluate. Nothing here knows files, names, seeds or printing.

Whole batches move: an epoch is one permutation, a batch one gather. The terms of the loss stay on the
device and are read once an epoch, which is also when a non-finite one is found and its step named.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from math import ceil, isfinite
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from strongreplay.errors import RunError
from strongreplay.methods.base import Method, evaluation_mode
from strongreplay.protocol import Batch, Split, Task, Terms, View
from strongreplay.training.devices import keep_freed_memory
from strongreplay.training.rates import Rate


@dataclass(frozen=True, slots=True)
class Position:
    """Where training stands: numbers from 0, after the step has been taken."""

    task: int
    epoch: int
    step: int
    num_steps: int  # in an epoch


OnStep = Callable[[Position], None]


class NonFiniteError(RunError):
    """A term of the loss turned into infinity or not-a-number."""


@dataclass
class TaskProgress:
    """How far a task has been trained; with method, optimiser and generators it is all it takes to go on."""

    epoch: int = 0
    step: int = 0  # of the epoch, the next one to be taken
    order: Tensor | None = None  # state of the order's generator when the epoch began
    steps: list[Terms] = field(default_factory=list)  # of the epoch so far
    history: list[dict[str, float]] = field(default_factory=list)  # of the epochs before

    def state(self) -> dict[str, Any]:
        values = [term for terms in self.steps for term in terms.values()]
        return {
            "epoch": self.epoch,
            "step": self.step,
            "order": self.order,
            "names": [list(terms) for terms in self.steps],
            "values": torch.stack(values) if values else torch.empty(0),
            "history": self.history,
        }

    @classmethod
    def of_state(cls, state: dict[str, Any], device: torch.device) -> "TaskProgress":
        values = iter(state["values"].to(device))
        steps = [{name: next(values) for name in names} for names in state["names"]]
        return cls(state["epoch"], state["step"], state["order"], steps, state["history"])

    def end_epoch(self, where: str) -> None:
        self.history.append(mean_terms(self.steps, where))
        self.epoch, self.step, self.order, self.steps = self.epoch + 1, 0, None, []


def train_task(
    method: Method,
    task: Task,
    view: View,
    optimizer: Optimizer,
    *,
    epochs: int,
    batch_size: int,
    generator: torch.Generator,
    rate: Rate | None = None,
    drop_last: bool = False,
    on_step: OnStep | None = None,
    on_begin: Callable[[Task], None] | None = None,
    progress: TaskProgress | None = None,
    restore: Callable[[], None] | None = None,
) -> list[dict[str, float]]:
    """Learn one task; returns the mean of each loss term, an entry an epoch.

    Without a `rate` the optimiser keeps its own. `drop_last` leaves out a short batch at an epoch's end. To
    go on with a task that was begun before, give its `progress` and a `restore`, which puts everything back
    as it was then: beginning the task a second time may have changed it.
    """
    device = next(method.parameters()).device
    keep_freed_memory()
    method.train()
    task = method.begin_task(task)
    progress = progress or TaskProgress()
    if restore:
        restore()
    if on_begin:
        on_begin(task)  # as the method wants to learn it
    train = task.train.to(device)
    size = method.stream_batch_size(batch_size)
    num_steps = steps_in_epoch(len(train), size, drop_last)
    while progress.epoch < epochs:
        if progress.order is None:
            progress.order = generator.get_state()
        generator.set_state(progress.order)
        drawn = torch.randperm(len(train), generator=generator)
        order = (torch.arange(len(train)) if task.in_order else drawn).to(device)
        steps = zip(order.split(size), train.labels.index_select(0, order).split(size), strict=True)
        for rows, labels in islice(steps, progress.step, num_steps):
            if rate:
                set_rate(optimizer, rate(progress.epoch, progress.step / num_steps))
            images = train.inputs.index_select(0, rows)
            ids = None if train.ids is None else train.ids.index_select(0, rows)
            batch = Batch(rows, images, view(images), labels, ids)
            progress.steps.append(method.observe(batch, optimizer))
            progress.step += 1
            if on_step:
                on_step(Position(task.index, progress.epoch, progress.step - 1, num_steps))
        progress.end_epoch(f"task {task.index + 1}, epoch {progress.epoch + 1}")
    method.end_task(task)
    return progress.history


def steps_in_epoch(num_samples: int, batch_size: int, drop_last: bool = False) -> int:
    """At least one: a short batch is left out only where there is a whole one."""
    return max(1, num_samples // batch_size) if drop_last else ceil(num_samples / batch_size)


def set_rate(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def mean_terms(steps: list[Terms], where: str) -> dict[str, float]:
    """The mean of each term over the steps that had it; the epoch's one host sync."""
    values = torch.stack([term for terms in steps for term in terms.values()]).tolist()
    keys = [(number, name) for number, terms in enumerate(steps, 1) for name in terms]
    sums: dict[str, list[float]] = {}
    for (number, name), value in zip(keys, values, strict=True):
        if not isfinite(value):
            raise NonFiniteError(
                f"{where}, step {number}: the loss term '{name}' is {value}; "
                "lower train.lr or the weight of that term"
            )
        sums.setdefault(name, []).append(value)
    return {name: sum(series) / len(series) for name, series in sums.items()}


def evaluate(
    method: Method,
    split: Split,
    view: View,
    *candidates: tuple[int, ...],
    batch_size: int = 1000,
    ask: Callable[[Tensor], Tensor] | None = None,
) -> list[float]:
    """Accuracy in per cent for each tuple of candidate classes, from one pass; changes nothing in the method.

    With all seen classes as candidates this is Class-IL, with the task's own classes Task-IL. `ask` is one of
    the method's predictors, where it is not the one it predicts with.
    """
    device = next(method.parameters()).device
    correct = torch.zeros(len(candidates), dtype=torch.int64, device=device)
    columns = [torch.tensor(classes, device=device) for classes in candidates]
    with torch.no_grad(), evaluation_mode(method):
        for images, labels in zip(
            split.inputs.split(batch_size), split.labels.split(batch_size), strict=True
        ):
            labels = labels.to(device)
            scores = (ask or method.predict)(view(images.to(device)))
            answers = [column[scores[:, column].argmax(1)] for column in columns]
            correct += torch.stack([(answer == labels).sum() for answer in answers])
    return [100 * count / len(split) for count in correct.tolist()]
