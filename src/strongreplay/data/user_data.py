"""The user's own data, whatever its kind, as one chunk: samples, a label each, and where each came from.

The same pixels give the same bytes, whether they come as files, as an array or out of a dataset.
"""

import hashlib
import json
import math
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset

from strongreplay.data import folders
from strongreplay.data.archives import BROKEN, Bytes, Damaged, OnProgress
from strongreplay.errors import ConfigError, DataError

if TYPE_CHECKING:
    from PIL import Image

Label = str | int
Array = NDArray[Any]
Fetch = Callable[[int], object]  # row -> image or features

LARGEST_SIDE = 64  # pixels, if nobody asks for more: a plain CPU still learns these, and a memory holds many
INPUT_NAMES = ("inputs", "images", "features", "x")
LABEL_NAMES = ("labels", "y")
NPZ_REMEDY = "write it with np.savez(path, inputs=..., labels=...)"
KINDS = (
    "give a folder of class folders, a CSV manifest, an .npz file, arrays with labels, or a dataset that has "
    "a length and gives (image, label) for a row"
)
BLOCK_SIZE = 1024  # samples changed at once, so that no second copy of all is made on the way


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
        """A copy of the given rows, which are places or a mask."""
        places = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        labels, sources = (
            tuple(column[row] for row in places.tolist()) for column in (self.labels, self.sources)
        )
        return Chunk(self.inputs[places], labels, sources)

    @property
    def fingerprint(self) -> str:
        """What names the samples and labels in their order, wherever they came from."""
        described = [list(self.inputs.shape), str(self.inputs.dtype), self.labels]  # JSON tells 1 from "1"
        digest = hashlib.sha256(json.dumps(described).encode())
        digest.update(self.inputs.cpu().flatten().numpy().data)
        return digest.hexdigest()


class Fit(NamedTuple):
    """What samples have to become: as a model takes them or as asked for, None where the data decide."""

    kind: str | None  # images or features
    columns: int | None = None
    side: int | None = None
    channels: int | None = None


def digests(inputs: Tensor) -> list[str]:
    """The SHA-256 of every sample's bytes; equal pixels have equal ones."""
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
) -> Chunk:
    """One chunk of whatever the user has; a shape, which is a model's, wins over side and channels."""
    fit = _fit(shape, side, channels)
    if isinstance(data, tuple) and len(data) == 2 and labels is None:
        data, labels = data
    if isinstance(data, str | os.PathLike):
        if labels is not None:
            raise ConfigError(f"labels: {data} brings its own; give the path alone, or arrays with labels")
        return _read_path(Path(data), fit, progress)
    if labels is not None:
        names = read_labels(labels, "labels")
        _expect_lengths("data", _length(data), len(names))
        return Chunk(_convert(data, "data", fit, progress), names, _numbered("", len(names)))
    if hasattr(data, "__array__"):
        raise DataError("data: arrays must come with labels, got none; give read_chunk(inputs, labels)")
    return _read_dataset(data, fit, progress)


def read_inputs(
    data: object, *, shape: tuple[int, ...] | None = None, progress: OnProgress | None = None
) -> Tensor:
    """Samples without labels: an array, a tensor, nested lists or a list of images."""
    return _convert(data, "data", _fit(shape, None, None), progress)


def open_array(path: Path) -> Array:
    """The samples of an .npz file, or of an .npy file, whose rows stay on disk until they are asked for."""
    remedy = "write it with np.save(path, inputs) or np.savez(path, inputs=...)"
    try:
        with folders.telling(path, remedy):
            if path.exists() and not path.is_file():  # a pipe would be waited for without end
                raise Damaged(path, "is no regular file")
            if path.suffix.lower() == ".npz":
                with zipfile.ZipFile(path) as archive:
                    return _read_member(archive, path, INPUT_NAMES)
            array: Array = np.lib.format.open_memmap(path, mode="r")
            return array
    except MemoryError as error:
        raise DataError(f"{path} does not fit into memory; split it into smaller files") from error


def read_labels(values: object, where: str) -> tuple[Label, ...]:
    """Names and whole numbers as they are; anything that could be taken for another class is refused."""
    rows: Sequence[object]
    if isinstance(values, list | tuple):
        rows = values  # not as an array, in which 1 beside "a" would become "1"
    elif (array := _array(values, where)).ndim == 1:
        rows = array.tolist()
    else:
        raise DataError(
            f"{where}: must be one a sample, got shape {array.shape}; give a list or an (N,) array"
        )
    return tuple(_label(value, f"{where} #{row}") for row, value in enumerate(rows))


