"""Read .npy and .npz files: the header is checked before memory is allocated, and no code is executed."""

import math
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from strongreplay.data.archives import Damaged, telling
from strongreplay.errors import DataError

Array = NDArray[Any]

INPUT_NAMES = ("inputs", "images", "features", "x")
LABEL_NAMES = ("labels", "y")
TRAIN_NAMES = (*INPUT_NAMES, "x_train", "train_inputs"), (*LABEL_NAMES, "y_train", "train_labels")
TEST_NAMES = ("test_inputs", "x_test"), ("test_labels", "y_test")
KINDS = "biufSU"  # NumPy's letters for truth values, numbers and text
DIMENSION_LIMIT = 8
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def open_array(path: Path) -> Array:
    """The samples of an .npz file, or of an .npy file, which is memory-mapped."""
    if path.suffix.lower() == ".npz":
        with opened(path, "write it with np.savez(path, inputs=...)") as archive:
            return read_member(archive, path, INPUT_NAMES)
    return open_npy(path)


def open_npy(path: Path) -> Array:
    """A memory-mapped .npy file; copy on write, so the file is never changed."""
    with telling(path, "write it with np.save(path, inputs)"):
        check_regular(path)
        with path.open("rb") as file:
            shape, dtype = read_header(file, path, path.name)
            check_size(shape, dtype, path.stat().st_size - file.tell(), path, path.name)
        array: Array = npy.open_memmap(path, mode="c")
        check_text(array, path, path.name)
        return array


def read_npz(path: Path) -> tuple[Array, Array]:
    """Samples and labels."""
    with opened(path, "write it with np.savez(path, inputs=..., labels=...)") as archive:
        return read_member(archive, path, INPUT_NAMES), read_member(archive, path, LABEL_NAMES)


def read_npz_parts(path: Path) -> list[tuple[Array, Array]]:
    """Samples and labels for training and, if the file has them, for testing."""
    remedy = "write it with np.savez(path, inputs=..., labels=..., test_inputs=..., test_labels=...)"
    with opened(path, remedy) as archive:
        held = {member_name(name) for name in archive.namelist()}
        parts = [TRAIN_NAMES] + ([TEST_NAMES] if held & {*TEST_NAMES[0], *TEST_NAMES[1]} else [])
        return [
            (read_member(archive, path, inputs), read_member(archive, path, labels))
            for inputs, labels in parts
        ]


@contextmanager
def opened(path: Path, remedy: str) -> Iterator[zipfile.ZipFile]:
    """An .npz file as a zip archive; any error inside becomes a DataError."""
    try:
        with telling(path, remedy):
            check_regular(path)
            with zipfile.ZipFile(path) as archive:
                yield archive
    except MemoryError as error:
        raise DataError(f"{path} does not fit into memory; split it into smaller files") from error


def read_member(archive: zipfile.ZipFile, path: Path, names: tuple[str, ...]) -> Array:
    """The array of the archive with one of the names; there must be exactly one."""
    held = archive.namelist()
    matching = [name for name in held if member_name(name) in names]
    if len(matching) != 1:
        got = ", ".join(name.removesuffix(".npy") for name in held)
        raise Damaged(
            path, f"must hold one array named {', '.join(names[:-1])} or {names[-1]}, got {got!a:.80}"
        )
    member = archive.getinfo(matching[0])
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Damaged(path, "is packed in a way that NumPy does not write")
    with archive.open(member) as file:
        shape, dtype = read_header(file, path, member.filename)
    check_size(shape, dtype, member.file_size, path, member.filename)
    with archive.open(member) as file:
        array: Array = npy.read_array(file, allow_pickle=False)
        check_text(array, path, member.filename)
        return array


def member_name(name: str) -> str:
    return name.removesuffix(".npy").lower()


def read_header(file: IO[bytes], path: Path, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array; types that hold anything but numbers and text are refused."""
    version = npy.read_magic(file)
    if version not in HEADERS:
        raise Damaged(path, f"has an array of format {version}, expected 1.0 or 2.0, in {name!a:.80}")
    shape, _, dtype = HEADERS[version](file)
    if dtype.hasobject:  # loading it would execute code from the file
        raise Damaged(path, f"must hold numbers and text alone, got Python objects in {name!a:.80}")
    if dtype.kind not in KINDS or dtype.itemsize == 0:
        raise Damaged(path, f"must hold numbers and text alone, got the type {dtype!s:.80} in {name!a:.80}")
    if len(shape) > DIMENSION_LIMIT or any(length < 0 for length in shape):
        raise Damaged(path, f"has an array of shape {shape!s:.80}, which nothing here has, in {name!a:.80}")
    return shape, dtype


def check_size(shape: tuple[int, ...], dtype: np.dtype[Any], available: int, path: Path, name: str) -> None:
    """Refuse a header that claims more bytes than the file has, before memory is allocated for it."""
    if math.prod(shape) * dtype.itemsize > available:
        raise Damaged(path, f"says of {name!a:.80} that it is larger than it is")


def check_text(array: Array, path: Path, name: str) -> None:
    """Refuse text with numbers that are no characters, on which Python raises a SystemError."""
    if array.dtype.kind != "U" or not array.size:
        return
    codes = (
        np.ascontiguousarray(array).reshape(-1).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
    )
    if int(codes.max()) > sys.maxunicode:
        raise Damaged(path, f"has text with numbers that are no characters, in {name!a:.80}")


def check_regular(path: Path) -> None:
    if path.exists() and not path.is_file():  # reading a pipe could wait forever
        raise Damaged(path, "is no regular file")
