"""Stopping and going on as a person does it: signals, ser resume, ser state."""

import json
import os
import signal
import time
from glob import glob
from pathlib import Path

import pytest
from support.processes import ForkedSer as start
from support.processes import run_ser as ser

RUN = ["run", "split-digits", "-m", "ser", "--memory", "20", "--threads", "1", "--device", "cpu", "-o", "out"]
LONG = ["--set", "train.epochs=2000"]  # minutes: never gets to its end here


def wait_for(folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 60
    while not glob(f"**/{pattern}", root_dir=folder, recursive=True):  # what is renamed meanwhile is no error
        assert time.monotonic() < deadline, f"no {pattern} after a minute"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A long run that was asked to stop by SIGTERM, as schedulers do it."""
    folder = tmp_path_factory.mktemp("stopped")
    process = start(folder, *RUN, *LONG, "--checkpoint-every", "20")
    wait_for(folder, "manifest.json")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "Resume with the same command, or with: ser resume out" in " ".join(said.split())
    assert "Traceback" not in said
    return folder


@pytest.mark.slow
def test_the_state_can_be_inspected_and_verified(stopped: Path) -> None:
    told = ser(stopped, "state", "inspect", "out")
    assert told.returncode == 0, told.stderr
    for piece in ("split-digits ser, memory 20, seed 0", "after step", "task 1 of 5", "sha256", "MB"):
        assert piece in told.stdout
    assert "good" in ser(stopped, "state", "verify", "out").stdout


def test_states_are_no_records_and_no_damaged_ones_either(stopped: Path) -> None:
    told = ser(stopped, "compare", "out")
    assert told.returncode == 1
    assert "no records in out" in told.stderr
    assert "manifest.json" not in told.stderr


@pytest.mark.slow
def test_a_second_signal_leaves_at_once_and_the_last_checkpoint_is_good(tmp_path: Path) -> None:
    process = start(tmp_path, *RUN, *LONG, "--checkpoint-every", "5")
    wait_for(tmp_path, "manifest.json")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)
    assert ser(tmp_path, "state", "verify", "out").returncode == 0


@pytest.mark.slow
def test_a_second_process_is_kept_off_with_the_first_ones_host_and_pid(tmp_path: Path) -> None:
    first = start(tmp_path, *RUN, *LONG)
    wait_for(tmp_path, "lock")
    second = ser(tmp_path, *RUN, *LONG)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    assert second.returncode == 1
    assert f"process {first.pid} on {os.uname().nodename}" in " ".join(second.stderr.split())


@pytest.mark.slow
def test_killed_and_resumed_by_command_it_ends_with_the_same_record(tmp_path: Path) -> None:
    words = [*RUN, "--set", "train.epochs=10", "--checkpoint-every", "10"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    assert ser(whole, *words).returncode == 0
    process = start(killed, *words)
    wait_for(killed, "state-0*")  # it has such a name once it is whole; the newest two stay
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    resumed = ser(killed, "resume", "out")
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming after step" in resumed.stderr
    first, second = (json.loads(next(folder.rglob("seed-0.json")).read_text()) for folder in (whole, killed))
    assert first["results"] == second["results"]
    assert first["config"] == second["config"]
    assert not list(killed.rglob("*.state"))  # the record is there, so the state is not needed any more


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["resume", "."], 2, "no stopped run in there"),
        (["state", "inspect", "."], 1, "no checkpoints in there"),
        (["state", "verify", "nowhere"], 1, "no checkpoints in there"),
        (
            [*RUN, "--checkpoint-every", "soon"],
            2,
            "--checkpoint-every takes 5m, 90s, 2h or a number of steps",
        ),
        ([*RUN, "--checkpoint-every", "0"], 2, "--checkpoint-every takes"),
    ],
)
def test_mistakes(words: list[str], code: int, message: str, tmp_path: Path) -> None:
    result = ser(tmp_path, *words)
    assert result.returncode == code
    assert message in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named(stopped: Path) -> None:
    newest = sorted(stopped.rglob("tree.json"))[-1]
    newest.write_text(newest.read_text()[:-1])
    result = ser(stopped, "state", "verify", "out")
    assert result.returncode == 1
    assert "damaged" in result.stderr
    assert "tree.json" in result.stderr