def find_images(paths: Iterable[Path]) -> list[Path]:
    """Files as given; a folder gives its images at any depth, by name, without the hidden ones."""
    found: list[Path] = []
    for path in map(Path, paths):
        found += _walk(path) if os.path.isdir(path) else [path]
    return found


def stream_images(
    paths: Sequence[Path], shape: tuple[int, ...], batch_size: int = 256
) -> Iterator[tuple[list[Path], Tensor, list[tuple[Path, str]]]]:
    """The files that were read, their images, and for each that was not the reason; a batch at a time."""
    fit = _fit(shape, None, None)
    _expect_kind("image files", "images", fit)
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, got {batch_size}; give another")
    return (_read_batch(paths[at : at + batch_size], shape) for at in range(0, len(paths), batch_size))


def _read_batch(
    paths: Sequence[Path], shape: tuple[int, ...]
) -> tuple[list[Path], Tensor, list[tuple[Path, str]]]:
    read: list[Path] = []
    faults: list[tuple[Path, str]] = []
    images = folders.allocate("image files", (len(paths), *shape))
    for path in paths:
        try:
            images[len(read)] = folders.read_image(path, shape[1], shape[0])
            read.append(path)
        except DataError as error:
            faults.append((path, str(error).encode(errors="backslashreplace").decode()))
    return read, torch.from_numpy(images)[: len(read)], faults


def _walk(folder: Path) -> list[Path]:
    found: list[Path] = []

    def fail(error: OSError) -> None:
        with folders.telling(Path(error.filename), folders.REPLACE):
            raise error  # else a folder that cannot be read would pass for an empty one

    for place, inner, names in os.walk(folder, onerror=fail):
        inner[:] = [name for name in inner if not name.startswith(".")]
        shown = (Path(place, name) for name in names if not name.startswith("."))
        found += [path for path in shown if path.suffix.lower() in folders.ENDINGS]
    if not found:
        endings = ", ".join(folders.ENDINGS)
        raise DataError(f"{folder} must hold images, got none with the ending {endings}; give another folder")
    return sorted(found)


def _fit(shape: tuple[int, ...] | None, side: int | None, channels: int | None) -> Fit:
    if shape is None:
        folders.check_settings(side, channels)
        return Fit("images" if side or channels else None, None, side, channels)
    if len(shape) == 1 and shape[0] > 0:
        return Fit("features", shape[0])
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ConfigError(
            f"shape must be (channels, side, side) or (columns,), got {shape}; give one of them"
        )
    folders.check_settings(shape[1], shape[0])
    return Fit("images", None, shape[1], shape[0])


def _expect_kind(where: str, got: str, fit: Fit) -> None:
    if fit.kind in (None, got):
        return
    if fit.kind == "images":
        wanted, remedy = "images", "give image files, or arrays of shape (N, C, H, W) or (N, H, W)"
    else:
        wanted, remedy = f"features of {fit.columns} columns", "give an array of shape (N, D)"
    raise DataError(f"{where}: must be {wanted}, got {got}; {remedy}")


def _expect_lengths(where: str, num_inputs: int, num_labels: int) -> None:
    if num_inputs != num_labels:
        raise DataError(f"{where}: got {num_inputs} samples but {num_labels} labels; give one label a sample")
    if not num_inputs:
        raise DataError(f"{where}: must hold at least one sample, got none; give more data")


def _length(data: Any) -> int:
    return len(data) if hasattr(data, "__len__") and getattr(data, "shape", None) != () else 0


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}#{row}" for row in range(count))


def _read_path(path: Path, fit: Fit, progress: OnProgress | None) -> Chunk:
    if path.suffix.lower() == ".npz" and not os.path.isdir(path):
        inputs, values = _read_npz(path)
        names = read_labels(values, f"{path} labels")
        _expect_lengths(str(path), _length(inputs), len(names))
        return Chunk(_convert(inputs, str(path), fit, progress), names, _numbered(path.name, len(names)))
    _expect_kind(str(path), "images", fit)
    images = folders.read_images(path, fit.side, fit.channels, progress, largest=LARGEST_SIDE)
    return Chunk(images.inputs, tuple(images.labels), tuple(images.paths))


def _read_npz(path: Path) -> tuple[Array, Array]:
    try:
        with folders.telling(path, NPZ_REMEDY):
            if path.exists() and not path.is_file():  # a pipe would be waited for without end
                raise Damaged(path, "is no regular file")
            with zipfile.ZipFile(path) as archive:
                return _read_member(archive, path, INPUT_NAMES), _read_member(archive, path, LABEL_NAMES)
    except MemoryError as error:
        raise DataError(f"{path} does not fit into memory; split it into smaller files") from error


