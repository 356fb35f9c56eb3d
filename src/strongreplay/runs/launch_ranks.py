"""The ranks of one run on this machine: this process is the first, the others are started for the run.

Each started process reads its RunSpec from its input, prints "ready", and makes the same run; if it fails,
it prints why. Its input stays open until the end, so that it ends with this process, whatever happens.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from strongreplay.errors import ConfigError, RunError
from strongreplay.training.devices import find_device
from strongreplay.training.parallel import (
    LostRank,
    Ranks,
    device_of,
    join_file,
    join_torchrun,
    under_torchrun,
)

RANK_PROCESS = "strongreplay.runs.rank_process"
READY = "ready"
GRACE_SECONDS = 20.0  # for a process to end by itself


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What all ranks of a run need to know."""

    config: dict[str, Any]
    source: str
    device: str
    folder: Path | None
    out: Path | None
    resume: bool

    def to_line(self, rank: int, size: int, meeting: Path, threads: int) -> str:
        paths = {"folder": self.folder and str(self.folder), "out": self.out and str(self.out)}
        values = {"config": self.config, "source": self.source, "device": self.device, "resume": self.resume}
        ranks = {"rank": rank, "size": size, "meeting": str(meeting), "threads": threads}
        return json.dumps(values | paths | ranks) + "\n"


@contextmanager
def gather_ranks(spec: RunSpec, devices: int) -> Iterator[tuple[Ranks, torch.device]]:
    """The ranks that make a run, and the device of this one."""
    if devices < 1:
        raise ConfigError(f"a run needs at least one device, got {devices}")
    if under_torchrun():
        if devices > 1:
            raise ConfigError(
                f"torchrun has already started the processes of this run; leave out --devices {devices}"
            )
        yield join_torchrun(spec.device)
    elif devices == 1:
        yield Ranks(), find_device(spec.device)
    else:
        device_of(spec.device, devices - 1)
        with tempfile.TemporaryDirectory(prefix="strongreplay-") as folder:
            yield from lead(spec, devices, Path(folder) / "meeting")


def lead(spec: RunSpec, size: int, meeting: Path) -> Iterator[tuple[Ranks, torch.device]]:
    """Start the other ranks, join them, and end them."""
    before = torch.get_num_threads()
    threads = max(1, before // size) if find_device(spec.device).type == "cpu" else before
    processes = [RankProcess(rank, spec.to_line(rank, size, meeting, threads)) for rank in range(1, size)]
    torch.set_num_threads(threads)
    try:
        for process in processes:
            process.expect_ready()
        ranks, place = join_file(meeting, 0, size, spec.device)
        try:
            yield ranks, place
        except LostRank as error:
            reasons = [reason for process in processes if (reason := process.reason())]
            raise (
                RunError(f"{reasons[0]}; the same command resumes from the last checkpoint")
                if reasons
                else error
            ) from None
        for process in processes:
            process.wait()
    finally:
        torch.set_num_threads(before)
        for process in processes:
            process.end()


class RankProcess:
    """Another process of the run."""

    def __init__(self, rank: int, line: str) -> None:
        self.rank = rank
        self.process = subprocess.Popen(
            [sys.executable, "-m", RANK_PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdin
        with suppress(OSError):  # it has ended already; expect_ready finds out
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def expect_ready(self) -> None:
        if (said := self.read_line()) != READY:
            raise RunError(self.reason(said) or f"rank {self.rank} did not start: {said}")

    def read_line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def wait(self) -> int | None:
        """The exit code, or None if it does not end by itself."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(GRACE_SECONDS)
        return None

    def reason(self, said: str = "") -> str:
        """Why it ended; empty if it ended because of another rank, or has not ended."""
        from strongreplay.runs.workers import exit_reason

        code = self.wait()
        if code is None:
            return ""
        said = said or self.read_line()
        return said if said else exit_reason(code) if code < 0 else ""

    def end(self) -> None:
        """Closing its input ends it."""
        assert self.process.stdin
        assert self.process.stdout
        with suppress(OSError):
            self.process.stdin.close()
        if self.wait() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
