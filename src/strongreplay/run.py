"""run: one RunConfig in, one RunRecord out. Wiring, seeds, time and progress; it writes no files."""

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from strongreplay import __version__, metrics
from strongreplay.config import RunConfig
from strongreplay.data.streams import Stream, accumulate, build_stream, first_tasks, hold_out
from strongreplay.engine import NonFiniteError, Position, evaluate, train_task
from strongreplay.errors import ConfigError, RunError
from strongreplay.meter import Meter
from strongreplay.methods import METHODS, Method
from strongreplay.nets import build_net
from strongreplay.records import RunRecord
from strongreplay.types import Problem, derive_generator

Scores = dict[str, list[float | None]]  # by setting: one row of an accuracy matrix


class Watcher:
    """What a run tells while it goes on; the default looks away."""

    def loading(self, what: str, done: int, total: int) -> None:
        """A slow part of reading the data."""

    def begin(self, num_steps: int, num_tasks: int) -> None:
        """The data is there; so many steps follow."""

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
    watcher, meter, started = watcher or Watcher(), Meter(), datetime.now(UTC)
    place = find_device(device)
    with meter("data"):
        stream = build_stream(config.stream, config.seed, folder, watcher.loading)
        if config.data.tasks:
            stream = first_tasks(stream, config.data.tasks)
        if config.data.validation:
            stream = hold_out(stream, config.data.validation, config.seed)
    view = stream.train_view(derive_generator(config.seed, "views"))
    method = make_method(config, stream).to(place)
    results: dict[str, Any] = {"accuracy": {}, "terms": []}

    def record() -> RunRecord:
        measured = describe_machine(place) | {"started": started.isoformat(), "phases": meter.phases}
        if place.type == "cuda":
            measured["peak_device_memory_bytes"] = torch.cuda.max_memory_allocated(place)
        return RunRecord(config.to_dict(), results, measured | {"recipe": config.source})

    order = derive_generator(config.seed, "order")
    lessons = accumulate(stream) if METHODS[config.method_name].on_union else stream
    with meter("evaluate"):
        untrained = score_tasks(method, stream, config, range(len(stream)))
    rows: list[Scores] = []
    for index in range(len(lessons)):
        with meter("data"):
            task = lessons[index]
        if index == 0:
            steps = -(-len(task.train) // config.train.batch_size)
            watcher.begin(steps * config.train.epochs * len(lessons), len(lessons))
        optimizer, schedule = make_optimizer(method, config)
        try:
            with meter("train"):
                terms = train_task(
                    method,
                    task,
                    view,
                    optimizer,
                    epochs=config.train.epochs,
                    batch_size=config.train.batch_size,
                    generator=order,
                    schedule=schedule,
                    on_step=watcher.step,
                )
        except NonFiniteError as error:
            raise StoppedRun(str(error), record()) from None
        results["terms"].append(terms)
        # One task ahead is tested too: that is what forward transfer is made of.
        last = len(stream) if lessons is not stream else min(index + 2, len(stream))
        with meter("evaluate"):
            learnt = len(stream) - len(lessons) + index
            rows.append(score_tasks(method, stream, config, range(last), learnt))
        results["accuracy"] = summarise(rows, untrained)
        watcher.evaluated(index, rows[-1])
    return record()


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


def make_optimizer(
    method: Method, config: RunConfig
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.MultiStepLR | None]:
    """A new optimiser and schedule for every task, as in the reference."""
    train = config.train
    optimizer = torch.optim.SGD(
        method.net.parameters(), lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay
    )
    if not train.milestones:
        return optimizer, None
    return optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, list(train.milestones), train.decay)


def score_tasks(method: Method, stream: Stream, config: RunConfig, tasks: range, learnt: int = -1) -> Scores:
    """One row of each accuracy matrix; a task not learnt yet is judged among the classes up to its own."""
    row: Scores = {name: [None] * len(stream) for name in settings_of(stream)}
    for task in tasks:
        known = range(len(stream)) if config.eval.candidates == "all" else range(max(learnt, task) + 1)
        seen = tuple(sorted({label for t in known for label in stream.task_classes[t]}))
        candidates = (seen, stream.task_classes[task]) if stream.setting == "class-il" else (seen,)
        accuracies = evaluate(
            method, stream.test(task), stream.test_view, *candidates, batch_size=config.eval.batch_size
        )
        for name, accuracy in zip(row, accuracies, strict=True):
            row[name][task] = accuracy
    return row


def settings_of(stream: Stream) -> tuple[str, ...]:
    return ("class-il", "task-il") if stream.setting == "class-il" else ("domain-il",)


def summarise(rows: list[Scores], untrained: Scores) -> dict[str, Any]:
    """Each setting's matrix and what it amounts to."""
    summary = {}
    for setting in untrained:
        table = [row[setting] for row in rows]
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