def _read_member(archive: zipfile.ZipFile, path: Path, names: tuple[str, ...]) -> Array:
    held = archive.namelist()
    matching = [name for name in held if name.removesuffix(".npy").lower() in names]
    if len(matching) != 1:
        got = ", ".join(name.removesuffix(".npy") for name in held)
        raise Damaged(
            path, f"must hold one array named {', '.join(names[:-1])} or {names[-1]}, got {got!a:.80}"
        )
    member = archive.getinfo(matching[0])
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Damaged(path, "is packed in a way that NumPy does not write")
    with archive.open(member) as file:
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        shape, _, dtype = read_header[npy.read_magic(file)](file)
    if dtype.hasobject:  # which only running code from the file could bring back
        raise Damaged(
            path, f"must hold numbers and text alone, got Python objects in {member.filename!a:.80}"
        )
    if math.prod(shape) * dtype.itemsize > member.file_size:
        raise Damaged(path, f"says of {member.filename!a:.80} that it is larger than it is")
    with archive.open(member) as file:
        array: Array = npy.read_array(file, allow_pickle=False)
        return array


def _read_dataset(data: Any, fit: Fit, progress: OnProgress | None) -> Chunk:
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")) or isinstance(data, dict | bytes):
        raise DataError(f"data: cannot be read, got {type(data).__name__}; {KINDS}")
    count, labels = len(data), dict[int, Label]()
    _expect_lengths("data", count, count)

    def fetch(row: int) -> object:
        pair = data[row]
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(f"data #{row}: must be (image, label), got {type(pair).__name__}; {KINDS}")
        labels[row] = _label(pair[1], f"labels #{row}")
        return pair[0]

    inputs = _read_items(fetch, count, "data", fit, progress)
    return Chunk(inputs, _named(tuple(labels[row] for row in range(count)), data), _numbered("", count))


def _named(labels: tuple[Label, ...], data: Any) -> tuple[Label, ...]:
    """Numbers as the names that a dataset has for its classes, if it has them."""
    while isinstance(data, Subset):  # which keeps the labels of what it is a part of
        data = data.dataset
    classes = getattr(data, "classes", None)
    if not isinstance(classes, list | tuple) or not all(isinstance(name, str) for name in classes):
        return labels
    if not all(isinstance(label, int) for label in labels):
        return labels
    numbers = [int(label) for label in labels]
    if odd := [number for number in numbers if not 0 <= number < len(classes)]:
        raise DataError(
            f"data: labels must be 0 to {len(classes) - 1}, as many as data.classes has names, got {odd[0]}; "
            "mend the labels or take the names away"
        )
    return tuple(folders.check_name(classes[number], "data.classes") for number in numbers)


def _label(value: Any, where: str) -> Label:
    if getattr(value, "shape", None) == ():
        value = value.item()
    if isinstance(value, str):
        return folders.check_name(str(value), where)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise DataError(
        f"{where}: a label must be text or a whole number, got {value!r:.80}; give every sample such a label"
    )


def _convert(data: object, where: str, fit: Fit, progress: OnProgress | None) -> Tensor:
    """Arrays, or a list of images, as a tensor that fits."""
    if isinstance(data, list | tuple) and data and not isinstance(data[0], list | tuple | int | float | str):
        return _read_items(data.__getitem__, len(data), where, fit, progress)
    array = _array(data, where)
    if array.size == 0 or array.ndim not in (2, 3, 4):
        raise DataError(
            f"{where}: must be (N, D) features or (N, C, H, W) or (N, H, W) images, and not empty, "
            f"got shape {array.shape}; reshape it"
        )
    if array.ndim == 2:
        return _features(array, where, fit)
    _expect_kind(where, "images", fit)
    pixels = _pixels(array, where)
    side = fit.side or min(*pixels.shape[2:], LARGEST_SIDE)
    channels = fit.channels or pixels.shape[1]
    if pixels.shape[1:] == (channels, side, side):
        return torch.from_numpy(np.array(pixels, order="C"))  # the user's own array may change later
    return _decode_all(lambda row: _picture_of(pixels[row]), len(pixels), side, channels, where, progress)


def _read_items(fetch: Fetch, count: int, where: str, fit: Fit, progress: OnProgress | None) -> Tensor:
    """Images or features that are to be had one by one."""
    from PIL import Image

    def get(row: int) -> object:
        try:
            return fetch(row)
        except DataError:
            raise
        except BROKEN as error:
            raise _unreadable(where, row, error) from error

    first = get(0)
    if not isinstance(first, Image.Image) and _array(first, where).ndim == 1:
        rows = [first, *(get(row) for row in range(1, count))]
        return _convert(_stacked([_array(row, where) for row in rows], where), where, fit, None)
    _expect_kind(where, "images", fit)

    def picture(row: int) -> "Image.Image":
        return _picture(get(row), where, row)

    side, channels = fit.side, fit.channels
    if side is None or channels is None:
        # Read twice, not kept: the images of a dataset may be far larger than what becomes of them.
        headers = [folders.header_of(picture(row)) for row in range(count)]
        side = side or folders.choose_side(headers, LARGEST_SIDE)
        channels = channels or folders.choose_channels(headers)
    return _decode_all(picture, count, side, channels, where, progress)


