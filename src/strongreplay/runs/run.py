"""run: one RunConfig in, one RunRecord out. Devices, checkpoints, time and what the machine is."""

import os
import platform
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from strongreplay import __version__
from strongreplay.errors import ConfigError, RunError
from strongreplay.runs.config import RunConfig
from strongreplay.runs.trainer import Scores, Trainer, Watcher
from strongreplay.storage.lock import locked
from strongreplay.storage.records import RunRecord, fingerprint, record_path
from strongreplay.storage.state import read_newest, write_checkpoint
from strongreplay.training.devices import find_device
from strongreplay.training.engine import NonFiniteError

__all__ = [
    "CheckpointInterval",
    "Interrupted",
    "Scores",
    "StoppedRun",
    "Watcher",
    "find_device",
    "run",
    "state_folder",
]

CLONE = Path(__file__).resolve().parents[3]  # where this code is part of one
LONG, CALIBRATION, USUAL = (
    600.0,
    20.0,
    300.0,
)  # seconds: a long run, what it takes to tell, between checkpoints


class StoppedRun(RunError):
    """A run that could not go on, with the results it had until then."""

    def __init__(self, message: str, record: RunRecord) -> None:
        super().__init__(message)
        self.record = record


class Interrupted(RunError):
    """A run that was asked to stop and has kept its state."""


@dataclass(frozen=True, slots=True)
class CheckpointInterval:
    """How often a checkpoint is written: so many seconds, or so many steps."""

    seconds: float | None = None
    steps: int | None = None

    @classmethod
    def parse(cls, text: str) -> "CheckpointInterval":
        """5m, 90s, 2h, or a number of steps."""
        units = {"s": 1.0, "m": 60.0, "h": 3600.0}
        number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "")
        try:
            value = float(number) if unit else int(number)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            raise ConfigError(f"--checkpoint-every takes 5m, 90s, 2h or a number of steps, got '{text}'")
        return cls(seconds=value * units[unit]) if unit else cls(steps=int(value))


def run(
    config: RunConfig,
    *,
    folder: Path | None = None,
    device: str = "cpu",
    watcher: Watcher | None = None,
    out: Path | None = None,
    checkpoint_every: str | None = None,
    resume: bool = False,
    keep_state: bool = False,
) -> RunRecord:
    """Learn the whole stream with one seed; the same config gives the same results to the bit.

    With an `out` folder (or `resume`, which means "runs") the state is kept beside where the record belongs:
    every so often, or, if nothing is said, every 5 minutes once the run turns out to take more than 10, and
    whenever the watcher asks to stop. `resume` goes on from there; a run without state begins anew.
    """
    every = CheckpointInterval.parse(checkpoint_every) if checkpoint_every else None
    if out is None and (resume or every or keep_state):
        out = Path("runs")
    place = state_folder(out, config) if out else None
    with locked(place) if place else nullcontext():
        trainer = Trainer(config, folder, find_device(device), watcher or Watcher())
        keeper = Keeper(trainer, place, every)
        if place and resume:
            keeper.resume(place)
        trainer.pause = keeper.pause
        try:
            trainer.go()
        except NonFiniteError as error:
            raise StoppedRun(f"{error}{keeper.last_kept()}", make_record(trainer)) from None
        if keep_state:
            keeper.keep()
    return make_record(trainer)


def state_folder(out: Path, config: RunConfig) -> Path:
    """Where the checkpoints of a run are: beside its record."""
    return record_path(out, config.to_dict()).with_suffix(".state")


