"""run: makes a RunRecord from a RunConfig. The Trainer trains each task; then all tasks so far are tested."""

from collections.abc import Iterable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strongreplay.data.auxiliary import read_auxiliary
from strongreplay.data.streams import Stream, accumulate, build_stream
from strongreplay.errors import ConfigError, RunError
from strongreplay.methods import Method
from strongreplay.nets import make_net
from strongreplay.protocol import Problem, Task, View, derive_generator
from strongreplay.runs.config import RunConfig
from strongreplay.runs.launch_ranks import RunSpec, gather_ranks
from strongreplay.runs.machine import describe_machine
from strongreplay.runs.save_record import save_record
from strongreplay.runs.scores import Predictor, ScoreTable, scenarios_of, summarise
from strongreplay.runs.source_hash import code_hash
from strongreplay.runs.stopped import check_tree
from strongreplay.storage.lock import locked
from strongreplay.storage.records import RunRecord, fingerprint, record_path
from strongreplay.storage.state import read_newest
from strongreplay.training.checkpoints import CheckpointInterval, Checkpoints
from strongreplay.training.devices import find_device
from strongreplay.training.engine import NonFiniteError, evaluate
from strongreplay.training.events import Listener, Listeners, Scores
from strongreplay.training.parallel import LostRank, Ranks
from strongreplay.training.resources import Meter
from strongreplay.training.shared_rows import share_rows
from strongreplay.training.state_check import check_labels
from strongreplay.training.trainer import Interrupted, Trainer, report_loading

__all__ = [
    "CheckpointInterval",
    "Interrupted",
    "StoppedRun",
    "StreamTrainer",
    "find_device",
    "name_of",
    "run",
    "state_folder",
]


class StoppedRun(RunError):
    """A run that ended because its numbers are not finite, with the results up to then."""

    def __init__(self, message: str, record: RunRecord) -> None:
        super().__init__(message)
        self.record = record


def run(
    config: RunConfig,
    *,
    folder: Path | None = None,
    device: str = "cpu",
    listeners: Iterable[Listener] = (),
    out: Path | None = None,
    checkpoint_every: str | None = None,
    resume: bool = False,
    keep_state: bool = False,
    write: bool = False,
    devices: int = 1,
) -> RunRecord:
    """Learn the whole stream with one seed; the same config gives the same results to the bit.

    With an `out` folder (with `resume` the default is "runs"), checkpoints are written beside the record's
    path: as often as `checkpoint_every` says, or every 5 minutes if the run will take more than 10, and when
    a listener asks to stop. `resume` continues from the newest checkpoint; without one the run starts from
    the beginning. `write` writes the record to the folder; if that fails, the state is kept.

    With several `devices`, as many processes of this machine make the run together, with the same results up
    to rounding. Under torchrun, the processes that it started do so.
    """
    interval = CheckpointInterval.parse(checkpoint_every) if checkpoint_every else None
    if out is None and (resume or interval or keep_state or write):
        out = Path("runs")
    spec = RunSpec(config.to_dict(), config.source, device, folder, out, resume)
    with gather_ranks(spec, devices) as (ranks, found):
        return run_here(config, folder, found, ranks, listeners, out, interval, resume, keep_state, write)


def run_here(
    config: RunConfig,
    folder: Path | None,
    device: torch.device,
    ranks: Ranks,
    listeners: Iterable[Listener] = (),
    out: Path | None = None,
    interval: CheckpointInterval | None = None,
    resume: bool = False,
    keep_state: bool = False,
    write: bool = False,
) -> RunRecord:
    """Make a run in this process, together with the other ranks; only the first one writes."""
    place = state_folder(out, config) if out else None
    kept = place if ranks.is_first else None
    checkpoints = Checkpoints(kept, interval, identity(config)) if kept else None
    with locked(kept) if kept else nullcontext():
        trainer = StreamTrainer(config, folder, device, ranks.heard_by(listeners), checkpoints, ranks)
        with trainer.reported():
            if place and resume:
                continue_from(trainer, place)
            ranks.expect_equal("the start of the run", trainer.start_state())
            try:
                trainer.go()
            except Interrupted:
                with suppress(LostRank):
                    ranks.wait_for_all()  # until the state is written
                raise
            except NonFiniteError as error:
                newest = checkpoints.newest if checkpoints else None
                last = f". The last checkpoint with finite numbers: {newest}" if newest else ""
                raise StoppedRun(f"{error}{last}", trainer.record()) from None
            if keep_state and kept:
                trainer.write_checkpoint()
            record = trainer.record()
            if write and out and kept:
                save_record(record, out, trainer.write_checkpoint)
            ranks.wait_for_all()
    return record