def _decode_all(
    picture: Callable[[int], "Image.Image"],
    count: int,
    side: int,
    channels: int,
    where: str,
    progress: OnProgress | None,
) -> Tensor:
    inputs: Bytes = folders.allocate(where, (count, channels, side, side))
    for row in range(count):
        try:
            inputs[row] = folders.decode(picture(row), side, channels)
        except DataError:
            raise
        except BROKEN as error:
            raise _unreadable(where, row, error) from error
        folders.report(progress, row + 1, count)
    return torch.from_numpy(inputs)


def _unreadable(where: str, row: int, error: Exception) -> DataError:
    fault = f"{type(error).__name__}: {error}"
    return DataError(f"{where} #{row}: cannot be read ({fault}); mend the sample or take it out")


def _picture(image: object, where: str, row: int) -> "Image.Image":
    from PIL import Image

    if isinstance(image, Image.Image) and image.mode != "F":  # floats follow the rule for arrays
        if not min(image.size):
            raise DataError(f"{where} #{row}: an image must have pixels, got none; take it out")
        return image
    array = _array(image, where)
    if array.ndim not in (2, 3) or array.size == 0:
        raise DataError(
            f"{where} #{row}: an image must be a PIL image or an array of shape (C, H, W), (H, W, C) or "
            f"(H, W), got {type(image).__name__} of shape {array.shape}; {KINDS}"
        )
    return _picture_of(_pixels(array[None], where, row)[0])


def _picture_of(pixels: Bytes) -> "Image.Image":
    from PIL import Image

    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def _array(data: Any, where: str) -> Array:
    try:
        if isinstance(data, Tensor):
            data = data.detach().cpu()
            data = (
                data.float() if data.dtype == torch.bfloat16 else data
            ).numpy()  # NumPy has no such floats
        return np.asarray(data)
    except BROKEN as error:
        fault = f"{type(error).__name__}: {error}"
        raise DataError(f"{where}: is no array ({fault}); give all rows the same shape") from error


def _stacked(rows: list[Array], where: str) -> Array:
    for number, row in enumerate(rows):
        if row.shape != rows[0].shape:
            raise DataError(
                f"{where} #{number}: must have the first sample's shape {rows[0].shape}, got {row.shape}; "
                "give all samples one shape"
            )
    return np.stack(rows)


def _features(array: Array, where: str, fit: Fit) -> Tensor:
    _expect_kind(where, "features", fit)
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where}: features must be numbers, got {array.dtype}; convert them to float32")
    if fit.columns not in (None, array.shape[1]):
        raise DataError(
            f"{where}: features must have {fit.columns} columns, got {array.shape[1]}; "
            "give what the model was taught with"
        )
    with np.errstate(over="ignore"):  # what does not fit becomes infinite and is refused
        features = np.array(array, np.float32, order="C")
    finite = np.isfinite(features)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise DataError(
            f"{where} #{row}: features must be finite float32, got {array[row, column]} in column {column}; "
            "fill in or take out such rows"
        )
    return torch.from_numpy(features)


def _pixels(array: Array, where: str, first: int = 0) -> Bytes:
    """Images as (N, C, H, W) of eight bits, from bytes or from floats in 0 to 1."""
    if array.ndim == 3:
        array = array[:, None]
    elif array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.shape[1] not in (1, 3):
        got = tuple(array.shape[place] for place in (0, 2, 3, 1))
        raise DataError(
            f"{where} #{first}: images must have 1 or 3 channels, second or last, got shape {got}; reshape"
        )
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind != "f":
        raise DataError(
            f"{where} #{first}: images must be uint8, or floats in 0 to 1, got {array.dtype}; "
            "scale them to 0 to 255 and convert with astype('uint8')"
        )
    pixels = folders.allocate(where, array.shape)
    for start in range(0, len(array), BLOCK_SIZE):
        block = array[start : start + BLOCK_SIZE]
        inside = (block >= 0) & (block <= 1)  # not so for NaN
        if not inside.all():
            place = tuple(np.argwhere(~inside)[0])
            raise DataError(
                f"{where} #{first + start + place[0]}: float images must lie in 0 to 1, got {block[place]}; "
                "scale them, or convert 0 to 255 with astype('uint8')"
            )
        pixels[start : start + BLOCK_SIZE] = np.rint(block * 255)
    return pixels
