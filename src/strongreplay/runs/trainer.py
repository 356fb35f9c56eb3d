"""Course: a stream on its way through a method, step by step, and all of it as one state."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strongreplay import metrics
from strongreplay.data.streams import Stream, accumulate, build_stream
from strongreplay.methods import Method
from strongreplay.nets import make_net
from strongreplay.protocol import Problem, Task, View, derive_generator
from strongreplay.runs.config import RunConfig, TrainConfig
from strongreplay.training.engine import (
    NonFiniteError,
    Position,
    TaskProgress,
    evaluate,
    steps_in_epoch,
    train_task,
)
from strongreplay.training.resources import Meter

Predictor = Callable[[Tensor], Tensor]
Scores = dict[str, list[float | None]]  # by scenario: one row of an accuracy matrix


class Watcher:
    """What a run tells while it goes on; the default looks away."""

    def loading(self, what: str, done: int, total: int) -> None:
        """A slow part of reading the data."""

    def begin(self, num_steps: int, num_tasks: int, steps_done: int = 0) -> None:
        """A task is about to be learnt, and the whole run is expected to have so many steps."""

    def step(self, position: Position) -> None:
        """After every training step: be quick."""

    def evaluated(self, index: int, scores: Scores) -> None:
        """After a task was learnt and all tasks so far were tested."""

    def told(self, text: str) -> None:
        """Something a person may want to know, such as where a run goes on."""

    def wants_stop(self) -> bool:
        """Asked after every step: True makes the run keep its state and leave."""
        return False


@dataclass
class ScoreTable:
    """The scores of one of a method's nets: before the first task, and after each."""

    ask: Predictor | None  # none: the one that the method predicts with
    untrained: Scores = field(default_factory=dict)
    rows: list[Scores] = field(default_factory=list)


