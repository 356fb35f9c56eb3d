"""Acts on a kept model: every call of the system fails once, and the power goes at every moment."""

import errno
import shutil
from pathlib import Path

import pytest
from support.disk import Disk, after_power_cut, image_of, write_tree
from support.stores import (
    ACTS,
    LEARN,
    MARK,
    RESULT,
    assert_contents,
    assert_whole,
    files_with,
    make_store,
    names,
    parts_of,
)

from strongreplay.errors import RunError
from strongreplay.models.store import CANDIDATE, Store

ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
SWEEPS = ["EIO", pytest.param("ENOSPC", marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sync does is the system's; here it only counts when it is called. Versions hold anything."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    monkeypatch.setattr(Store, "check_manifest", staticmethod(lambda manifest, where: None))


def attempt(
    act: str, folder: Path, patch: pytest.MonkeyPatch, fail_at: int = -1, error: int = errno.EIO
) -> tuple[Disk, str | None]:
    """Do the act on a failing disk; what was raised, in words."""
    with patch.context() as inner:
        disk = Disk(folder, fail_at, error).install(inner)
        try:
            store = Store(folder)
            with store.locked():
                ACTS[act](store)
        except RunError as raised:
            return disk, str(raised)
    return disk, None


def assert_old_or_new(act: str, folder: Path, done: bool | None) -> None:
    """The folder can be opened, is whole, and holds the state before the act or after it."""
    store = Store(folder)
    faults = [fault for fault in store.verify() if "the next update removes it" not in fault]
    assert faults == []
    in_use = store.current
    assert in_use in ({RESULT.get(act, "v3")} if done else {"v3", RESULT.get(act, "v3")})
    assert set(names(store)) <= {"v1", "v2", "v3", in_use}
    assert_contents(store, memory=act != "rewrite")
    made = store.commit(parts_of(6), {"chunk": 6}, LEARN)
    assert made.parent == in_use
    assert_contents(store, memory=act != "rewrite")
    assert_whole(store)


@pytest.mark.slow
@pytest.mark.parametrize("error", SWEEPS)
@pytest.mark.parametrize("act", ACTS)
def test_any_call_may_fail_once(
    act: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_store(tmp_path / "made").folder
    shutil.copytree(made, tmp_path / "whole")
    disk, told = attempt(act, tmp_path / "whole", monkeypatch)
    assert told is None
    assert disk.count > 8
    kinds = set[str]()
    for number in range(disk.count):
        folder = tmp_path / f"{number}"
        shutil.copytree(made, folder)
        failing, told = attempt(act, folder, monkeypatch, fail_at=number, error=ERRORS[error])
        kinds.add(failing.failed)
        assert told is None or "could not be written" in told or "no state can be kept" in told
        assert_old_or_new(act, folder, done=told is None)
        shutil.rmtree(folder)
    assert kinds >= {"fsync", "unlink", "flock"} | ({"write"} if act != "drop" else set())


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_flock_the_act_is_done_all_the_same(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_store(tmp_path / "made").folder
    shutil.copytree(made, tmp_path / "whole")
    disk, _ = attempt("commit", tmp_path / "whole", monkeypatch)
    for number in range(disk.count):
        shutil.copytree(made, tmp_path / "copy")
        failing, told = attempt("commit", tmp_path / "copy", monkeypatch, fail_at=number, error=error)
        if failing.failed == "flock":
            assert told is None
            assert Store(tmp_path / "copy").current == "v4"
            return
        shutil.rmtree(tmp_path / "copy")
    raise AssertionError("flock was never called")


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
def test_the_power_may_go_at_any_moment(act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_store(tmp_path / "model").folder
    with monkeypatch.context() as patch:
        disk = Disk(folder).install(patch)
        start = image_of(disk)
        ACTS[act](Store(folder))
    count = 0
    for cut, tree in after_power_cut(*start, disk.calls, disk.node(str(folder))):
        place = tmp_path / "after"
        write_tree(tree, place)
        done = cut == len(disk.calls)
        if done and act == "rewrite":
            assert files_with(place, MARK, b"secret") == []  # what was erased does not come back
        if done and act in ("accept", "drop"):
            assert CANDIDATE not in Store(place).names()
        assert_old_or_new(act, place, done=done)
        shutil.rmtree(place)
        count += 1
    assert count > 5