class Keeper:
    """Writes checkpoints of a course when it is time to."""

    def __init__(self, trainer: Trainer, folder: Path | None, every: CheckpointInterval | None) -> None:
        self.trainer, self.folder, self.every = trainer, folder, every
        self.first_step = self.last_step = 0
        self.began = self.last_time = time.monotonic()
        self.written: Path | None = None

    def resume(self, folder: Path) -> None:
        trainer, found = self.trainer, read_newest(folder, self.trainer.watcher.told)
        if found is None:
            return
        expected = fingerprint(trainer.config.to_dict())
        if found.manifest.get("config_hash") != expected:
            raise RunError(f"{found.path}: belongs to another configuration than {expected}; remove {folder}")
        try:
            trainer.load(found.tree)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise RunError(f"{found.path}: does not fit this run ({reason}); remove {folder}") from None
        self.first_step = self.last_step = trainer.steps_done
        self.written = found.path
        trainer.watcher.told(
            f"going on after step {trainer.steps_done}, task {trainer.index + 1} ({found.path})"
        )

    def pause(self) -> None:
        stop = self.trainer.watcher.wants_stop()
        if self.folder and (stop or self.due()):
            self.keep()
        if stop:
            kept = f"; its state is kept in {self.folder}" if self.folder else ""
            done, total = self.trainer.steps_done, self.trainer.steps_total
            when = f"after step {done} of {total}" if total else "before the first step"
            raise Interrupted(f"stopped {when}{kept}")

    def due(self) -> bool:
        now, trainer = time.monotonic(), self.trainer
        if self.every and self.every.steps:
            return trainer.steps_done - self.last_step >= self.every.steps
        if self.every and self.every.seconds:
            return now - self.last_time >= self.every.seconds
        spent, done = now - self.began, trainer.steps_done - self.first_step
        if spent < CALIBRATION or not done:
            return False
        return now - self.last_time >= USUAL and spent / done * trainer.steps_total > LONG

    def keep(self) -> None:
        trainer = self.trainer
        trainer.check_finite()  # a checkpoint of numbers that are none would be of no use
        assert self.folder is not None
        with trainer.meter("checkpoint"):
            self.written = write_checkpoint(self.folder, trainer.state(), self.about())
        self.last_time, self.last_step = time.monotonic(), trainer.steps_done

    def about(self) -> dict[str, Any]:
        """What a person or `ser resume` wants to know without reading the rest."""
        trainer = self.trainer
        return {
            "config": trainer.config.to_dict(),
            "config_hash": fingerprint(trainer.config.to_dict()),
            "recipe": trainer.config.source,
            "step": trainer.steps_done,
            "steps_expected": trainer.steps_total,
            "task": min(trainer.index + 1, len(trainer.lessons)),
            "tasks": len(trainer.lessons),
            "threads": torch.get_num_threads(),
            "device": str(trainer.device),
        }

    def last_kept(self) -> str:
        return f". The last checkpoint with finite numbers: {self.written}" if self.written else ""


def make_record(trainer: Trainer) -> RunRecord:
    """What there is so far."""
    measured = describe_machine(trainer.device)
    measured |= {"started": trainer.started, "phases": trainer.meter.phases}
    if trainer.device.type == "cuda":
        measured["peak_device_memory_bytes"] = torch.cuda.max_memory_allocated(trainer.device)
    measured["recipe"] = trainer.config.source
    if trainer.config.row.source_hash:  # tables have no other way to know how a user's method is called
        measured["label"] = trainer.config.row.label
    return RunRecord(trainer.config.to_dict(), trainer.results(), measured)


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Versions and hardware, for the record."""
    packages = {"strongreplay": __version__, "python": platform.python_version(), "torch": torch.__version__}
    return {
        "versions": packages | {"numpy": np.__version__} | source_commit(),
        "hardware": {
            "system": f"{platform.system()} {platform.machine()}",
            "processor": processor_name(),
            "instructions": torch.backends.cpu.get_cpu_capability(),  # another set rounds differently
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        },
    }


def source_commit(clone: Path = CLONE) -> dict[str, str]:
    """The commit this code is of, `-dirty` if it was changed since; nothing where it is not a clone."""
    if not (clone / ".git").exists():  # above an installed package may lie somebody else's
        return {}
    try:
        commit = ask_git(clone, "rev-parse", "--short=12", "HEAD")
        # Records and README change while runs are made; only what is imported decides a result.
        changed = ask_git(clone, "status", "--porcelain", "--untracked-files=no", "src")
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": f"{commit}-dirty" if changed else commit}


def ask_git(clone: Path, *words: str) -> str:
    command = ["git", "-C", str(clone), *words]
    found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return found.stdout.strip()


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or sys.platform
