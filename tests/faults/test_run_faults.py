"""Checkpoints and records: every call of the system fails once, and the power goes at every moment."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.disk import Disk, after_power_cut, image_of, write_tree
from support.records import make_record

from strongreplay.errors import RunError
from strongreplay.runs.save_record import save_record
from strongreplay.storage.checkpoints import checkpoints, remove_checkpoints
from strongreplay.storage.lock import locked
from strongreplay.storage.records import read_record, record_path
from strongreplay.storage.state import read_checkpoint, read_newest, write_checkpoint

RECORD = make_record()


def place_of(out: Path) -> Path:
    return record_path(out, RECORD.config)


def keep(out: Path, number: int) -> None:
    tree = {"number": number, "weights": torch.full((300,), float(number))}
    write_checkpoint(place_of(out).with_suffix(".state"), tree, {"step": number})


def make_out(out: Path) -> Path:
    """A run with two checkpoints and no record."""
    for number in (1, 2):
        keep(out, number)
    return out


def write_next_checkpoint(out: Path) -> None:
    with locked(place_of(out).with_suffix(".state")):
        keep(out, 3)


def finish(out: Path) -> None:
    """As a run ends: its record is written, then its state is removed."""
    save_record(RECORD, out, lambda: keep(out, 2))
    remove_checkpoints(place_of(out).with_suffix(".state"))


def check_checkpoints(out: Path, done: bool) -> None:
    found = read_newest(place_of(out).with_suffix(".state"))
    assert found is not None
    assert found.tree["number"] == (3 if done else found.manifest["step"])
    assert found.tree["number"] in (2, 3)
    assert torch.equal(found.tree["weights"], torch.full((300,), float(found.tree["number"])))
    for path in checkpoints(found.path.parent):
        read_checkpoint(path)
    keep(out, 4)
    assert checkpoints(found.path.parent)[0].name in ("state-000003", "state-000004")
    assert not list(out.rglob(".new-*"))


def check_finished(out: Path, done: bool) -> None:
    """The record is whole, or the state is there to make it."""
    state = place_of(out).with_suffix(".state")
    if place_of(out).exists():
        assert read_record(place_of(out)) == RECORD
    else:
        assert not done
        found = read_newest(state)
        assert found is not None
        assert found.tree["number"] == 2


ACTS: dict[str, tuple[Callable[[Path], None], Callable[[Path, bool], None]]] = {
    "checkpoint": (write_next_checkpoint, check_checkpoints),
    "finish": (finish, check_finished),
}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sync does is the system's; here it only counts when it is called."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.ENOLCK])
@pytest.mark.parametrize("act", ACTS)
def test_any_call_may_fail_once(
    act: str, error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_out(tmp_path / "made")

    def attempt(number: int) -> Disk:
        out, done = tmp_path / f"{number}", True
        shutil.copytree(made, out)
        with monkeypatch.context() as patch:
            disk = Disk(out, fail_at=number, error=error).install(patch)
            try:
                ACTS[act][0](out)
            except (RunError, OSError):
                done = False
        ACTS[act][1](out, done)
        return disk

    count = attempt(-1).count
    assert count > 10
    assert all(attempt(number).failed for number in range(count))


@pytest.mark.parametrize("act", ACTS)
def test_the_power_may_go_at_any_moment(act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    do, check = ACTS[act]
    out = make_out(tmp_path / "out")
    with monkeypatch.context() as patch:
        disk = Disk(out).install(patch)
        start = image_of(disk)
        do(out)
    count = 0
    for cut, tree in after_power_cut(*start, disk.calls, disk.node(str(out))):
        write_tree(tree, tmp_path / "after")
        check(tmp_path / "after", cut == len(disk.calls))
        shutil.rmtree(tmp_path / "after")
        count += 1
    assert count > 3
