"""The only image decoder: files and PIL images become upright uint8 pixels.

Files are not trusted: the header is checked before pixels are decoded, and any exception of a decoder means
that this one file is bad.
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import isqrt
from pathlib import Path
from statistics import median_low
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np

from strongreplay.data.archives import Bytes, Damaged, OnProgress, telling
from strongreplay.errors import ConfigError, DataError

if TYPE_CHECKING:
    from PIL import Image

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
FORMATS_OF_CALLERS = FORMATS[:4]  # what a service takes from strangers
GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")  # Pillow's modes of one colour
PIXEL_LIMIT = 1 << 26  # an image; 8192 x 8192
SIDE_LIMIT = 1 << 16  # pixels; a decoder may allocate memory by one side alone
FILE_LIMIT = 8 * PIXEL_LIMIT  # bytes; four channels of 16 bits without any compression
PROGRESS_STEP = 250  # images between two reports
ORIENTATION = 0x0112  # the EXIF tag
TURNS = {  # its values -> the operation that makes the image upright
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270",
    7: "TRANSVERSE", 8: "ROTATE_90",
}  # fmt: skip
REPLACE = "replace the file or take it out"


class BadImage(Exception):
    """An image that cannot be decoded; the text says why, and the caller adds the file name."""


class TooManyPixels(BadImage):
    """An image with more pixels than the caller allows."""


class Header(NamedTuple):
    """Properties of an image that are known before decoding."""

    is_grey: bool
    shorter_side: int


def read_image(path: Path, side: int, channels: int) -> Bytes:
    """Read and decode one image file."""
    with warnings.catch_warnings(), telling(path, REPLACE):
        warnings.simplefilter("ignore")
        if path.exists() and not path.is_file():  # reading a pipe could wait forever
            raise Damaged(path, "is no regular file")
        with opened(path) as image:
            return decode(image, side, channels)


def read_header(path: Path) -> Header:
    with opened(path) as image:
        return header_of(image)


@contextmanager
def opened(path: Path) -> Iterator["Image.Image"]:
    """Open the image of a file; any error inside becomes a DataError that names the file."""
    with telling(path, REPLACE):
        if (size := path.stat().st_size) > FILE_LIMIT:
            raise Damaged(path, f"has {size:,} bytes, expected at most {FILE_LIMIT:,}")
        try:
            # An open file, not a name: Pillow would map a named file and crash if the file shrinks.
            with path.open("rb") as file, open_image(file) as image:
                yield image
        except BadImage as error:
            raise Damaged(path, str(error)) from error


@contextmanager
def opened_bytes(name: str, content: bytes | None) -> Iterator["Image.Image"]:
    """Open an image in memory, such as one of a table; any error becomes a DataError with the name."""
    if not isinstance(content, bytes):
        raise DataError(f"{name} has no bytes of an image; {REPLACE}")
    try:
        with open_image(io.BytesIO(content)) as image:
            yield image
    except BadImage as error:
        raise DataError(f"{name} {error}; {REPLACE}") from error


@contextmanager
def open_image(file: IO[bytes], formats: Sequence[str] = FORMATS) -> Iterator["Image.Image"]:
    """Open an image and check its header.

    Any exception of Pillow, here or during decoding, becomes a BadImage: decoders raise many kinds of
    exceptions for damaged bytes, and one bad file must not stop the reading of others.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file, formats=list(formats)) as image:
            width, height = image.size
            if not 0 < width * height <= PIXEL_LIMIT or max(image.size) > SIDE_LIMIT:
                limits = f"1 to {PIXEL_LIMIT:,}, at most {SIDE_LIMIT:,} a side"
                raise TooManyPixels(f"has {width} x {height} pixels, expected {limits}")
            yield image
    except (BadImage, DataError):
        raise
    except UnidentifiedImageError as error:
        *first, last = ("WebP" if name == "WEBP" else name for name in formats)
        raise BadImage(f"is not an image, expected {', '.join(first)}{' or ' * bool(first)}{last}") from error
    except (Image.DecompressionBombError, MemoryError) as error:
        raise BadImage(f"needs too much memory, expected at most {PIXEL_LIMIT:,} pixels") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise  # an error of the system, not of the contents
        raise BadImage(f"is damaged ({type(error).__name__}: {error})") from error


def decode(image: "Image.Image", side: int | None, channels: int) -> Bytes:
    """Upright (C, H, W) uint8 pixels, alpha over black; with a side, the central square resized to it."""
    from PIL import Image

    image.load()  # first, so that damaged pixels are not mistaken for damaged EXIF data
    turn = None
    with suppress(Exception):  # some cameras write broken EXIF data; then the image is not rotated
        turn = TURNS.get(image.getexif().get(ORIENTATION, 1))
    if image.mode == "F":
        raise BadImage("has pixels of floating point, expected 8 or 16 bits")
    if image.mode.startswith("I"):  # 16 bits; Pillow would clip them, and keeps the upper half of colours
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        shown = image.convert("RGBA")
        image = Image.new("RGB", shown.size)
        image.paste(shown, mask=shown)
    if image.mode != (mode := "L" if channels == 1 else "RGB"):
        image = image.convert(mode)
    if turn:
        image = image.transpose(Image.Transpose[turn])
    if side:
        # One step crops and resizes: scaling a whole long strip first could fill the memory.
        (width, height), edge = image.size, min(image.size)
        left, top = (width - edge) / 2, (height - edge) / 2
        box = (left, top, left + edge, top + edge)
        image = image.resize((side, side), Image.Resampling.BILINEAR, box)
    pixels = np.asarray(image)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def decode_bytes(content: bytes, shape: tuple[int, ...], pixel_limit: int = PIXEL_LIMIT) -> Bytes:
    """(C, H, W) pixels of an image file in memory, or a BadImage."""
    channels, _, side = shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with open_image(io.BytesIO(content), FORMATS_OF_CALLERS) as image:
            width, height = image.size
            if width * height > pixel_limit:
                raise TooManyPixels(f"has {width} x {height} pixels, at most {pixel_limit:,} are allowed")
            return decode(image, side, channels).copy()  # writable, as PyTorch wants it


def header_of(image: "Image.Image") -> Header:
    return Header(image.mode in GREY, min(image.size))  # rotation by EXIF changes neither


def choose_side(headers: Sequence[Header], largest: int = SIDE_LIMIT) -> int:
    """The median of the shorter sides, which ignores outliers, but at most `largest`."""
    return min(median_low(header.shorter_side for header in headers), largest)


def choose_channels(headers: Sequence[Header]) -> int:
    return 1 if all(header.is_grey for header in headers) else 3


def check_settings(side: int | None, channels: int | None) -> None:
    largest = isqrt(PIXEL_LIMIT)
    if side is not None and not 1 <= side <= largest:
        raise ConfigError(f"side must be 1 to {largest} pixels, got {side}; give another or none")
    if channels not in (None, 1, 3):
        raise ConfigError(
            f"channels must be 1 (grey) or 3 (colour), got {channels}; give one of them or none"
        )


def allocate(source: object, shape: tuple[int, ...]) -> Bytes:
    """Allocate an array for images, or raise a DataError with the source and the size."""
    try:
        return np.empty(shape, np.uint8)
    except (MemoryError, ValueError) as error:
        need = f"{shape[0]:,} images of {' x '.join(map(str, shape[1:]))} bytes do not fit into memory"
        raise DataError(f"{source}: {need}; give a smaller side or fewer images") from error


def report(progress: OnProgress | None, done: int, total: int) -> None:
    if progress and (done % PROGRESS_STEP == 0 or done == total):
        progress("reading images", done, total)