def name_of(config: RunConfig, method: str = "") -> str:
    """Such as "split-digits er m200 seed 1"; `method` replaces the method's name, such as by its label."""
    size = getattr(config.method, "memory_size", None)
    memory = "" if size is None else f" m{size}"
    return f"{config.stream} {method or config.method_name}{memory} seed {config.seed}"


def state_folder(out: Path, config: RunConfig) -> Path:
    """The folder of a run's checkpoints, beside its record."""
    return record_path(out, config.to_dict()).with_suffix(".state")


def identity(config: RunConfig) -> dict[str, Any]:
    """The description of the run in a checkpoint's manifest, used by `ser state` and `ser resume`."""
    held = config.to_dict()
    return {"config": held, "config_hash": fingerprint(held), "recipe": config.source}


def continue_from(trainer: "StreamTrainer", folder: Path) -> None:
    """Load the newest complete checkpoint, if there is one."""
    found = read_newest(folder, trainer.listener.on_message)
    if found is None:
        return
    expected = fingerprint(trainer.config.to_dict())
    if found.manifest.get("config_hash") != expected:
        raise RunError(f"{found.path}: belongs to another configuration than {expected}; remove {folder}")
    where = f"step {found.manifest.get('step')}, task {found.manifest.get('task')}"
    trainer.resume(found, f"resuming after {where} ({found.path})", f"remove {folder}")


