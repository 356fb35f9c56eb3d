"""Chunk: samples, labels and sources of any data that a user gives to `ser learn` or `ser predict`.

The same pixels give the same bytes, from files, arrays and datasets alike.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strongreplay.data import folders
from strongreplay.data.archives import OnProgress
from strongreplay.data.arrays import LABEL_NAMES, open_array, read_npz
from strongreplay.data.convert import (
    KINDS,
    LARGEST_SIDE,
    Choose,
    RequiredForm,
    as_array,
    as_batch,
    convert,
    expect_kind,
    read_items,
    required_form,
)
from strongreplay.data.image_files import find_images, stream_images
from strongreplay.data.labels import Label, name_labels, read_label
from strongreplay.data.read_options import STRICT, ReadOptions
from strongreplay.data.rows import Transform
from strongreplay.data.tables import TableFiles
from strongreplay.errors import ConfigError, DataError

__all__ = ["LABEL_NAMES", "Chunk", "Label", "digests", "find_images", "open_array", "read_chunk"]
__all__ += ["read_inputs", "read_labels", "stream_images"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Labelled samples that arrived together."""

    inputs: Tensor  # (N, C, H, W) uint8 images, or (N, D) float32 features
    labels: tuple[Label, ...]
    sources: tuple[str, ...]  # a path relative to the folder or manifest, "name.npz#17", or "#17"

    def __post_init__(self) -> None:
        if not len(self.inputs) == len(self.labels) == len(self.sources):
            got = f"{len(self.inputs)} inputs, {len(self.labels)} labels and {len(self.sources)} sources"
            raise DataError(
                f"Chunk: must have as many of each, got {got}; give one label and source an input"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> "Chunk":
        """A copy of the given rows, which are indices or a mask."""
        places = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        labels, sources = (
            tuple(column[row] for row in places.tolist()) for column in (self.labels, self.sources)
        )
        return Chunk(self.inputs[places], labels, sources)

    @property
    def fingerprint(self) -> str:
        """A hash of the samples and labels in their order, independent of their sources."""
        described = [list(self.inputs.shape), str(self.inputs.dtype), self.labels]  # in JSON 1 is not "1"
        digest = hashlib.sha256(json.dumps(described).encode())
        digest.update(self.inputs.cpu().flatten().numpy().data)
        return digest.hexdigest()


def digests(inputs: Tensor) -> list[str]:
    """The SHA-256 of every sample's bytes; equal pixels have equal digests."""
    rows = inputs.cpu().contiguous().flatten(1).numpy()
    return [hashlib.sha256(row.data).hexdigest() for row in rows]


def read_chunk(
    data: object,
    labels: object = None,
    *,
    shape: tuple[int, ...] | None = None,
    side: int | None = None,
    channels: int | None = None,
    progress: OnProgress | None = None,
    transform: Transform | None = None,
    choose: Choose | None = None,
    options: ReadOptions = STRICT,
) -> Chunk:
    """Read data of any kind as one chunk; `shape`, that of a model, overrides `side` and `channels`.

    With a `transform` the chunk has what it makes of the images, block by block, instead of the images;
    `choose` may settle the form when side and channels of the images are known.
    """
    form = required_form(shape, side, channels)._replace(transform=transform, choose=choose)
    if isinstance(data, tuple) and len(data) == 2 and labels is None:
        data, labels = data
    if isinstance(data, str | os.PathLike | TableFiles):
        if labels is not None:
            raise ConfigError(f"labels: {data} has its own; give the path alone, or arrays with labels")
        return _read_path(data if isinstance(data, TableFiles) else Path(data), form, progress, options)
    if labels is not None:
        names = read_labels(labels, "labels")
        _expect_lengths("data", _length(data), len(names))
        return Chunk(convert(data, "data", form, progress), names, _numbered("", len(names)))
    if hasattr(data, "__array__"):
        raise DataError("data: arrays must come with labels, got none; give read_chunk(inputs, labels)")
    return _read_dataset(data, form, progress)


def read_inputs(
    data: object, *, shape: tuple[int, ...] | None = None, progress: OnProgress | None = None
) -> Tensor:
    """Samples without labels: an array, a tensor, nested lists or a list of images; also one image."""
    if shape is not None:
        data = as_batch(data, shape, "data")
    return convert(data, "data", required_form(shape, None, None), progress)


def read_labels(values: object, where: str) -> tuple[Label, ...]:
    """Texts and integers, unchanged; ambiguous labels are refused."""
    rows: Sequence[object]
    if isinstance(values, list | tuple):
        rows = values  # not as an array: there [1, "a"] would become ["1", "a"]
    elif (array := as_array(values, where)).ndim == 1:
        rows = array.tolist()
    else:
        raise DataError(
            f"{where}: must be one a sample, got shape {array.shape}; give a list or an (N,) array"
        )
    return tuple(read_label(value, f"{where} #{row}") for row, value in enumerate(rows))


def _expect_lengths(where: str, num_inputs: int, num_labels: int) -> None:
    if num_inputs != num_labels:
        raise DataError(f"{where}: got {num_inputs} samples but {num_labels} labels; label each sample")
    if not num_inputs:
        raise DataError(f"{where}: must hold at least one sample, got none; give more data")


def _length(data: Any) -> int:
    return len(data) if hasattr(data, "__len__") and getattr(data, "shape", None) != () else 0


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}#{row}" for row in range(count))


def _read_path(
    path: Path | TableFiles, form: RequiredForm, progress: OnProgress | None, options: ReadOptions
) -> Chunk:
    if isinstance(path, Path) and path.suffix.lower() == ".npz" and not os.path.isdir(path):
        inputs, values = read_npz(path)
        names = read_labels(values, f"{path} labels")
        _expect_lengths(str(path), _length(inputs), len(names))
        return Chunk(convert(inputs, str(path), form, progress), names, _numbered(path.name, len(names)))
    expect_kind(str(path), "images", form)
    images = folders.read_images(
        path, form.side, form.channels, progress, largest=LARGEST_SIDE, form=form, options=options
    )
    return Chunk(images.inputs, tuple(images.labels), tuple(images.paths))


def _read_dataset(data: Any, form: RequiredForm, progress: OnProgress | None) -> Chunk:
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")) or isinstance(data, dict | bytes):
        raise DataError(f"data: cannot be read, got {type(data).__name__}; {KINDS}")
    count, labels = len(data), dict[int, Label]()
    _expect_lengths("data", count, count)

    def fetch(row: int) -> object:
        pair = data[row]
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(f"data #{row}: must be (image, label), got {type(pair).__name__}; {KINDS}")
        labels[row] = read_label(pair[1], f"labels #{row}")
        return pair[0]

    inputs = read_items(fetch, count, "data", form, progress)
    return Chunk(inputs, name_labels(tuple(labels[row] for row in range(count)), data), _numbered("", count))
