"""Checkpoints: where the state of a training is written, and how often."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strongreplay.errors import ConfigError
from strongreplay.storage.state import write_checkpoint

# Seconds: length of a long run; time to measure before its length is estimated; time between checkpoints.
LONG, CALIBRATION, USUAL = 600.0, 20.0, 300.0


@dataclass(frozen=True, slots=True)
class CheckpointInterval:
    """How often a checkpoint is written, in seconds or in steps."""

    seconds: float | None = None
    steps: int | None = None

    @classmethod
    def parse(cls, text: str) -> "CheckpointInterval":
        """Parse 5m, 90s, 2h, or a number of steps."""
        units = {"s": 1.0, "m": 60.0, "h": 3600.0}
        number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "")
        try:
            value = float(number) if unit else int(number)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            raise ConfigError(f"--checkpoint-every takes 5m, 90s, 2h or a number of steps, got '{text}'")
        return cls(seconds=value * units[unit]) if unit else cls(steps=int(value))


class Checkpoints:
    """The checkpoints of one training in a folder.

    Without an interval, one is written every 5 minutes if the training is estimated to take more than 10.
    `about` describes the training in the checkpoint's manifest, which also holds the position.
    """

    def __init__(
        self,
        folder: Path,
        interval: CheckpointInterval | None = None,
        about: dict[str, Any] | None = None,
        remedy: str = "make room or choose another folder with --out",
    ) -> None:
        self.folder, self.interval, self.about, self.remedy = folder, interval, about or {}, remedy
        self.newest: Path | None = None
        self.first_step = self.last_step = 0
        self.began = self.last_time = time.monotonic()

    def start_from(self, steps_done: int, path: Path) -> None:
        """Continue training from a checkpoint."""
        self.first_step = self.last_step = steps_done
        self.newest = path

    def is_due(self, steps_done: int, steps_expected: int) -> bool:
        now, interval = time.monotonic(), self.interval
        if interval and interval.steps:
            return steps_done - self.last_step >= interval.steps
        if interval and interval.seconds:
            return now - self.last_time >= interval.seconds
        spent, done = now - self.began, steps_done - self.first_step
        if spent < CALIBRATION or not done:
            return False
        return now - self.last_time >= USUAL and spent / done * steps_expected > LONG

    def write(self, state: dict[str, Any], position: dict[str, Any]) -> Path:
        about = self.about | position
        self.newest = write_checkpoint(self.folder, state, about, remedy=self.remedy)
        self.last_time, self.last_step = time.monotonic(), position["step"]
        return self.newest
