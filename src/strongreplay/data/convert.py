"""Convert arrays, tensors and PIL images to the tensor a model takes: uint8 images or float32 features."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from strongreplay.data import images
from strongreplay.data.archives import BROKEN, Bytes, OnProgress
from strongreplay.data.arrays import Array
from strongreplay.data.rows import Rows, Transform
from strongreplay.errors import ConfigError, DataError

if TYPE_CHECKING:
    from PIL import Image

Fetch = Callable[[int], object]  # row -> image or features
LARGEST_SIDE = 64  # default limit in pixels: a CPU can train on these, and a memory holds many
KINDS = (
    "give a folder of class folders, a CSV manifest, an .npz file, arrays with labels, or a dataset that has "
    "a length and gives (image, label) for a row"
)
BLOCK_SIZE = 1024  # samples converted at once, so that there is no second copy of all


class RequiredForm(NamedTuple):
    """The required form of samples, from a model or from the user; None: the data decide."""

    kind: str | None  # images or features
    columns: int | None = None
    side: int | None = None
    channels: int | None = None
    transform: Transform | None = None  # from images to what is kept of them
    choose: "Choose | None" = None

    def settled(self, side: int, channels: int) -> "RequiredForm":
        """The form after `choose` has seen the side and the channels of the images."""
        return self.choose(self, side, channels) if self.choose else self


Choose = Callable[
    [RequiredForm, int, int], RequiredForm
]  # the form that is asked for, side and channels of the data -> the form


def required_form(shape: tuple[int, ...] | None, side: int | None, channels: int | None) -> RequiredForm:
    if shape is None:
        images.check_settings(side, channels)
        return RequiredForm("images" if side or channels else None, None, side, channels)
    if len(shape) == 1 and shape[0] > 0:
        return RequiredForm("features", shape[0])
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ConfigError(
            f"shape must be (channels, side, side) or (columns,), got {shape}; give one of them"
        )
    images.check_settings(shape[1], shape[0])
    return RequiredForm("images", None, shape[1], shape[0])


def expect_kind(where: str, got: str, form: RequiredForm) -> None:
    if form.kind in (None, got):
        return
    if form.kind == "images":
        wanted, remedy = "images", "give image files, or arrays of shape (N, C, H, W) or (N, H, W)"
    else:
        wanted, remedy = f"features of {form.columns} columns", "give an array of shape (N, D)"
    raise DataError(f"{where}: must be {wanted}, got {got}; {remedy}")


def convert(data: object, where: str, form: RequiredForm, progress: OnProgress | None) -> Tensor:
    """Convert arrays, one PIL image or a list of images, to a tensor of the required form."""
    if hasattr(data, "getexif"):  # one PIL image is one sample, not one for each row of pixels
        data = [data]
    if isinstance(data, list | tuple) and data and not isinstance(data[0], list | tuple | int | float | str):
        return read_items(data.__getitem__, len(data), where, form, progress)
    array = as_array(data, where)
    if array.size == 0 or array.ndim not in (2, 3, 4):
        raise DataError(
            f"{where}: must be (N, D) features or (N, C, H, W) or (N, H, W) images, and not empty, "
            f"got shape {array.shape}; reshape it"
        )
    if array.ndim == 2:
        return _features(array, where, form)
    expect_kind(where, "images", form)
    pixels = _pixels(array, where)
    form = form.settled(min(pixels.shape[2:]), pixels.shape[1])
    side = form.side or min(*pixels.shape[2:], LARGEST_SIDE)
    channels = form.channels or pixels.shape[1]
    if pixels.shape[1:] == (channels, side, side) and form.transform is None:
        return torch.from_numpy(np.array(pixels, order="C"))  # the user's own array may change later
    picture = lambda row: _picture_of(pixels[row])  # noqa: E731
    return _decode_all(picture, len(pixels), side, channels, where, progress, form.transform)


def as_batch(data: Any, shape: tuple[int, ...], where: str) -> Any:
    """Samples for a model of this shape, with an axis of samples and, of images, one of channels.

    An array of one image becomes a batch of one; what may be one image or several grey ones is an error.
    """
    if isinstance(data, list | tuple) and data and isinstance(data[0], list | tuple):
        data = as_array(data, where)
    if len(shape) != 3 or getattr(data, "ndim", 0) != 3:
        return data
    (first, height, width), (channels, *sides) = data.shape, shape
    if tuple(data.shape) == shape or (width == channels and first not in (1, 3) and [height, width] != sides):
        return data[None]
    if [height, width] == sides or not (width in (1, 3) or first == channels > 1):
        return data[:, None]
    raise DataError(
        f"{where}: shape {tuple(data.shape)} may be one image or {first} grey ones; "
        f"give array[None] if it is one, array[:, None] if it is {first}"
    )


def read_items(
    fetch: Fetch, count: int, where: str, form: RequiredForm, progress: OnProgress | None
) -> Tensor:
    """Read images or features one by one."""
    from PIL import Image

    def get(row: int) -> object:
        try:
            return fetch(row)
        except DataError:
            raise
        except BROKEN as error:
            raise _unreadable(where, row, error) from error

    first = get(0)
    if not isinstance(first, Image.Image) and as_array(first, where).ndim == 1:
        rows = [first, *(get(row) for row in range(1, count))]
        return convert(_stacked([as_array(row, where) for row in rows], where), where, form, None)
    expect_kind(where, "images", form)

    def picture(row: int) -> "Image.Image":
        return _picture(get(row), where, row)

    side, channels = form.side, form.channels
    if side is None or channels is None or form.choose:
        # Images are read twice instead of kept: the originals may be far larger than the resized ones.
        headers = [images.header_of(picture(row)) for row in range(count)]
        form = form.settled(images.choose_side(headers), images.choose_channels(headers))
        side = form.side or images.choose_side(headers, LARGEST_SIDE)
        channels = form.channels or images.choose_channels(headers)
    return _decode_all(picture, count, side, channels, where, progress, form.transform)


def _decode_all(
    picture: Callable[[int], "Image.Image"],
    count: int,
    side: int,
    channels: int,
    where: str,
    progress: OnProgress | None,
    transform: Transform | None,
) -> Tensor:
    rows = Rows(where, count, transform)
    for row in range(count):
        try:
            pixels = images.decode(picture(row), side, channels)
        except DataError:
            raise
        except Exception as error:  # decoders raise many kinds of exceptions
            raise _unreadable(where, row, error) from error
        rows.add(pixels)
        images.report(progress, row + 1, count)
    return rows.tensor()


def _unreadable(where: str, row: int, error: Exception) -> DataError:
    fault = f"{type(error).__name__}: {error}"
    return DataError(f"{where} #{row}: cannot be read ({fault}); fix the sample or take it out")


def _picture(image: object, where: str, row: int) -> "Image.Image":
    from PIL import Image

    if isinstance(image, Image.Image) and image.mode != "F":  # floats are handled like arrays
        if not min(image.size):
            raise DataError(f"{where} #{row}: an image must have pixels, got none; take it out")
        return image
    array = as_array(image, where)
    if array.ndim not in (2, 3) or array.size == 0:
        raise DataError(
            f"{where} #{row}: an image must be a PIL image or an array of shape (C, H, W), (H, W, C) or "
            f"(H, W), got {type(image).__name__} of shape {array.shape}; {KINDS}"
        )
    return _picture_of(_pixels(array[None], where, row)[0])


def _picture_of(pixels: Bytes) -> "Image.Image":
    from PIL import Image

    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def as_array(data: Any, where: str) -> Array:
    try:
        if isinstance(data, Tensor):
            data = data.detach().cpu()
            data = (data.float() if data.dtype == torch.bfloat16 else data).numpy()  # NumPy has no bfloat16
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


def _features(array: Array, where: str, form: RequiredForm) -> Tensor:
    expect_kind(where, "features", form)
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where}: features must be numbers, got {array.dtype}; convert them to float32")
    if form.columns not in (None, array.shape[1]):
        raise DataError(
            f"{where}: features must have {form.columns} columns, got {array.shape[1]}; "
            "give the columns that the model was trained with"
        )
    with np.errstate(over="ignore"):  # an overflow becomes infinite and is refused
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
    """Images as (N, C, H, W) uint8, from uint8 or from floats in [0, 1]."""
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
    pixels = images.allocate(where, array.shape)
    for start in range(0, len(array), BLOCK_SIZE):
        block = array[start : start + BLOCK_SIZE]
        inside = (block >= 0) & (block <= 1)  # False for NaN
        if not inside.all():
            place = tuple(np.argwhere(~inside)[0])
            raise DataError(
                f"{where} #{first + start + place[0]}: float images must lie in 0 to 1, got {block[place]}; "
                "scale them, or convert 0 to 255 with astype('uint8')"
            )
        pixels[start : start + BLOCK_SIZE] = np.rint(block * 255)
    return pixels
