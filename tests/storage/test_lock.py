"""The lock keeps two processes apart, with flock and where there is none, and follows no link."""

import errno
import fcntl
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from support.processes import in_a_process

from strongreplay.errors import RunError
from strongreplay.storage import lock
from strongreplay.storage.lock import locked

NO_FLOCK = [errno.ENOLCK, errno.EOPNOTSUPP]


def break_flock(number: int, patch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, flags: int) -> None:
        raise OSError(number, os.strerror(number))

    patch.setattr(fcntl, "flock", refuse)


@pytest.fixture(params=[0, *NO_FLOCK], ids=["flock", "ENOLCK", "EOPNOTSUPP"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to lock, on a file system with locks and on two kinds without."""
    if request.param:
        break_flock(request.param, monkeypatch)
    return tmp_path / "deep" / "run.state"


def test_a_second_process_is_refused_with_the_owner_named(folder: Path) -> None:
    def refused() -> None:
        start = time.monotonic()
        with (
            pytest.raises(RunError, match=rf"process {owner} on {socket.gethostname()}.* is at work here"),
            locked(folder),
        ):
            pass
        assert time.monotonic() - start < 5  # the owner is on this machine and alive: nothing to wait for

    owner = os.getpid()
    with locked(folder):
        assert in_a_process(refused) == 0
    with locked(folder):
        pass
    assert not folder.parent.exists()  # folders made for the lock alone are removed


def test_a_dead_owner_holds_no_lock(folder: Path) -> None:
    def hold_and_die() -> None:
        with locked(folder):
            os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(3):
        assert in_a_process(hold_and_die) == -signal.SIGKILL
        with locked(folder):
            pass


def test_the_second_waits_if_it_is_asked_to(folder: Path) -> None:
    def wait_for_it() -> None:
        with locked(folder, wait=True):
            assert (folder / "done").exists()

    with locked(folder):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                wait_for_it()
                code = 0
            finally:
                os._exit(code)
        time.sleep(0.3)
        (folder / "done").touch()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.slow
def test_one_counter_and_two_writers(folder: Path) -> None:
    """Each adds 40 times to a number in a file; none of it may be lost."""
    folder.mkdir(parents=True)
    (folder / "count").write_text("0")

    def add() -> None:
        for _ in range(40):
            with locked(folder, wait=True):
                count = int((folder / "count").read_text())
                time.sleep(0.001)
                (folder / "count").write_text(str(count + 1))

    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                add()
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    assert (folder / "count").read_text() == "80"


@pytest.mark.slow
def test_a_lease_that_nobody_renews_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner was on another machine, so nothing is known of its process."""
    break_flock(errno.ENOLCK, monkeypatch)
    monkeypatch.setattr(lock, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.3)
    with locked(tmp_path):
        text = (tmp_path / lock.LEASE).read_text()
    (tmp_path / lock.LEASE).write_text(text.replace(socket.gethostname(), "elsewhere"))
    start = time.monotonic()
    with locked(tmp_path):
        assert 0.5 < time.monotonic() - start < 10


def test_a_lock_of_a_machine_that_has_flock_is_respected_by_one_that_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locked(tmp_path):
        break_flock(errno.ENOLCK, monkeypatch)
        with pytest.raises(RunError, match="cannot tell whether it is at work"), locked(tmp_path):
            pass


def test_another_error_of_the_lock_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_flock(errno.EIO, monkeypatch)
    with (
        pytest.raises(RunError, match=r"no state can be kept there \(Input/output error\)"),
        locked(tmp_path),
    ):
        pass


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_a_link_in_place_of_the_lock_leaves_its_target_alone(kind: str, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "seed-0.state"
    outside.write_text("mine")
    folder.mkdir()
    if kind == "symbolic":
        (folder / "lock").symlink_to(outside)
    else:
        (folder / "lock").hardlink_to(outside)
    with pytest.raises(RunError, match=r"lock: a link.* remove it"), locked(folder):
        pass
    assert outside.read_text() == "mine"


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "seed-0.state").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="a link where a folder should be"), locked(tmp_path / "seed-0.state"):
        pass
    assert not list((tmp_path / "elsewhere").iterdir())
