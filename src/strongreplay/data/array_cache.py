"""Caches of decoded data: made once, by one process, as files of arrays that are later memory-mapped."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np

from strongreplay.data.arrays import Array
from strongreplay.errors import DataError, RunError
from strongreplay.storage import files
from strongreplay.storage.lock import locked

Found = TypeVar("Found")


def make_once(
    what: str, folder: Path, find: Callable[[], Found | None], make: Callable[[], Found], remedy: str
) -> Found:
    """What `find` returns; if it finds nothing, it is made, with a lock on the folder of the cache."""
    if found := find():
        return found
    try:
        with locked(folder, wait=True):
            return find() or make()  # another process may have made it while this one waited
    except (OSError, RunError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{what} cannot be written: {reason}; {remedy}") from error


def write_array(path: Path, dtype: str, shape: tuple[int, ...], blocks: Iterable[Array]) -> None:
    """Write a .npy file block by block, for folders made by `files.new_folder`."""
    # Not through a memory map: there a full disk would kill the process instead of raising an error.
    with files.new_file(path) as file:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(block.tobytes())
