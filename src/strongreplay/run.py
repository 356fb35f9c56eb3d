"""run: one RunConfig in, one RunRecord out. Wiring, seeds, time and progress; it writes no files."""

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strongreplay import __version__, metrics
from strongreplay.config import RunConfig, TrainConfig
from strongreplay.data.streams import Stream, accumulate, build_stream, first_tasks, hold_out
from strongreplay.engine import NonFiniteError, Position, evaluate, steps_in_epoch, train_task
from strongreplay.errors import ConfigError, RunError
from strongreplay.meter import Meter
from strongreplay.methods import METHODS, Method
from strongreplay.nets import build_net
from strongreplay.records import RunRecord
from strongreplay.types import Problem, Task, derive_generator

Predictor = Callable[[Tensor], Tensor]
Scores = dict[str, list[float | None]]  # by setting: one row of an accuracy matrix


class Watcher:
    """What a run tells while it goes on; the default looks away."""

    def loading(self, what: str, done: int, total: int) -> None:
        """A slow part of reading the data."""

    def begin(self, num_steps: int, num_tasks: int) -> None:
        """A task is about to be learnt, and the whole run is expected to have so many steps."""

    def step(self, position: Position) -> None:
        """After every training step: be quick."""

    def evaluated(self, index: int, scores: Scores) -> None:
        """After a task was learnt and all tasks so far were tested."""


class StoppedRun(RunError):
    """A run that could not go on, with the results it had until then."""

    def __init__(self, message: str, record: RunRecord) -> None:
        super().__init__(message)
        self.record = record


def run(
    config: RunConfig, *, folder: Path | None = None, device: str = "cpu", watcher: Watcher | None = None
) -> RunRecord:
    """Learn the whole stream with one seed; the same config gives the same results to the bit."""
    course = Course(config, folder, find_device(device), watcher or Watcher())
    for index in range(len(course.lessons)):
        try:
            course.learn(index)
        except NonFiniteError as error:
            raise StoppedRun(str(error), course.record()) from None
        course.judge(index)
    return course.record()


@dataclass
class Board:
    """The scores of one of a method's nets: before the first task, and after each."""

    ask: Predictor | None  # none: the one that the method predicts with
    untrained: Scores = field(default_factory=dict)
    rows: list[Scores] = field(default_factory=list)


class Course:
    """A stream on its way through a method."""

    def __init__(
        self, config: RunConfig, folder: Path | None, device: torch.device, watcher: Watcher
    ) -> None:
        self.config, self.device, self.watcher = config, device, watcher
        self.meter, self.started = Meter(), datetime.now(UTC)
        with self.meter("data"):
            self.stream = make_stream(config, folder, watcher)
        on_union = METHODS[config.method_name].on_union
        self.lessons = accumulate(self.stream) if on_union else self.stream
        self.view = self.stream.train_view(derive_generator(config.seed, "views"))
        self.order = derive_generator(config.seed, "order")
        self.method = make_method(config, self.stream).to(device)
        self.optimizer: torch.optim.Optimizer | None = None
        self.steps_done = 0
        self.terms: list[list[dict[str, float]]] = []
        self.boards = {"": Board(None)} | {name: Board(ask) for name, ask in self.method.predictors().items()}
        for board in self.boards.values():
            board.untrained = self.score(range(len(self.stream)), -1, board.ask)

    def learn(self, index: int) -> None:
        with self.meter("data"):
            task = self.lessons[index]
        train = self.config.train
        if self.optimizer is None or not train.keep_momentum:
            self.optimizer = make_optimizer(self.method, train)
        self.watcher.begin(self.steps_done + self.steps_ahead(task, index), len(self.lessons))
        with self.meter("train"):
            terms = train_task(
                self.method,
                task,
                self.view,
                self.optimizer,
                epochs=train.epochs_of(index),
                batch_size=train.batch_size,
                generator=self.order,
                rate=train.rate_of(index),
                drop_last=bool(train.drop_last),
                on_step=self.count,
            )
        self.terms.append(terms)

    def judge(self, index: int) -> None:
        """Test all tasks so far and one ahead: that is what forward transfer is made of."""
        learnt = len(self.stream) - len(self.lessons) + index
        last = min(learnt + 2, len(self.stream))
        for board in self.boards.values():
            board.rows.append(self.score(range(last), learnt, board.ask))
        self.watcher.evaluated(index, self.boards[""].rows[-1])

    def score(self, tasks: range, learnt: int, ask: Predictor | None) -> Scores:
        with self.meter("evaluate"):
            return score_tasks(self.method, self.stream, self.config, tasks, learnt, ask)

    def count(self, position: Position) -> None:
        self.steps_done += 1
        self.watcher.step(position)

    def steps_ahead(self, task: Task, index: int) -> int:
        """From this task on, if all that follow are as large."""
        train = self.config.train
        size = self.method.arriving(train.batch_size)
        steps = steps_in_epoch(len(task.train), size, bool(train.drop_last))
        return steps * sum(train.epochs_of(number) for number in range(index, len(self.lessons)))

    def record(self) -> RunRecord:
        """What there is so far."""
        accuracy = {name: summarise(board) if board.rows else {} for name, board in self.boards.items()}
        results: dict[str, Any] = {"accuracy": accuracy.pop(""), "terms": self.terms}
        if accuracy:
            results["accuracy_of"] = accuracy
        measured = describe_machine(self.device)
        measured |= {"started": self.started.isoformat(), "phases": self.meter.phases}
        if self.device.type == "cuda":
            measured["peak_device_memory_bytes"] = torch.cuda.max_memory_allocated(self.device)
        return RunRecord(self.config.to_dict(), results, measured | {"recipe": self.config.source})


