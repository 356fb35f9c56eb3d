"""Runs on a Ray cluster of two nodes leave plain records, though a worker is killed and a node is lost."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support import two_nodes
from support.commands import Ser
from support.grids import Quiet

from strongreplay.errors import DataError
from strongreplay.runs.config import RunConfig
from strongreplay.runs.grid import Grid, Job, RunOptions
from strongreplay.runs.ray_tasks import pack, unpack
from strongreplay.storage.checkpoints import folders_with_state
from strongreplay.storage.records import read_record, record_path


def namespace() -> list[str]:
    """Words that begin a command in a network of its own, which has only the loopback device."""
    up = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    for words in (["unshare", "-n"], ["unshare", "-rn"]):
        if (
            shutil.which("unshare")
            and subprocess.run([*words, *up, "true"], capture_output=True).returncode == 0
        ):
            return [*words, *up]
    reason = "Ray listens on all interfaces, and no network namespace can be made here (unshare, ip)"
    if os.environ.get("STRONGREPLAY_RAY") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `two_nodes.py` leaves."""
    folder = tmp_path_factory.mktemp("ray")
    command = [*namespace(), sys.executable, two_nodes.__file__, str(folder)]
    own = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_health_check_period_ms": "300"}
    own["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as short:  # for sockets
        own["RAY_TMPDIR"] = short
        with (folder / "said.txt").open("w") as said:  # a pipe would stay open as long as any process of Ray
            done = subprocess.run(command, env=os.environ | own, stdout=said, stderr=said, timeout=900)
    assert done.returncode == 0, (folder / "said.txt").read_text()[-3000:]
    return folder


def seen(out: Path, what: str) -> Any:
    return json.loads((out / "seen.json").read_text())[what]


def expect_plain_records(configs: list[RunConfig], folder: Path, plain: Path) -> None:
    list(Grid([Job.of(one) for one in configs], RunOptions(plain, plain, "cpu"), threads=1).go(Quiet()))
    for one in configs:
        there = read_record(record_path(folder, one.to_dict()))
        here = read_record(record_path(plain, one.to_dict()))
        assert (there.config, there.results) == (here.config, here.results)
        assert there.measured["versions"] == here.measured["versions"]
        assert there.measured["hardware"]["threads"] == 1


@pytest.mark.slow
def test_twelve_runs_leave_the_records_of_plain_runs_though_a_node_is_lost(out: Path, tmp_path: Path) -> None:
    told = seen(out, "grid")
    assert [how for how, _ in told["ends"]] == ["recorded"] * 12
    assert told["killed"]
    assert told["removed"]
    messages = " ".join(told["messages"])
    assert "its worker ended" in messages
    assert "its node is lost; it is tried once more, from its last checkpoint" in messages
    assert messages.count("resuming after step") == 2
    expect_plain_records(two_nodes.twelve_configs(), out / "grid", tmp_path)
    assert folders_with_state(out / "grid") == []
    assert not list((out / "grid").glob(".ray-*"))


@pytest.mark.slow
def test_a_driver_outside_that_shares_no_folder_gets_checkpoints_and_records(
    out: Path, tmp_path: Path
) -> None:
    told = seen(out, "sent")
    assert [how for how, _ in told["ends"]] == ["recorded"]
    assert told["killed"]
    assert "resuming after step" in " ".join(told["messages"])
    expect_plain_records([two_nodes.make_config("er", 0, 12)], out / "sent", tmp_path)
    assert folders_with_state(out / "sent") == []


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_running_and_keeps_the_state(out: Path) -> None:
    told = seen(out, "stopped")
    assert (told["code"], told["left"]) == (130, [])
    assert "Resume with the same command" in told["said"]
    assert "Traceback" not in told["said"]
    assert len(folders_with_state(out / "stopped")) == 1


def test_without_a_cluster_one_line_says_how_to_start_one(ser: Ser, tmp_path: Path) -> None:
    for wrong in ("here", "ray://", "ray://host", "ray://host:port"):
        said = ser("run", "split-digits", "--on", wrong, "-o", tmp_path)
        assert said.code == 2
        assert f"--on must be ray, ray://HOST:PORT or slurm, got '{wrong}'" in said.err
    said = ser("run", "split-digits", "--on", "ray://127.0.0.1:1", "-o", tmp_path)
    assert said.code == 2
    assert "--on ray://127.0.0.1:1: no Ray cluster answers (" in said.err
    assert "Connection refused" in said.err
    said = ser("run", "split-digits", "--on", "ray", "--devices", "cpu", "-o", tmp_path)
    assert said.code == 2
    assert "--devices are of this machine" in said.err


def test_a_node_cannot_write_outside_the_folder_of_records(tmp_path: Path) -> None:
    inside = tmp_path / "a"
    unpack({"b/c": b"1", "b/manifest.json": b"2"}, inside)
    assert pack(inside, inside) == {"b/c": b"1", "b/manifest.json": b"2"}
    with pytest.raises(DataError, match="refused"):
        unpack({"../x": b""}, inside)
    assert not (tmp_path / "x").exists()
