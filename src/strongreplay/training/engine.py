"""The loops over batches: PhaseLoop, train_task and evaluate. They use no files, no names and no printing.

Data move in whole batches: an epoch is one permutation, a batch is one gather. The terms of the loss stay on
the device and are read once an epoch; a term that is not finite is reported then, with its step.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import ceil, isfinite
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from strongreplay.errors import RunError
from strongreplay.methods.base import MAIN, Method, Phase, evaluation_mode
from strongreplay.protocol import Batch, Split, Task, Terms, View
from strongreplay.training.devices import keep_freed_memory
from strongreplay.training.events import Listener, Position
from strongreplay.training.optimizers import set_rate, with_gradients
from strongreplay.training.rates import Rate
from strongreplay.training.streaming import stream_batches

RESIDENT_BYTES = 1 << 30  # larger training data stay where they are and move to the device batch by batch


class NonFiniteError(RunError):
    """Weights, loss or predictions are infinite or NaN."""


@dataclass(frozen=True, slots=True)
class PhaseDefaults:
    """Settings of a phase that does not set them itself."""

    view: View
    epochs: int
    batch_size: int
    generator: torch.Generator
    rate: Rate | None = None  # for phases with this number of epochs
    drop_last: bool = False  # leave out a short batch at an epoch's end, in phases of this batch size


@dataclass
class TaskProgress:
    """How far a task has been trained. A resume needs this, the method, the optimiser and the generators."""

    phase: str = ""  # empty: no phase has begun
    epoch: int = 0
    step: int = 0  # the next step of the epoch
    order: Tensor | None = None  # state of the order's generator when the epoch began
    steps: list[Terms] = field(default_factory=list)  # of the epoch so far
    history: list[dict[str, float]] = field(default_factory=list)  # of finished epochs of the main phase
    first_step: int | None = None  # how many steps of the run came before this task
    generator: torch.Generator | None = None  # the order's
    generator_state: Tensor | None = None  # of the same generator, read from a checkpoint

    def state(self) -> dict[str, Any]:
        values = [term for terms in self.steps for term in terms.values()]
        return {
            "phase": self.phase,
            "epoch": self.epoch,
            "step": self.step,
            "order": self.order,
            "generator": self.generator.get_state() if self.generator else None,
            "names": [list(terms) for terms in self.steps],
            "values": torch.stack(values) if values else torch.empty(0),
            "history": self.history,
            "first_step": self.first_step,
        }

    @classmethod
    def of_state(cls, state: dict[str, Any], device: torch.device) -> "TaskProgress":
        """The inverse of `state`; version 0.1 had only the main phase."""
        values = iter(state["values"].to(device))
        return cls(
            state.get("phase", MAIN),
            state["epoch"],
            state["step"],
            state["order"],
            [{name: next(values) for name in names} for names in state["names"]],
            state["history"],
            state.get("first_step"),
            generator_state=state.get("generator"),
        )

    def begin_phase(self, name: str) -> None:
        self.phase, self.epoch, self.step, self.order, self.steps = name, 0, 0, None, []


class PhaseLoop:
    """The epochs and batches of one phase of a task, starting at its progress."""

    def __init__(
        self, method: Method, task: Task, phase: Phase, defaults: PhaseDefaults, progress: TaskProgress
    ) -> None:
        self.task, self.phase, self.progress = task, phase, progress
        self.device = next(method.parameters()).device
        given = phase.data() if callable(phase.data) else phase.data
        self.data = place(task.train if given is None else given, self.device)
        self.in_order = task.in_order and given is None and phase.weights is None
        self.view, self.generator = phase.view or defaults.view, phase.generator or defaults.generator
        usual = phase.epochs is None
        self.epochs = defaults.epochs if phase.epochs is None else phase.epochs
        self.rate = phase.rate or (defaults.rate if usual and not phase.optimizer else None)
        self.size = phase.batch_size or method.stream_batch_size(defaults.batch_size)
        drop_last = defaults.drop_last and phase.batch_size is None
        self.num_steps = steps_in_epoch(len(self.data), self.size, drop_last) if len(self.data) else 0
        self.steps_done = self.steps_expected = 0  # of the whole run, for listeners
        progress.generator = self.generator
        if progress.generator_state is not None:
            self.generator.set_state(progress.generator_state)
            progress.generator_state = None

    @property
    def total(self) -> int:
        return self.epochs * self.num_steps

    @property
    def is_open(self) -> bool:
        return self.num_steps > 0 and self.progress.epoch < self.epochs

    def steps(self, optimizer: Optimizer) -> Iterator[Terms]:
        """Train the rest of an epoch, step by step; call `end_epoch` afterwards."""
        progress, data = self.progress, self.data
        order = self.draw_order()
        rows, places = order.to(self.device), order.to(data.labels.device)
        labels = data.labels.index_select(0, places).to(self.device)
        rows_of, places_of, labels_of, order_of = (
            part.split(self.size)[progress.step : self.num_steps] for part in (rows, places, labels, order)
        )
        streamed = stream_batches(data.inputs, places_of, self.device)
        for of_batch, on_host, known, images in zip(rows_of, order_of, labels_of, streamed, strict=True):
            if self.rate:
                set_rate(optimizer, self.rate(progress.epoch, progress.step / self.num_steps))
            ids = None if data.ids is None else data.ids.index_select(0, on_host)
            terms = self.phase.observe(Batch(of_batch, images, self.view(images), known, ids), optimizer)
            progress.steps.append(terms)
            progress.step += 1
            self.steps_done += 1
            yield terms

    def draw_order(self) -> Tensor:
        """The epoch's order, on the host; a resume draws the same order again."""
        progress, generator = self.progress, self.generator
        now = generator.get_state()
        if progress.order is None:
            progress.order = now
        generator.set_state(progress.order)
        if self.phase.weights is not None:
            weights = self.phase.weights.cpu()
            order = weights.multinomial(len(weights), replacement=True, generator=generator)
        else:
            order = torch.randperm(len(self.data), generator=generator)
        if progress.step:  # resumed epoch: others may have drawn from the generator after the order
            generator.set_state(now)
        return torch.arange(len(self.data)) if self.in_order else order

    def position(self) -> Position:
        """The position after a step."""
        epoch, step = self.progress.epoch, self.progress.step - 1
        where = (self.task.index, epoch, step, self.num_steps, self.phase.name)
        return Position(*where, self.steps_done, self.steps_expected)

    def end_epoch(self) -> dict[str, float]:
        """Close the epoch; returns the mean of each term."""
        progress, of_phase = self.progress, "" if self.phase.name == MAIN else f", {self.phase.name}"
        means = mean_terms(
            progress.steps, f"task {self.task.index + 1}{of_phase}, epoch {progress.epoch + 1}"
        )
        if self.phase.name == MAIN:
            progress.history.append(means)
        progress.epoch, progress.step, progress.order, progress.steps = progress.epoch + 1, 0, None, []
        return means


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
    listener: Listener | None = None,
) -> list[dict[str, float]]:
    """Learn one task; returns the mean of each loss term of the main phase, an entry an epoch.

    Without a `rate` the optimiser keeps its own. `drop_last` leaves out a short batch at an epoch's end.
    A phase with an optimiser of its own does not use `optimizer`.
    """
    keep_freed_memory()
    method.train()
    task, progress = method.begin_task(task), TaskProgress()
    defaults = PhaseDefaults(view, epochs, batch_size, generator, rate, drop_last)
    for phase in method.phases(task):
        progress.begin_phase(phase.name)
        if phase.begin:
            phase.begin()
        loop = PhaseLoop(method, task, phase, defaults, progress)
        chosen = phase.make_optimizer(method.net, lambda parameters: optimizer)
        with with_gradients(chosen, phase.parameters is not None):
            while loop.is_open:
                train_epoch(loop, chosen, listener or Listener())
    method.end_task(task)
    return progress.history


def train_epoch(
    loop: PhaseLoop, optimizer: Optimizer, listener: Listener, after_step: Callable[[], None] = lambda: None
) -> None:
    """Train the rest of an epoch and report it."""
    began = time.perf_counter()
    for terms in loop.steps(optimizer):
        listener.on_step(loop.position(), dict(terms))
        after_step()
    position, rate = loop.position(), float(optimizer.param_groups[0]["lr"])
    listener.on_epoch(position, loop.end_epoch(), rate, time.perf_counter() - began)


def place(split: Split, device: torch.device) -> Split:
    """Move the data to the device, unless they are too large."""
    return split.to(device) if split.inputs.nbytes <= RESIDENT_BYTES else split


def steps_in_epoch(num_samples: int, batch_size: int, drop_last: bool = False) -> int:
    """At least one: a short batch is left out only if there is a full one."""
    return max(1, num_samples // batch_size) if drop_last else ceil(num_samples / batch_size)


def mean_terms(steps: list[Terms], where: str) -> dict[str, float]:
    """The mean of each term over the steps that had it; the only host sync of the epoch."""
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

    With all seen classes as candidates this is Class-IL, with the task's own classes Task-IL. `ask` replaces
    the method's default predictor by another one.
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
