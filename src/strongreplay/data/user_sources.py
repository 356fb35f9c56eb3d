"""Readers for `user_splits.py`: class folders, CSV manifests and arrays as samples."""

import json
import math
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from strongreplay.data import folders, images
from strongreplay.data.archives import OnProgress, telling
from strongreplay.data.arrays import Array, open_npy, read_npz_parts
from strongreplay.data.convert import LARGEST_SIDE
from strongreplay.data.labels import Label
from strongreplay.data.layouts import Part, find_parts
from strongreplay.data.manifests import list_manifest
from strongreplay.data.user_data import read_chunk, read_labels
from strongreplay.errors import ConfigError, DataError
from strongreplay.storage import files

BLOCK_SIZE = 1 << 24  # bytes hashed or written at once
ARRAYS = ("inputs.npy", "labels.npy", "test-inputs.npy", "test-labels.npy")  # of npy:FOLDER


@dataclass(frozen=True, slots=True)
class DataSource:
    """The kind and path of a name such as folder:PHOTOS."""

    kind: str
    path: Path
    side: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}:{self.path}"


@dataclass(slots=True)
class Samples:
    """The samples of a source: training rows first, then test rows, if it has them."""

    shape: tuple[int, ...]
    dtype: str
    labels: list[Label]
    num_train: int | None  # None: the source has no test part
    blocks: Callable[[], Iterator[Array]]  # the samples, some at a time
    inputs: tuple[Path, ...] = ()  # files that are arrays already


def stamp_of(source: DataSource) -> str:
    """Changes whenever a file of the source is added, removed, renamed or written to."""
    with telling(source.path, f"check the path after {source.kind}:"):
        source.path.stat()
        found = []
        for path in _files_of(source):
            status = path.stat()
            found.append([str(path), status.st_size, status.st_mtime_ns])
    return files.sha256(json.dumps(found).encode())


def _files_of(source: DataSource) -> list[Path]:
    path = source.path
    if source.kind == "folder":
        if not path.is_dir():
            raise DataError(f"{source}: is no folder; give a folder with a folder for each class")
        return sorted(Path(place, name) for place, _, names in os.walk(path) for name in names)
    if source.kind == "csv":
        return [path, *(entry.file for entry in list_manifest(path))]
    if source.kind == "npy":
        return [path / name for name in ARRAYS if (path / name).exists()]
    return [path]


def _read_photos(source: DataSource, progress: OnProgress | None) -> Samples:
    """Image files: a folder for each class, optionally inside train/ and test/, or a CSV manifest."""
    num_train = None
    if source.kind == "csv":
        items = list_manifest(source.path)
    elif "test" in (parts := find_parts(source.path)):
        items = folders.list_folder(_part(source, parts["train"]))
        num_train = len(items)
        items += folders.list_folder(_part(source, parts["test"]))
    else:
        items = folders.list_folder(source.path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about metadata that is not used here
        headers = [images.read_header(item.file) for item in items]
    images.check_settings(source.side, None)
    side = source.side or images.choose_side(headers, LARGEST_SIDE)
    channels = images.choose_channels(headers)

    def blocks() -> Iterator[Array]:
        for row, item in enumerate(items, 1):
            yield images.read_image(item.file, side, channels)
            images.report(progress, row, len(items))

    return Samples((channels, side, side), "|u1", [item.label for item in items], num_train, blocks)


def _part(source: DataSource, part: Part) -> Path:
    if not isinstance(part, Path):
        raise DataError(f"{source}: holds tables, which streams do not read; give class folders")
    return part


def _read_npz(source: DataSource, progress: OnProgress | None) -> Samples:
    parts = read_npz_parts(source.path)
    first = read_chunk(*parts[0], side=source.side, progress=progress)
    shape = tuple(first.inputs.shape[1:])
    chunks = [first, *(read_chunk(*part, shape=shape, progress=progress) for part in parts[1:])]
    labels = [label for chunk in chunks for label in chunk.labels]
    dtype = "|u1" if first.inputs.dtype == torch.uint8 else "<f4"
    num_train = len(first) if len(chunks) > 1 else None
    return Samples(shape, dtype, labels, num_train, lambda: (chunk.inputs.numpy() for chunk in chunks))


def _read_npy(source: DataSource, progress: OnProgress | None) -> Samples:
    """Arrays that are not copied: inputs.npy and labels.npy, optionally also with the prefix test-."""
    if source.side is not None:
        raise ConfigError(f"data.side: {source} is taken as it is; leave data.side out")
    has_test = (source.path / ARRAYS[2]).exists()
    names = [ARRAYS[:2], ARRAYS[2:]] if has_test else [ARRAYS[:2]]
    arrays = [open_npy(source.path / inputs) for inputs, _ in names]
    labels = [
        list(read_labels(np.array(open_npy(source.path / name)), f"{source.path / name}"))
        for _, name in names
    ]
    for array, own, (name, _) in zip(arrays, labels, names, strict=True):
        _check_array(array, len(own), f"{source.path / name}", arrays[0].shape[1:])
    shape = arrays[0].shape[1:]
    paths = tuple((source.path / inputs).resolve() for inputs, _ in names)
    total = sum(len(array) for array in arrays)

    def blocks() -> Iterator[Array]:
        done = 0
        for array in arrays:
            size = max(1, BLOCK_SIZE // max(1, array[:1].nbytes))
            for start in range(0, len(array), size):
                block = _read_rows(array, start, size)
                if block.dtype.kind == "f" and not np.isfinite(block).all():
                    raise DataError(f"{source}: features must be finite, got one that is not; fix the array")
                yield block
                done += len(block)
                if progress:
                    progress("reading arrays", done, total)

    own = [label for part in labels for label in part]
    return Samples(shape, arrays[0].dtype.str, own, len(labels[0]) if has_test else None, blocks, paths)


def _read_rows(array: Array, start: int, count: int) -> Array:
    """Rows of a mapped array, read from its file, because pages of the mapping would stay in memory."""
    assert isinstance(array, np.memmap)
    width = math.prod(array.shape[1:])
    count = min(count, len(array) - start)
    offset = array.offset + start * width * array.itemsize
    flat = np.fromfile(array.filename or "", array.dtype, count * width, offset=offset)
    return flat.reshape(count, *array.shape[1:])


def _check_array(array: Array, num_labels: int, where: str, shape: tuple[int, ...]) -> None:
    is_image = array.dtype == np.uint8 and (array.ndim == 3 or (array.ndim == 4 and array.shape[1] in (1, 3)))
    if not is_image and not (array.dtype == np.float32 and array.ndim == 2):
        raise DataError(
            f"{where}: must be uint8 images (N, C, H, W) or (N, H, W), or float32 features (N, D), got "
            f"{array.dtype} of shape {array.shape}; convert it"
        )
    if len(array) != num_labels or not num_labels:
        raise DataError(f"{where}: got {len(array)} samples but {num_labels} labels; label each sample")
    if array.shape[1:] != shape or not array.flags.c_contiguous:
        raise DataError(f"{where}: must be C-ordered, with samples of shape {shape}, got {array.shape[1:]}")


READERS: dict[str, Callable[[DataSource, OnProgress | None], Samples]] = {
    "folder": _read_photos,
    "csv": _read_photos,
    "npz": _read_npz,
    "npy": _read_npy,
}
