"""Read data files, plain or inside gz and tar.gz, as bytes of the expected size; contents are not trusted.

Archives are never unpacked to disk, so no entry can write a file, and no more is read than expected.
"""

import gzip
import hashlib
import struct
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray

from strongreplay.errors import DataError

OnProgress = Callable[[str, int, int], None]  # what, done, total (0 when unknown)
Bytes = NDArray[np.uint8]

CHUNK_SIZE = 1 << 22
SLACK = 1 << 20  # bytes for a tar's headers, padding and small text files

# What the parsers of the standard library, NumPy and Pillow raise for invalid bytes.
BROKEN = (
    *(OSError, EOFError, zlib.error, struct.error, tarfile.TarError, zipfile.BadZipFile),
    *(ValueError, LookupError, TypeError, ArithmeticError, RuntimeError, SyntaxError, tokenize.TokenError),
)


class Damaged(DataError):
    """A file with wrong contents, which has to be deleted."""

    def __init__(self, file: Path, fault: str) -> None:
        super().__init__(f"{file} {fault}")


@dataclass(frozen=True, slots=True)
class Member:
    """One unpacked file of a dataset; its path is the same in the data folder and in the tar."""

    path: str
    split: Literal["train", "test"]
    holds: Literal["images", "labels", "records"]
    num_images: int
    size: int
    checksum: str | None = None


@dataclass(frozen=True, slots=True)
class Archive:
    """One published file, and the files or folders that may replace it in the data folder."""

    path: str
    checksum: str  # algorithm:digest
    mirrors: tuple[str, ...]  # full addresses, tried in order
    members: tuple[Member, ...] = ()
    folders: tuple[str, ...] = ()  # folders with the same data; one of them is enough

    def missing(self, folder: Path) -> list[str]:
        """The files that are still needed to read this archive's data from the folder."""
        if any(exists(folder / place) for place in (self.path, *self.folders)):
            return []
        parts = [member.path for member in self.members] or [self.path]
        return [part for part in parts if not exists(folder / part)]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of checking one file or folder."""

    path: Path
    is_right: bool
    note: str


@dataclass(frozen=True, slots=True)
class Contents:
    """The bytes of a member, at most one more than expected, and the file they were read from."""

    member: Member
    path: Path
    raw: Bytes

    def fault(self, text: str) -> Damaged:
        name = Path(self.member.path).name
        return Damaged(self.path, text if self.path.name == name else f"(its {name}) {text}")

    def expect_size(self) -> None:
        got, size = len(self.raw), self.member.size
        if got != size:
            raise self.fault(
                f"has {f'more than {size:,}' if got > size else f'{got:,}'} bytes, expected {size:,}"
            )


@contextmanager
def reading(path: Path, archive: Path | None = None) -> Iterator[None]:
    """Turn any error while reading a file, or a file inside `archive`, into a DataError."""

    def fault(text: str) -> Damaged:
        return Damaged(archive, f"(its {path}) {text}") if archive else Damaged(path, text)

    try:
        yield
    except DataError:
        raise
    except IsADirectoryError as error:
        raise fault("is a folder, expected a file") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise fault("is missing") from error
    except BROKEN as error:
        if isinstance(error, OSError) and error.errno:  # an error of the system, not of the file's contents
            text = f"{path} cannot be read: {error.strerror}; make it readable and try again"
            raise DataError(text) from error
        raise fault(f"is damaged ({type(error).__name__}: {error})") from error


@contextmanager
def telling(path: Path, remedy: str) -> Iterator[None]:
    """Turn any error while reading a file into a DataError that says what to do."""
    try:
        with reading(path):
            yield
    except Damaged as error:
        raise DataError(f"{error}; {remedy}") from error


def exists(path: Path) -> bool:
    with reading(path):
        return path.exists()


def digest(path: Path, algorithm: str) -> str:
    """The file's checksum in hexadecimal."""
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def checksum_fault(path: Path, checksum: str) -> str | None:
    """A message if the file's checksum is wrong, otherwise none."""
    algorithm, expected = checksum.split(":")
    got = digest(path, algorithm)
    return None if got == expected else f"has {algorithm} {got}, expected {expected}"


def read_archive(archive: Archive, folder: Path) -> Iterator[Contents]:
    """Every member's bytes, in the archive's order; an unpacked file is preferred to a packed one."""
    packed = {}
    if not all(exists(folder / member.path) for member in archive.members):
        read_packed = _read_tar if archive.path.endswith(".tar.gz") else _read_gz
        with reading(folder / archive.path):
            packed = read_packed(archive, folder / archive.path)
    for member in archive.members:
        if exists(path := folder / member.path):
            yield Contents(member, path, read_plain(path, member.size))
        else:
            yield Contents(member, folder / archive.path, packed.pop(member))


def read_plain(path: Path, size: int) -> Bytes:
    """The file's bytes, at most one more than expected."""
    with reading(path):
        return np.fromfile(path, np.uint8, count=size + 1)


def _read_stream(stream: IO[bytes] | gzip.GzipFile, size: int) -> Bytes:
    raw = np.empty(size + 1, np.uint8)
    got = 0
    while got <= size and (chunk := stream.read(min(CHUNK_SIZE, size + 1 - got))):
        raw[got : got + len(chunk)] = np.frombuffer(chunk, np.uint8)
        got += len(chunk)
    return raw[:got]


def _read_gz(archive: Archive, path: Path) -> dict[Member, Bytes]:
    (member,) = archive.members
    with gzip.open(path) as stream:
        return {member: _read_stream(stream, member.size)}


class _BoundedGzip(gzip.GzipFile):
    """A gzip stream that raises an error if it unpacks to more bytes than expected."""

    def __init__(self, path: Path, limit: int) -> None:
        super().__init__(path)
        self.path, self.limit, self.done = path, limit, 0

    def read(self, size: int | None = -1) -> bytes:
        chunk = super().read(size)
        self.done += len(chunk)
        if self.done > self.limit:
            raise Damaged(self.path, f"unpacks to more than {self.limit:,} bytes")
        return chunk


def _read_tar(archive: Archive, path: Path) -> dict[Member, Bytes]:
    wanted = {member.path: member for member in archive.members}
    raws: dict[Member, Bytes] = {}
    with _BoundedGzip(path, sum(member.size for member in archive.members) + SLACK) as stream:
        with tarfile.open(fileobj=stream, mode="r|") as entries:
            for entry in entries:
                if (member := wanted.get(entry.name)) is None:
                    continue
                file = entries.extractfile(entry) if entry.isreg() else None
                if file is None or entry.size != member.size:
                    raise Damaged(
                        path, f"holds {entry.name} of {entry.size:,} bytes, expected {member.size:,}"
                    )
                raws[member] = _read_stream(file, member.size)
        while stream.read(CHUNK_SIZE):  # read to the end, because gzip checks its checksum there
            pass
    if absent := [member.path for member in archive.members if member not in raws]:
        raise Damaged(path, f"does not hold {', '.join(absent)}")
    return raws