class StreamTrainer(Trainer):
    """Trains a method on a stream. It is built from a config, and can load a state to resume."""

    kind = "run"

    def __init__(
        self,
        config: RunConfig,
        folder: Path | None,
        device: torch.device,
        listeners: Iterable[Listener] = (),
        checkpoints: Checkpoints | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.config, self.meter, self.started = config, Meter(), datetime.now(UTC).isoformat()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        listener = Listeners(listeners)
        with self.meter("data"):
            loading = report_loading(listener)
            self.stream = build_stream(config.stream, config.seed, folder, loading, config.data.options)
            named, shape = config.data.auxiliary, self.stream.input_shape
            images = None if named is None else read_auxiliary(named, shape, folder, loading)
        if config.row.needs_weights and config.net.options.get("weights") is None:
            listener.on_message(
                f"{config.method_name} trains no weight of its net's body, and these are random; give "
                "pretrained ones: --set net.weights=FILE.safetensors"
            )
        self.training_tasks = accumulate(self.stream) if config.row.on_union else self.stream
        # Replayed images are augmented with their own generator, which does not affect the stream's views.
        names = ("order", "views", "replayed views")
        generators = {name: derive_generator(config.seed, name) for name in names}
        view = self.stream.train_view(generators["views"])
        replayed_view = self.stream.train_view(generators["replayed views"])
        super().__init__(
            make_method(config, self.stream, replayed_view, ranks, images).to(device),
            view,
            self.stream.test_view,
            config.train,
            generators,
            listeners=[listener],
            checkpoints=checkpoints,
            name=name_of(config),
            num_tasks=len(self.training_tasks),
            ranks=ranks,
        )
        if notice := self.method.notice():
            listener.on_message(notice)
        self.scores = {"": ScoreTable(None)} | {
            name: ScoreTable(ask) for name, ask in self.method.predictors().items()
        }
        self.learnt = False  # whether the current task is trained but not yet tested
        self.terms: list[list[dict[str, float]]] = []

    def go(self) -> None:
        """Train and test the remaining tasks."""
        left = self.index < len(self.training_tasks) and not self.learnt
        with self.meter("data"):
            task = self.training_tasks[self.index] if left else None
        self.start(task.train if task else None)
        for table in self.scores.values():
            if not table.untrained:
                table.untrained = self.judge(range(len(self.stream)), -1, table.ask)
        while self.index < len(self.training_tasks):
            if not self.learnt:
                self.learn_next(task)
            task = None
            self.judge_all()
            self.index, self.learnt = self.index + 1, False

    def learn_next(self, task: Task | None) -> None:
        with self.meter("data"):
            task = task or self.training_tasks[self.index]
        with self.meter("train"):
            terms = self.learn(task)
        self.terms.append(terms)
        self.learnt = True
        self.pause()

    def judge_all(self) -> None:
        """Test all tasks so far, and the next one, which forward transfer needs."""
        learnt = len(self.stream) - len(self.training_tasks) + self.index
        last = min(learnt + 2, len(self.stream))
        rows = [self.judge(range(last), learnt, table.ask) for table in self.scores.values()]
        for table, row in zip(self.scores.values(), rows, strict=True):
            table.rows.append(row)
        self.listener.on_task(self.index, {name: list(row) for name, row in rows[0].items()})

    def judge(self, tasks: range, learnt: int, ask: Predictor | None) -> Scores:
        """A row of each accuracy matrix; for a future task the candidates are the classes up to its own."""
        config, stream = self.config.eval, self.stream
        row: Scores = {name: [None] * len(stream) for name in scenarios_of(stream, self.config.row)}
        for task in tasks:
            known = range(len(stream)) if config.candidates == "all" else range(max(learnt, task) + 1)
            seen = tuple(sorted({label for t in known for label in stream.task_classes[t]}))
            candidates = [stream.task_classes[task] if name == "task-il" else seen for name in row]
            with self.meter("evaluate"), self.precision.applied(self.method):
                split, size = stream.test(task), config.batch_size
                accuracies = evaluate(
                    self.method, split, stream.test_view, *candidates, batch_size=size, ask=ask
                )
            for name, accuracy in zip(row, accuracies, strict=True):
                row[name][task] = accuracy
            self.pause()
        return row

    def write_checkpoint(self) -> None:
        with self.meter("checkpoint"):
            super().write_checkpoint()

    def state(self) -> dict[str, Any]:
        """Everything that the next steps depend on, and the results so far."""
        return super().state() | {
            "index": self.index,
            "learnt": self.learnt,
            "steps_done": self.steps_done,
            "terms": self.terms,
            "scores": {name: [table.untrained, table.rows] for name, table in self.scores.items()},
            "started": self.started,
            "measured": self.meter.phases,
        }

    def start_state(self) -> dict[str, Any]:
        """What all ranks of a run must have in common before they begin."""
        return super().state() | {"index": self.index, "learnt": self.learnt, "steps_done": self.steps_done}

    def load(self, state: dict[str, Any], steps_done: int) -> None:
        check_tree(state, len(self.training_tasks))
        super().load(state, steps_done)
        check_labels(self.method, self.stream.num_classes)
        self.index, self.learnt = state["index"], state["learnt"]
        self.terms, self.started = state["terms"], state["started"]
        # Version 0.1 used other names for these two.
        self.meter.phases = state["measured"] if "measured" in state else state["phases"]
        for name, (untrained, rows) in (state["scores"] if "scores" in state else state["boards"]).items():
            self.scores[name].untrained, self.scores[name].rows = untrained, rows

    def record(self) -> RunRecord:
        """The record of the results so far."""
        accuracy = {name: summarise(table) if table.rows else {} for name, table in self.scores.items()}
        results: dict[str, Any] = {"accuracy": accuracy.pop(""), "terms": self.terms}
        if self.stream.label_names:
            results["labels"] = list(self.stream.label_names)
        measured = describe_machine(self.device)
        measured |= {"started": self.started, "phases": self.meter.phases}
        if self.ranks.size > 1:
            measured["hardware"]["ranks"] = self.ranks.size
        if self.device.type == "cuda":
            measured["peak_device_memory_bytes"] = torch.cuda.max_memory_allocated(self.device)
        measured["recipe"] = self.config.source
        if self.config.row.source_hash:  # tables read the label of a user's method from the record
            measured["label"] = self.config.row.label
        measured["versions"]["code"] = code_hash(self.config)
        held = self.config.to_dict()
        return RunRecord(held, results | ({"accuracy_of": accuracy} if accuracy else {}), measured)


def make_method(
    config: RunConfig,
    stream: Stream,
    replayed_view: View,
    ranks: Ranks | None = None,
    auxiliary: Tensor | None = None,
) -> Method:
    """The method of a config with its net; initial weights are drawn from the config's seed."""
    net = make_net(
        config.net.name,
        stream.input_shape,
        stream.num_classes,
        derive_generator(config.seed, "net"),
        config.code.get("net"),
        **config.net.options,
    )
    if ranks and ranks.size > 1:
        if config.train.compile:
            raise ConfigError("train.compile compiles a net for one device; leave it out, or use one device")
        share_rows(net, stream.num_classes, ranks)
    problem = Problem(
        stream.num_classes, len(stream), replayed_view, stream.test_view, config.seed, auxiliary
    )
    return config.row.build(net, problem, config.method)
