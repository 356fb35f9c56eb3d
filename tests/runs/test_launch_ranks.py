"""A run on several devices of this machine: ranks are killed, and other numbers of ranks resume the run."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.processes import SER, run_ser
from support.ranks import distance

from strongreplay.errors import ConfigError, RunError
from strongreplay.runs.config import RunConfig, resolve
from strongreplay.runs.run import run, state_folder
from strongreplay.storage.checkpoints import checkpoints
from strongreplay.storage.records import read_record, record_path
from strongreplay.training.events import Listener, Position

SETTINGS = {"data.tasks": "2", "net.width": "16", "train.epochs": "2", "train.batch_size": "63"}
WORDS = ["run", "split-digits", "--method", "ser", "--memory", "30", "--device", "cpu", "--threads", "2"]
WORDS += [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]


def small_config() -> RunConfig:
    return resolve("split-digits", "ser", 30, settings=SETTINGS)


def children(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def lives(process: int) -> bool:
    """Whether it runs; an ended one may wait for a new parent to take note."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class KillsAnother(Listener):
    """Ends the last process of the run after so many steps."""

    def __init__(self, after: int) -> None:
        self.left, self.killed_at = after, 0.0

    def on_step(self, position: Position, terms: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.killed_at = time.monotonic()
            os.kill(children(os.getpid())[-1], signal.SIGKILL)


def torchrun(out: Path, *words: str) -> subprocess.Popen[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    command = [sys.executable, "-m", "torch.distributed.run", *meeting, "-m", "strongreplay", *WORDS, *words]
    return subprocess.Popen([*command, "-o", str(out)], stdout=-1, stderr=-1, text=True)


@pytest.mark.slow
def test_a_killed_rank_ends_all_and_the_run_resumes_to_the_same_results(tmp_path: Path) -> None:
    config = small_config()
    place = state_folder(tmp_path, config)

    # Under torchrun, a rank is killed once there is a checkpoint.
    started = torchrun(tmp_path, "--checkpoint-every", "4")
    while not checkpoints(place) and started.poll() is None:
        time.sleep(0.02)
    ranks = children(started.pid)
    os.kill(ranks[-1], signal.SIGKILL)
    killed_at = time.monotonic()
    started.communicate(timeout=60)
    assert started.returncode != 0
    assert time.monotonic() - killed_at < 20
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    assert not record_path(tmp_path, config.to_dict()).exists()
    assert checkpoints(place)

    # Resumed by three ranks, this process and two more; the last one is killed.
    listener, before = KillsAnother(after=5), children(os.getpid())
    with pytest.raises(RunError, match=r"ended by SIGKILL.*resumes from the last checkpoint"):
        run(config, out=tmp_path, resume=True, checkpoint_every="2", devices=3, listeners=[listener])
    assert time.monotonic() - listener.killed_at < 20
    assert children(os.getpid()) == before

    # Resumed by torchrun to the end: what one process finds, and written and said once.
    finished = torchrun(tmp_path)
    said, _ = finished.communicate(timeout=120)
    assert finished.returncode == 0
    assert said.count("SER ") == 1
    assert not place.exists()
    record, alone = read_record(record_path(tmp_path, config.to_dict())), run(config)
    assert record.measured["hardware"]["ranks"] == 2
    assert distance(alone.results, record.results) < 1e-6


@pytest.mark.slow
def test_the_command_goes_on_on_two_devices_after_its_first_rank_was_killed(tmp_path: Path) -> None:
    config = small_config()
    place, out = state_folder(tmp_path, config), ("--devices", "2", "-o", str(tmp_path))
    command = [*SER, *WORDS, "--checkpoint-every", "4", *out]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not checkpoints(place) and first.poll() is None:
        time.sleep(0.02)
    others = children(first.pid)
    assert others
    first.kill()
    first.wait()
    deadline = time.monotonic() + 20
    while any(map(lives, others)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(lives, others))
    assert checkpoints(place)
    path = record_path(tmp_path, config.to_dict())
    assert not path.exists()

    resumed = run_ser(tmp_path, *WORDS, *out)
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming" in resumed.stderr
    record, alone = read_record(path), run(config)
    assert record.measured["hardware"]["ranks"] == 2
    assert distance(alone.results, record.results) < 1e-6
    assert not place.exists()


def test_a_number_of_devices_is_checked() -> None:
    with pytest.raises(ConfigError, match="a run needs at least one device, got 0"):
        run(small_config(), devices=0)
    with pytest.raises(ConfigError, match="'cpu:0' is one device; several ranks need"):
        run(small_config(), device="cpu:0", devices=2)
