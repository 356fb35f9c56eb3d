"""One process at a time on a folder; the system lets go of the lock when its owner dies."""

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from strongreplay.errors import RunError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes off the folder, or say who is there; folders made for nothing are taken away."""
    made = [path for path in [folder, *folder.parents] if not os.path.exists(path)]
    file = open_lock(folder)
    with file:
        try:
            sign(folder, file)
            yield
        finally:
            (folder / "lock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # one that is not empty stays, and so do those above it
                for path in made:
                    path.rmdir()


def open_lock(folder: Path) -> TextIO:
    path = folder / "lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            file = path.open("a+")
            if not take_lock(file.fileno()):
                file.seek(0)
                owner = file.read(200).strip() or "another process"
                file.close()
                raise RunError(f"{folder}: {owner} is at work here; wait for it or stop it")
            if path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                return file
            file.close()  # its last owner took it away between our two calls
    except OSError as error:
        raise unusable(folder, error) from None


def sign(folder: Path, file: TextIO) -> None:
    """Say who is there; a disk without room for that has none for a state."""
    owner = f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now(UTC):%F %T} UTC\n"
    try:
        file.truncate(0)
        os.write(file.fileno(), owner.encode())  # past the buffer, which would fail again when closed
    except OSError as error:
        raise unusable(folder, error) from None


def unusable(folder: Path, error: OSError) -> RunError:
    reason = error.strerror or error
    return RunError(f"{folder}: no state can be kept there ({reason}); mend that or choose another folder")


def take_lock(handle: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows: two writers are not kept apart there
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