def make_stream(config: RunConfig, folder: Path | None, watcher: Watcher) -> Stream:
    stream = build_stream(config.stream, config.seed, folder, watcher.loading)
    if config.data.tasks:
        stream = first_tasks(stream, config.data.tasks)
    return hold_out(stream, config.data.validation, config.seed) if config.data.validation else stream


def make_method(config: RunConfig, stream: Stream) -> Method:
    """Net and method of a config, initial weights drawn from its seed."""
    net = build_net(
        config.net.name,
        stream.input_shape,
        stream.num_classes,
        derive_generator(config.seed, "net"),
        **config.net.options,
    )
    problem = Problem(
        num_classes=stream.num_classes,
        num_tasks=len(stream),
        # Replayed images are augmented by draws of their own, which leave the stream's views alone.
        train_view=stream.train_view(derive_generator(config.seed, "replayed views")),
        test_view=stream.test_view,
        seed=config.seed,
    )
    return METHODS[config.method_name].build(net, problem, config.method)


def make_optimizer(method: Method, train: TrainConfig) -> torch.optim.Optimizer:
    """A new one for every task, as in the reference, unless momentum is kept."""
    return torch.optim.SGD(
        method.net.parameters(),
        lr=train.lr,
        momentum=train.momentum,
        weight_decay=train.weight_decay,
        nesterov=bool(train.nesterov),
    )


def score_tasks(
    method: Method, stream: Stream, config: RunConfig, tasks: range, learnt: int, ask: Predictor | None
) -> Scores:
    """One row of each accuracy matrix; a task not learnt yet is judged among the classes up to its own."""
    row: Scores = {name: [None] * len(stream) for name in settings_of(stream)}
    for task in tasks:
        known = range(len(stream)) if config.eval.candidates == "all" else range(max(learnt, task) + 1)
        seen = tuple(sorted({label for t in known for label in stream.task_classes[t]}))
        candidates = (seen, stream.task_classes[task]) if stream.setting == "class-il" else (seen,)
        split, size = stream.test(task), config.eval.batch_size
        accuracies = evaluate(method, split, stream.test_view, *candidates, batch_size=size, ask=ask)
        for name, accuracy in zip(row, accuracies, strict=True):
            row[name][task] = accuracy
    return row


def settings_of(stream: Stream) -> tuple[str, ...]:
    return ("class-il", "task-il") if stream.setting == "class-il" else ("domain-il",)


def summarise(board: Board) -> dict[str, Any]:
    """Each setting's matrix and what it amounts to."""
    summary, untrained = {}, board.untrained
    for setting in untrained:
        table = [row[setting] for row in board.rows]
        matrix, before = metrics.as_matrix(table), metrics.as_matrix([untrained[setting]])[0]
        whole = len(matrix) == matrix.shape[1]  # not so for joint training, nor before the last task
        summary[setting] = {
            "matrix": table,
            "untrained": untrained[setting],
            "average_accuracy": None if np.isnan(matrix[-1]).any() else metrics.average_accuracy(matrix),
            "forgetting": metrics.forgetting(matrix) if whole else None,
            "forgetting_reference": metrics.forgetting_reference(matrix) if whole else None,
            "backward_transfer": metrics.backward_transfer(matrix) if whole else None,
            "forward_transfer": metrics.forward_transfer(matrix, before) if whole else None,
        }
    return summary


def find_device(name: str) -> torch.device:
    """'auto' is the best there is; anything else must be there."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if not available.get(device.type, False):
        usable = ", ".join(kind for kind, there in available.items() if there)
        raise ConfigError(f"device '{name}' is not available; this machine has {usable}. Use --device auto")
    return device


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Versions and hardware, for the record."""
    packages = {"strongreplay": __version__, "python": platform.python_version(), "torch": torch.__version__}
    return {
        "versions": packages | {"numpy": np.__version__},
        "hardware": {
            "system": f"{platform.system()} {platform.machine()}",
            "processor": processor_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        },
    }


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or sys.platform
