"""Runs that submitit starts, here as processes of this machine: killed, out of time, stopped."""

import os
import signal
from collections.abc import Iterator
from glob import glob
from pathlib import Path

import pytest
from support.commands import Ser

from strongreplay.runs.config import RunConfig, resolve
from strongreplay.runs.jobs import Job, RunOptions, make_run
from strongreplay.runs.on_slurm import go_on_slurm
from strongreplay.storage.checkpoints import folders_with_state
from strongreplay.storage.records import read_record, record_path

SLOW = """
import time
from strongreplay.methods.er import ER
class Slow(ER):
    def observe(self, batch, optimizer):
        time.sleep(0.02)
        return super().observe(batch, optimizer)
"""


@pytest.fixture(autouse=True)
def heeded_interrupt() -> Iterator[None]:
    """Processes of a command in the background ignore SIGINT, by which submitit's local executor cancels."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """A run of four seconds at least."""
    monkeypatch.chdir(tmp_path)
    Path("slow.py").write_text(SLOW)
    return resolve("split-digits", "slow.py:Slow", 30, settings={"train.epochs": 2, "net.width": 16})


def jobs_in(out: Path) -> list[int]:
    """The processes that make runs for this folder now."""
    found = []
    for place in glob("/proc/[0-9]*"):
        try:
            words = Path(place, "cmdline").read_text().split("\0")
        except OSError:
            continue
        if "submitit.core._submit" in words and str(out / "slurm.logs") in words:
            found.append(int(place.rpartition("/")[2]))
    return found


class Signals:
    """Sends one signal after another, each to a process that has written a checkpoint of its own."""

    def __init__(self, out: Path, *signals: signal.Signals) -> None:
        self.out, self.coming, self.messages = out, list(signals), list[str]()
        self.known, self.stopping = set[str](), False

    def on_tick(self, running: list[Job]) -> None:
        states = {str(one) for one in self.out.rglob("state-*")}
        if self.coming and states - self.known and (processes := jobs_in(self.out)):
            self.known |= states
            if (number := self.coming.pop(0)) == signal.SIGINT:
                self.stopping = True
            else:
                os.kill(processes[0], number)

    def on_message(self, name: str, text: str) -> None:
        self.messages.append(text)

    def wants_stop(self) -> bool:
        return self.stopping

    def go(self, one: RunConfig) -> tuple[str, str]:
        options = RunOptions(self.out, self.out, "cpu", checkpoint_every="5")
        (job,) = go_on_slurm([Job.of(one)], options, 1, 1, self, "local")
        assert job.ended
        return job.ended


@pytest.mark.slow
def test_a_run_that_is_killed_and_then_out_of_time_leaves_a_plain_record(
    slow: RunConfig, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    watch = Signals(out, signal.SIGKILL, signal.SIGUSR2)
    how, said = watch.go(slow)
    assert how == "recorded"
    assert said.startswith("resuming after step")
    killed, out_of_time = watch.messages
    assert "was ended; it goes on in a new job, from its last checkpoint" in killed
    assert out_of_time.startswith("resuming after step")
    assert "stopped after step" in out_of_time
    found = read_record(record_path(out, slow.to_dict()))
    assert found.results == make_run(slow, RunOptions(tmp_path, tmp_path, "cpu")).results
    assert folders_with_state(out) == []


@pytest.mark.slow
def test_a_stop_leaves_no_job_and_keeps_the_state(slow: RunConfig, tmp_path: Path) -> None:
    longer = resolve("split-digits", "slow.py:Slow", 30, settings={"train.epochs": 20, "net.width": 16})
    assert Signals(tmp_path, signal.SIGINT).go(longer)[0] == "stopped"
    assert jobs_in(tmp_path) == []
    assert len(folders_with_state(tmp_path)) == 1


def test_without_slurm_one_line_says_what_is_needed(ser: Ser, tmp_path: Path) -> None:
    said = ser("run", "split-digits", "--on", "slurm", "-o", tmp_path)
    assert said.code == 2
    assert "needed: srun, pip install 'strongreplay[slurm]'" in said.err
