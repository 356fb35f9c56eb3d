"""The two loops: train_task and evaluate. Nothing here knows files, names, seeds or printing.

Whole batches move: an epoch is one permutation, a batch one gather. The terms of the loss stay on the
device and are read once an epoch, which is also when a non-finite one is found and its step named.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, isfinite

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from strongreplay.errors import RunError
from strongreplay.methods.base import Method
from strongreplay.types import Batch, Split, Task, Terms, View


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


def train_task(
    method: Method,
    task: Task,
    view: View,
    optimizer: Optimizer,
    *,
    epochs: int,
    batch_size: int,
    generator: torch.Generator,
    schedule: LRScheduler | None = None,
    on_step: OnStep | None = None,
) -> list[dict[str, float]]:
    """Learn one task; returns the mean of each loss term, an entry an epoch."""
    device = next(method.parameters()).device
    method.train()
    task = method.begin_task(task)
    train = task.train.to(device)
    num_steps = ceil(len(train) / batch_size)
    history = []
    for epoch in range(epochs):
        order = torch.randperm(len(train), generator=generator).to(device)
        steps: list[Terms] = []
        for step, rows in enumerate(order.split(batch_size)):
            images = train.inputs.index_select(0, rows)
            batch = Batch(rows, images, view(images), train.labels.index_select(0, rows))
            steps.append(method.observe(batch, optimizer))
            if on_step:
                on_step(Position(task.index, epoch, step, num_steps))
        if schedule:
            schedule.step()
        history.append(mean_terms(steps, f"task {task.index + 1}, epoch {epoch + 1}"))
    method.end_task(task)
    return history


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


@contextmanager
def evaluating(method: Method) -> Iterator[None]:
    """Evaluation mode inside, every module's own mode afterwards."""
    modes = [(module, module.training) for module in method.modules()]
    method.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def evaluate(
    method: Method,
    split: Split,
    view: View,
    *candidates: tuple[int, ...],
    batch_size: int = 1000,
) -> list[float]:
    """Accuracy in per cent for each tuple of candidate classes, from one pass; changes nothing in the method.

    With all seen classes as candidates this is Class-IL, with the task's own classes Task-IL.
    """
    device = next(method.parameters()).device
    correct = torch.zeros(len(candidates), dtype=torch.int64, device=device)
    columns = [torch.tensor(classes, device=device) for classes in candidates]
    with evaluating(method):
        for images, labels in zip(
            split.inputs.split(batch_size), split.labels.split(batch_size), strict=True
        ):
            labels = labels.to(device)
            scores = method.predict(view(images.to(device)))
            answers = [column[scores[:, column].argmax(1)] for column in columns]
            correct += torch.stack([(answer == labels).sum() for answer in answers])
    return [100 * count / len(split) for count in correct.tolist()]