class Trainer:
    """Built from a config, or built and then loaded with the state of another one of the same config."""

    def __init__(
        self, config: RunConfig, folder: Path | None, device: torch.device, watcher: Watcher
    ) -> None:
        self.config, self.device, self.watcher = config, device, watcher
        self.meter, self.started = Meter(), datetime.now(UTC).isoformat()
        with self.meter("data"):
            self.stream = make_stream(config, folder, watcher)
        on_union = config.row.on_union
        self.lessons = accumulate(self.stream) if on_union else self.stream
        # Replayed images are augmented by draws of their own, which leave the stream's views alone.
        names = ("order", "views", "replayed views")
        self.generators = {name: derive_generator(config.seed, name) for name in names}
        self.view = self.stream.train_view(self.generators["views"])
        replayed = self.stream.train_view(self.generators["replayed views"])
        self.method = make_method(config, self.stream, replayed).to(device)
        self.optimizer: torch.optim.Optimizer | None = None
        self.boards = {"": ScoreTable(None)} | {
            name: ScoreTable(ask) for name, ask in self.method.predictors().items()
        }
        self.index, self.learnt = 0, False  # the task at hand, and whether only its judgement is missing
        self.progress: TaskProgress | None = None  # within the task
        self.steps_done = self.steps_total = 0
        self.terms: list[list[dict[str, float]]] = []
        self.restore: Callable[[], None] | None = None
        self.pause: Callable[[], None] = lambda: None  # called at every moment when the state can be kept

    def go(self) -> None:
        """From where it stands to the end."""
        for board in self.boards.values():
            if not board.untrained:
                board.untrained = self.score(range(len(self.stream)), -1, board.ask)
        while self.index < len(self.lessons):
            if not self.learnt:
                self.learn()
            self.judge()
            self.index, self.learnt = self.index + 1, False

    def learn(self) -> None:
        with self.meter("data"):
            task = self.lessons[self.index]
        train = self.config.train
        if self.progress is None:
            self.progress = TaskProgress()
            if self.optimizer is None or not train.keep_momentum:
                self.optimizer = make_optimizer(self.method, train)
        assert self.optimizer is not None
        with self.meter("train"):
            terms = train_task(
                self.method,
                task,
                self.view,
                self.optimizer,
                epochs=train.epochs_of(self.index),
                batch_size=train.batch_size,
                generator=self.generators["order"],
                rate=train.rate_of(self.index),
                drop_last=bool(train.drop_last),
                on_step=self.count,
                on_begin=self.announce,
                progress=self.progress,
                restore=self.restore,
            )
        self.terms.append(terms)
        self.progress, self.restore, self.learnt = None, None, True
        self.check_finite()
        self.pause()

    def judge(self) -> None:
        """Test all tasks so far and one ahead: that is what forward transfer is made of."""
        learnt = len(self.stream) - len(self.lessons) + self.index
        last = min(learnt + 2, len(self.stream))
        rows = [self.score(range(last), learnt, board.ask) for board in self.boards.values()]
        for board, row in zip(self.boards.values(), rows, strict=True):
            board.rows.append(row)
        self.watcher.evaluated(self.index, rows[0])

    def score(self, tasks: range, learnt: int, ask: Predictor | None) -> Scores:
        """A row of each accuracy matrix; a task not learnt yet is judged among the classes up to its own."""
        config, stream = self.config.eval, self.stream
        row: Scores = {name: [None] * len(stream) for name in scenarios_of(stream)}
        for task in tasks:
            known = range(len(stream)) if config.candidates == "all" else range(max(learnt, task) + 1)
            seen = tuple(sorted({label for t in known for label in stream.task_classes[t]}))
            candidates = (seen, stream.task_classes[task]) if stream.scenario == "class-il" else (seen,)
            with self.meter("evaluate"):
                split, size = stream.test(task), config.batch_size
                accuracies = evaluate(
                    self.method, split, stream.test_view, *candidates, batch_size=size, ask=ask
                )
            for name, accuracy in zip(row, accuracies, strict=True):
                row[name][task] = accuracy
            self.pause()
        return row

    def announce(self, task: Task) -> None:
        """Say how many steps there will be, if all tasks that follow are as large as this one."""
        train, progress = self.config.train, self.progress or TaskProgress()
        size = self.method.stream_batch_size(train.batch_size)
        steps = steps_in_epoch(len(task.train), size, bool(train.drop_last))
        before = self.steps_done - progress.epoch * steps - progress.step
        epochs = sum(train.epochs_of(number) for number in range(self.index, len(self.lessons)))
        self.steps_total = before + steps * epochs
        self.watcher.begin(self.steps_total, len(self.lessons), self.steps_done)

    def count(self, position: Position) -> None:
        self.steps_done += 1
        self.watcher.step(position)
        self.pause()

    def check_finite(self) -> None:
        """Weights that are not numbers end a run; asked once a task and before each checkpoint."""
        values = [p.detach().abs().max() for p in self.method.net.parameters() if p.numel()]
        terms = [term for step in (self.progress.steps if self.progress else []) for term in step.values()]
        if not torch.stack(values + terms).isfinite().all():
            raise NonFiniteError(
                f"task {self.index + 1}: weights or loss are not finite after step {self.steps_done}; "
                "lower train.lr or the weight of a term"
            )

    def state(self) -> dict[str, Any]:
        """Everything that decides what comes next, and what is known so far."""
        # Between tasks the optimiser is done with, and the net may already have grown beyond it.
        optimizer = self.optimizer if self.progress or self.config.train.keep_momentum else None
        return {
            "method": dict(self.method.state_dict()),
            "optimizer": optimizer.state_dict() if optimizer else None,
            "generators": {name: generator.get_state() for name, generator in self.generators.items()},
            "index": self.index,
            "learnt": self.learnt,
            "progress": self.progress.state() if self.progress else None,
            "steps_done": self.steps_done,
            "terms": self.terms,
            "boards": {name: [board.untrained, board.rows] for name, board in self.boards.items()},
            "started": self.started,
            "phases": self.meter.phases,
        }

    def load(self, state: dict[str, Any]) -> None:
        def restore() -> None:
            self.method.load_state_dict(state["method"])
            for name, generator in self.generators.items():
                generator.set_state(state["generators"][name])

        restore()
        if state["optimizer"] is not None:
            self.optimizer = make_optimizer(self.method, self.config.train)
            self.optimizer.load_state_dict(state["optimizer"])
        self.index, self.learnt, self.steps_done = state["index"], state["learnt"], state["steps_done"]
        if state["progress"] is not None:
            self.progress, self.restore = TaskProgress.of_state(state["progress"], self.device), restore
        self.terms, self.started, self.meter.phases = state["terms"], state["started"], state["phases"]
        for name, (untrained, rows) in state["boards"].items():
            self.boards[name].untrained, self.boards[name].rows = untrained, rows

    def results(self) -> dict[str, Any]:
        """What the configuration determines, as far as it is known."""
        accuracy = {name: summarise(board) if board.rows else {} for name, board in self.boards.items()}
        results: dict[str, Any] = {"accuracy": accuracy.pop(""), "terms": self.terms}
        return results | ({"accuracy_of": accuracy} if accuracy else {})


def make_stream(config: RunConfig, folder: Path | None, watcher: Watcher) -> Stream:
    return build_stream(config.stream, config.seed, folder, watcher.loading, config.data.options)


def make_method(config: RunConfig, stream: Stream, replayed_view: View) -> Method:
    """Net and method of a config, initial weights drawn from its seed."""
    net = make_net(
        config.net.name,
        stream.input_shape,
        stream.num_classes,
        derive_generator(config.seed, "net"),
        config.code.get("net"),
        **config.net.options,
    )
    problem = Problem(stream.num_classes, len(stream), replayed_view, stream.test_view, config.seed)
    return config.row.build(net, problem, config.method)


def make_optimizer(method: Method, train: TrainConfig) -> torch.optim.Optimizer:
    """A new one for every task, as in the reference, unless momentum is kept."""
    return torch.optim.SGD(
        method.net.parameters(),
        lr=train.lr,
        momentum=train.momentum,
        weight_decay=train.weight_decay,
        nesterov=bool(train.nesterov),
    )


def scenarios_of(stream: Stream) -> tuple[str, ...]:
    return ("class-il", "task-il") if stream.scenario == "class-il" else ("domain-il",)


def summarise(board: ScoreTable) -> dict[str, Any]:
    """Each scenario's matrix and what it amounts to."""
    summary, untrained = {}, board.untrained
    for scenario in untrained:
        table = [row[scenario] for row in board.rows]
        matrix, before = metrics.as_matrix(table), metrics.as_matrix([untrained[scenario]])[0]
        summary[scenario] = {
            "matrix": table,
            "untrained": untrained[scenario],
            **metrics.compute_all(matrix, before),
        }
    return summary
