"""Files: the only module of the package that writes to disk. It does not import torch.

A file is written under a temporary name, synced and renamed, and then its folder is synced. So the old or the
new file is complete after a kill or a power cut. Writing, reading and removing never follow symbolic links.
Reading checks type, size and checksum before the bytes are used.
"""

import contextlib
import csv
import errno
import hashlib
import io
import itertools
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strongreplay.errors import DataError

MAX_JSON = 2**28  # bytes of one JSON file
MAX_LEVELS = 300  # of nested JSON; each level of a tree of tensors takes three
MOST_WRITTEN = 2**30  # bytes in one call; Linux writes at most 2 GiB
PREFIX = ".new-"  # of temporary names
NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
UNSYNCABLE = (errno.EINVAL, errno.EOPNOTSUPP)  # errors of file systems that cannot sync a folder
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet reads a text with such a start as a formula

_numbers = itertools.count()


# Writing


class Writer(io.RawIOBase):
    """An open file without a buffer: a buffer would be written again on close after an error."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Write all data, in as many system calls as needed."""
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(self.handle, rest[:MOST_WRITTEN]) :]
        return memoryview(data).nbytes


@contextmanager
def new_file(path: Path, flags: int = os.O_EXCL) -> Iterator[Writer]:
    """Open a new file for writing and sync it at the end; for folders made by `new_folder`."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | NOFOLLOW | flags, 0o666)
    try:
        yield Writer(handle)
        os.fsync(handle)
    finally:
        os.close(handle)


def name_beside(path: Path) -> Path:
    """An unused temporary name in the same folder; `clear_leftovers` recognises it."""
    start = f"{PREFIX}{path.name[:40]}-{os.getpid()}"
    while os.path.lexists(new := path.with_name(f"{start}-{next(_numbers)}")):
        pass
    return new


@contextmanager
def replaced(path: Path, *, sync: bool = True) -> Iterator[tuple[Path, Writer]]:
    """Yield a temporary file to write to; at the end, unless an exception was raised, rename it to `path`."""
    make_folder(path.parent)
    new = name_beside(path)
    try:
        with new_file(new) as file:
            yield new, file
        os.replace(new, path)
    except BaseException:
        remove_quietly(new)  # an error here must not hide the first one
        raise
    if sync:
        sync_folder(path.parent)


def write_bytes(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write the whole file or nothing; with `sync=False` the caller must sync the folder."""
    with replaced(path, sync=sync) as (_, file):
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Write the whole text or nothing."""
    write_bytes(path, text.encode())


def append(path: Path, data: bytes) -> None:
    """Append bytes to a file and sync it."""
    with new_file(path, os.O_APPEND) as file:
        file.write(data)
    sync_folder(path.parent)


def truncate(path: Path, size: int) -> None:
    """Cut a file to `size` bytes and sync it."""
    handle = os.open(path, os.O_WRONLY | NOFOLLOW)
    try:
        os.ftruncate(handle, size)
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill; at the end it is synced and renamed to `path`."""
    make_folder(path.parent)
    new = name_beside(path)
    try:
        os.mkdir(new)
        yield new
        sync_folder(new)
        os.rename(new, path)
    except BaseException:
        remove_quietly(new)
        raise
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents; they survive a power cut."""
    missing = list(itertools.takewhile(lambda path: not os.path.lexists(path), (folder, *folder.parents)))
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process made it
            os.mkdir(path)
        sync_folder(path.parent)
    if not os.path.isdir(folder):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def sync_folder(folder: Path) -> None:
    """Make sure that files created, renamed or removed in a folder stay so after a power cut."""
    if os.name == "nt":  # Windows cannot open folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in UNSYNCABLE:
            raise
    finally:
        os.close(handle)


# Removing


def remove(path: Path) -> None:
    """Remove a file, a link (not its target) or a folder with its contents, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def remove_quietly(path: Path) -> None:
    """Remove a file or folder, and ignore an error."""
    with contextlib.suppress(OSError):
        remove(path)


