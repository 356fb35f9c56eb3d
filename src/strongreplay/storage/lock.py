"""A lock, so that one process at a time writes to a folder.

The operating system holds the lock (`flock`) and releases it when its owner ends; the file `lock` names the
owner. Many network drives have no such locks. There the file `lock.lease` is the lock: only one process can
create it, its owner renews it every 10 seconds, and it expires if it is not renewed for 30 seconds.
"""

import contextlib
import errno
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import SoftFileLease, Timeout

from strongreplay.errors import DataError, RunError
from strongreplay.storage import files

LOCK, LEASE = "lock", "lock.lease"
LEASE_SECONDS, RENEW_SECONDS = 30.0, 10.0
POLL_SECONDS = 0.05
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)


class BusyError(RunError):
    """Another process is writing to the folder."""


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Lock the folder. If it is locked already, wait (`wait=True`) or raise an error that names the owner.

    Folders that were created only for the lock are removed at the end.
    """
    made = [path for path in [folder, *folder.parents] if not os.path.exists(path)]
    try:
        handle = open_lock(folder, wait)
    except OSError as error:
        raise unusable(folder, error) from None
    lease = None
    try:
        lease = take_lease(folder, wait) if handle is None or os.path.lexists(folder / LEASE) else None
        if handle is not None:
            sign(folder, handle)
        yield
    finally:
        if handle is not None:
            files.remove_quietly(folder / LOCK)
            os.close(handle)
        if lease:
            with contextlib.suppress(OSError):
                lease.release()
        with contextlib.suppress(OSError):  # a folder that is not empty stays, and so do its parents
            for path in made:
                path.rmdir()
    if lease and lease.compromise:
        raise RunError(
            f"{folder / LEASE}: could not be renewed for {LEASE_SECONDS:.0f} seconds, another process may "
            "have written at the same time; check the folder and run one process at a time"
        )


def open_lock(folder: Path, wait: bool) -> int | None:
    """The open and locked file, or None if the file system has no locks."""
    if folder.is_symlink():
        raise RunError(f"{folder}: a link where a folder should be; remove it or choose another folder")
    while True:
        files.make_folder(folder)
        try:
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | files.NOFOLLOW, 0o666)
        except FileNotFoundError:  # the last owner removed the folder
            continue
        taken: bool | None = False
        try:
            if (taken := try_lock(folder, handle)) is None:
                return None
            if taken:
                return handle
            if not wait and is_at(handle, folder / LOCK):
                raise busy(folder, read_text(handle))
        finally:
            if not taken:
                os.close(handle)
        time.sleep(POLL_SECONDS)


def try_lock(folder: Path, handle: int) -> bool | None:
    """Whether this process holds the lock now; None if the file system has no locks."""
    expect_plain(folder / LOCK, handle)
    taken = take_lock(handle)
    if taken is None:
        refuse_foreign(folder, handle)
        files.remove_quietly(folder / LOCK)
    elif taken and not is_at(handle, folder / LOCK):  # its owner removed it between our two calls
        return False
    return taken


def expect_plain(path: Path, handle: int) -> None:
    """Refuse a link: `sign` empties the file, which must not be another file under a second name."""
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise RunError(f"{path}: a link, or no file, where a lock should be; remove it")


def is_at(handle: int, path: Path) -> bool:
    """Whether an open file still has that name."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    return False


def take_lock(handle: int) -> bool | None:
    """Try to take the lock; returns whether it succeeded, or None if the file system has no locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise
    return True


def refuse_foreign(folder: Path, handle: int) -> None:
    """Refuse a lock file with an owner: on a shared drive, another machine may hold a lock we cannot see."""
    if owner := read_text(handle):
        raise RunError(
            f"{folder / LOCK}: taken by {owner}, and this file system cannot tell whether it is at work; if "
            "it is not, remove the file"
        )


def take_lease(folder: Path, wait: bool) -> SoftFileLease:
    """Take the lease file instead of a lock; an owner on another machine gets time to renew it."""
    lease = SoftFileLease(folder / LEASE, lease_duration=LEASE_SECONDS, heartbeat_interval=RENEW_SECONDS)
    patience = -1.0 if wait else 0.0
    while True:
        try:
            lease.acquire(timeout=patience, poll_interval=POLL_SECONDS)
            return lease
        except Timeout:
            owner = lease_owner(folder)
            # The lease has already checked that an owner on this machine is alive, so waiting is useless.
            if patience or not owner or owner.endswith(f" on {socket.gethostname()}"):
                raise busy(folder, owner) from None
            patience = LEASE_SECONDS + RENEW_SECONDS
        except OSError as error:
            raise unusable(folder, error) from None


def lease_owner(folder: Path) -> str:
    with contextlib.suppress(DataError, KeyError, ValueError):
        lines = files.read_bytes(folder / LEASE, 2000).decode().splitlines()[1:]
        owner = dict(line.split("=", 1) for line in lines)
        return f"process {owner['pid']} on {owner['host']}"
    return ""


def sign(folder: Path, handle: int) -> None:
    """Write the owner to the lock file; if the disk is full, no state could be written either."""
    owner = f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now(UTC):%F %T} UTC\n"
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, owner.encode(), 0)
    except OSError as error:
        raise unusable(folder, error) from None


def read_text(handle: int) -> str:
    os.lseek(handle, 0, os.SEEK_SET)
    return os.read(handle, 200).decode(errors="replace").strip()


def busy(folder: Path, owner: str) -> BusyError:
    return BusyError(f"{folder}: {owner or 'another process'} is at work here; wait for it or stop it")


def unusable(folder: Path, error: OSError) -> RunError:
    if error.errno == errno.ELOOP:
        return RunError(f"{folder / LOCK}: a link where a lock should be; remove it")
    reason = error.strerror or error
    return RunError(f"{folder}: no state can be kept there ({reason}); fix that or choose another folder")
