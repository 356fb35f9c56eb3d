"""Two processes write to one model, on file systems with locks and without: nothing is damaged or lost."""

import errno
import fcntl
import os
import time
from pathlib import Path

import pytest
from support.stores import LEARN, assert_contents, assert_whole, make_store, parts_of

from strongreplay.errors import RunError
from strongreplay.models.store import Store

ROUNDS = 40  # of each of the two


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sync does is the system's. Versions hold anything."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    monkeypatch.setattr(Store, "check_manifest", staticmethod(lambda manifest, where: None))


def write_on_and_on(store: Store) -> None:
    done = 0
    while done < ROUNDS:
        try:
            with store.locked():
                store.commit(parts_of(5), {"chunk": 5}, LEARN)
                store.prune(3)
            done += 1
        except RunError as error:
            if "is at work here" not in str(error):
                raise
            time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.parametrize("error", [0, errno.ENOLCK, errno.EOPNOTSUPP], ids=["flock", "ENOLCK", "EOPNOTSUPP"])
def test_two_writers_take_turns(error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path / "model")
    if error:

        def refuse(handle: int, operation: int) -> None:
            raise OSError(error, os.strerror(error))

        monkeypatch.setattr(fcntl, "flock", refuse)
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                write_on_and_on(store)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    assert store.current == f"v{3 + 2 * ROUNDS}"
    assert_contents(store)
    assert_whole(store)