def discard(folder: Path) -> None:
    """Remove a folder: its name disappears at once; files that cannot be removed stay under a hidden name."""
    gone = name_beside(folder)
    with contextlib.suppress(OSError):
        os.rename(folder, gone)
        sync_folder(folder.parent)
        remove(gone)


def clear_leftovers(folder: Path, name: str = "") -> None:
    """Remove temporary files of killed processes, for one name or all; the caller holds the lock."""
    for path in folder.glob(f"{PREFIX}{name}*"):
        remove(path)


# Reading


def read_bytes(file: Path, most: int, remedy: str = "", *, follow: bool = False) -> bytes:
    """The bytes of a regular file of at most `most` bytes; a symbolic link is refused."""
    remedy = remedy or f"remove {file.parent}"
    with regular_file(file, most, remedy, follow) as handle:
        parts, room = [], most + 1  # one byte more: the file may have grown
        while room and (part := os.read(handle, min(room, 2**24))):
            parts.append(part)
            room -= len(part)
        if not room:
            raise DataError(f"{file}: more than the {most} bytes expected; {remedy}")
        return b"".join(parts)


@contextmanager
def regular_file(file: Path, most: int, remedy: str, follow: bool = False) -> Iterator[int]:
    """Open a regular file of at most `most` bytes for reading; anything else is a DataError."""
    try:
        if not follow and (file.is_symlink() or file.parent.is_symlink()):
            raise DataError(f"{file}: a link where a file should be; {remedy}")
        # Without O_NONBLOCK a named pipe would keep us waiting for a writer.
        handle = os.open(file, os.O_RDONLY | (0 if follow else NOFOLLOW) | getattr(os, "O_NONBLOCK", 0))
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise DataError(f"{file}: not a regular file; {remedy}")
            if found.st_size > most:
                raise DataError(f"{file}: {found.st_size} bytes, at most {most} expected; {remedy}")
            yield handle
        finally:
            os.close(handle)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{file}: missing; {remedy}") from None
    except OSError as error:
        raise DataError(f"{file}: not readable ({error.strerror or error}); make it readable") from None


def read_checked(file: Path, entry: Mapping[str, Any], remedy: str = "") -> bytes:
    """The bytes of a file, after checking size and checksum against its entry in a manifest."""
    size, remedy = entry["bytes"], remedy or f"remove {file.parent}"
    data = read_bytes(file, size, remedy)
    if len(data) != size:
        raise DataError(f"{file}: {len(data)} bytes instead of {size}, it is cut off; {remedy}")
    if sha256(data) != entry["sha256"]:
        raise DataError(f"{file}: its SHA-256 does not fit the manifest, it is damaged; {remedy}")
    return data


def parse_json(data: bytes | str, levels: int = MAX_LEVELS) -> Any:
    """Parse JSON that is nested at most `levels` deep; anything else is a ValueError."""
    try:
        content = json.loads(data)
    except RecursionError:
        raise ValueError(f"expected at most {levels} levels, got more") from None
    layer = [content]
    for _ in range(levels + 1):
        layer = [node for node in layer if isinstance(node, dict | list)]
        if not layer:
            return content
        layer = [part for node in layer for part in (node.values() if isinstance(node, dict) else node)]
    raise ValueError(f"expected at most {levels} levels, got more")


# Checksums and CSV


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def manifest_sum(manifest: Mapping[str, Any]) -> str:
    """The checksum of a manifest, computed over everything but the checksum itself."""
    rest = {key: value for key, value in manifest.items() if key != "sum"}
    return sha256(json.dumps(rest, sort_keys=True).encode())


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV; a text that a spreadsheet would read as a formula gets an apostrophe in front."""
    out = io.StringIO()
    csv.writer(out).writerows([csv_cell(cell) for cell in row] for row in rows)
    return out.getvalue()


def csv_cell(value: object) -> object:
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
