"""A user's own labelled images, from a folder for each class or a CSV manifest, into one uint8 tensor.

Nothing in the files is trusted: each must lie inside the folder, and its header is judged before its pixels
are decoded. Every header is read before the first pixel, so a bad file is told at once and not after an hour.
"""

import csv
import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import category

import numpy as np
import torch
from torch import Tensor

from strongreplay.data.archives import BROKEN, Bytes, Damaged, OnProgress, reading
from strongreplay.errors import ConfigError, DataError

if TYPE_CHECKING:
    from PIL import Image

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")  # Pillow's modes of one colour
HEADER = ["path", "label"]
PIXEL_LIMIT = 1 << 26  # an image; 8192 x 8192
SIDE_LIMIT = 1 << 16  # pixels; what a decoder makes room for may grow with one side alone
FILE_LIMIT = 8 * PIXEL_LIMIT  # bytes; four channels of 16 bits without any compression
MANIFEST_LIMIT = 1 << 26  # bytes; about a million lines
PROGRESS_STEP = 250  # images between two reports
ORIENTATION = 0x0112  # the EXIF tag
TURNS = {  # its values to the names of what makes the image upright
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270",
    7: "TRANSVERSE", 8: "ROTATE_90",
}  # fmt: skip
REPLACE = "replace the file or take it out"


@dataclass(frozen=True, slots=True)
class Images:
    """Decoded images and what is known about each."""

    inputs: Tensor  # (N, C, H, W) uint8
    labels: list[str]
    paths: list[str]  # relative to the folder


class ImageEntry(NamedTuple):
    """One image to read: its name for the user, its label, and the file after following links."""

    name: str
    label: str
    file: Path


class Header(NamedTuple):
    """What is known of an image before its pixels are."""

    is_grey: bool
    shorter_side: int


def read_images(
    source: Path,
    side: int | None,
    channels: int | None,
    progress: OnProgress | None = None,
    *,
    largest: int | None = None,
) -> Images:
    """All images of a folder or manifest, in order; sizes must agree if there is neither side nor largest."""
    check_settings(side, channels)
    with telling(source, "give a folder of class folders, or a CSV manifest"):
        source.stat()
        items = list_folder(source) if source.is_dir() else list_manifest(source)
    inputs: Bytes | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about side data that plays no part here
        headers = [_read_header(item.file) for item in items]
        channels = channels or choose_channels(headers)
        if side is None and largest is not None:
            side = choose_side(headers, largest)
        for row, item in enumerate(items):
            with _opened(item.file) as image:
                pixels = decode(image, side, channels)
            if inputs is None:
                inputs = allocate(source, (len(items), *pixels.shape))
            elif pixels.shape != inputs.shape[1:]:
                raise _unequal(source, items[0].name, inputs.shape, item.name, pixels.shape)
            inputs[row] = pixels
            report(progress, row + 1, len(items))
    return Images(torch.from_numpy(inputs), [item.label for item in items], [item.name for item in items])


def read_image(path: Path, side: int, channels: int) -> Bytes:
    """One image file, wherever it lies, as decode gives it."""
    with warnings.catch_warnings(), telling(path, REPLACE):
        warnings.simplefilter("ignore")
        if path.exists() and not path.is_file():  # a pipe would be waited for without end
            raise Damaged(path, "is no regular file")
        with _opened(path) as image:
            return decode(image, side, channels)


def header_of(image: "Image.Image") -> Header:
    return Header(image.mode in GREY, min(image.size))  # EXIF may turn it, which leaves both as they are


def choose_side(headers: Sequence[Header], largest: int) -> int:
    """The middle one of the shorter sides, so that one odd image decides nothing, up to the largest."""
    return min(median_low(header.shorter_side for header in headers), largest)


def choose_channels(headers: Sequence[Header]) -> int:
    return 1 if all(header.is_grey for header in headers) else 3


def report(progress: OnProgress | None, done: int, total: int) -> None:
    if progress and (done % PROGRESS_STEP == 0 or done == total):
        progress("reading images", done, total)


def list_folder(folder: Path) -> list[ImageEntry]:
    """The images of each class folder, classes and files by name; what lies deeper is not looked at."""
    root = folder.resolve()
    items = []
    for place in _entries(folder):
        if not place.is_dir():
            continue
        label = check_name(place.name, folder)
        files = [path for path in _entries(place) if path.suffix.lower() in ENDINGS and not path.is_dir()]
        if not files:
            raise DataError(
                f"{place} must hold the images of a class, got none with the ending {', '.join(ENDINGS)}; "
                "put images straight into it or take the folder out"
            )
        for path in files:
            name = f"{label}/{check_name(path.name, place)}"
            items.append(ImageEntry(name, label, _inside(path, root)))
    if not items:
        raise DataError(
            f"{folder} must hold a folder for each class, got none; sort the images into folders "
            "named after their classes"
        )
    return items


def list_manifest(manifest: Path) -> list[ImageEntry]:
    """The images that a CSV file with the header path,label names, in its order."""
    remedy = f"write UTF-8 lines under the header {','.join(HEADER)}"
    with telling(manifest, remedy):
        if not manifest.is_file() or manifest.stat().st_size > MANIFEST_LIMIT:
            raise Damaged(manifest, f"must be a regular file of at most {MANIFEST_LIMIT:,} bytes")
        root = manifest.parent.resolve()
        rows = csv.reader(io.StringIO(manifest.read_bytes().decode("utf-8-sig"), newline=""), strict=True)
        try:
            if (header := next(rows, [])) != HEADER:
                raise Damaged(manifest, f"must begin with the header path,label, got {str(header)[:80]}")
            items = [_manifest_item(manifest, root, rows.line_num, row) for row in rows if row]
        except csv.Error as error:
            raise Damaged(manifest, f"line {rows.line_num} is not CSV ({error})") from error
        if not items:
            raise Damaged(manifest, "must name at least one image, got none")
    return items


def _manifest_item(manifest: Path, root: Path, line: int, row: list[str]) -> ImageEntry:
    where = f"{manifest} line {line}"
    if len(row) != len(HEADER):
        raise DataError(f"{where} must have a path and a label, got {len(row)} fields; mend the line")
    path, label = row[0], row[1].strip()  # a blank beside the comma must not make another class
    file = _inside(manifest.parent / check_name(path, where), root)
    return ImageEntry(file.relative_to(root).as_posix(), check_name(label, where), file)


def decode(image: "Image.Image", side: int | None, channels: int) -> Bytes:
    """Upright pixels (C, H, W) of eight bits, alpha over black; with a side, the middle square at it."""
    from PIL import Image

    image.load()  # first, so that no damage to the pixels passes for damage to the EXIF data
    turn = None
    with suppress(*BROKEN):  # cameras write broken EXIF data; such an image is taken as it lies
        turn = TURNS.get(image.getexif().get(ORIENTATION, 1))
    if image.mode.startswith("I"):  # 16 bits; Pillow would clip them, and keeps the upper half of colours
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        shown = image.convert("RGBA")
        image = Image.new("RGB", shown.size)
        image.paste(shown, mask=shown)
    image = image.convert("L" if channels == 1 else "RGB")
    if turn:
        image = image.transpose(Image.Transpose[turn])
    if side:
        # Cropped by the same step that resizes: a long strip scaled as a whole could fill the memory.
        (width, height), edge = image.size, min(image.size)
        left, top = (width - edge) / 2, (height - edge) / 2
        box = (left, top, left + edge, top + edge)
        image = image.resize((side, side), Image.Resampling.BILINEAR, box)
    pixels = np.asarray(image)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


@contextmanager
def _opened(path: Path) -> Iterator["Image.Image"]:
    """An image with a header that is fit to be decoded; whatever goes wrong inside is a DataError."""
    from PIL import Image, UnidentifiedImageError

    with telling(path, REPLACE):
        if (size := path.stat().st_size) > FILE_LIMIT:
            raise Damaged(path, f"has {size:,} bytes, expected at most {FILE_LIMIT:,}")
        try:
            # From an open file and not by name: Pillow would map that, and die if it shrinks meanwhile.
            with path.open("rb") as file, Image.open(file, formats=FORMATS) as image:
                width, height = image.size
                if not 0 < width * height <= PIXEL_LIMIT or max(image.size) > SIDE_LIMIT:
                    limits = f"1 to {PIXEL_LIMIT:,}, at most {SIDE_LIMIT:,} a side"
                    raise Damaged(path, f"has {width} x {height} pixels, expected {limits}")
                yield image
        except UnidentifiedImageError as error:
            raise Damaged(path, "is not an image, expected JPEG, PNG, WebP or BMP") from error
        except (Image.DecompressionBombError, MemoryError) as error:
            raise Damaged(path, f"needs too much memory, expected at most {PIXEL_LIMIT:,} pixels") from error


def _read_header(path: Path) -> Header:
    with _opened(path) as image:
        return header_of(image)


@contextmanager
def telling(path: Path, remedy: str) -> Iterator[None]:
    """Whatever goes wrong while reading a file becomes one DataError that says what to do."""
    try:
        with reading(path):
            yield
    except Damaged as error:
        raise DataError(f"{error}; {remedy}") from error


def _entries(folder: Path) -> list[Path]:
    """What lies in a folder and is not hidden, by name."""
    with telling(folder, REPLACE):
        return sorted((p for p in folder.iterdir() if not p.name.startswith(".")), key=lambda p: p.name)


def _inside(path: Path, root: Path) -> Path:
    """The regular file behind a path, links followed, if it lies in the root."""
    with telling(path, REPLACE):
        file = path.resolve()
        if not file.is_relative_to(root):
            raise DataError(f"{path} must stay inside {root}, got {file}; copy the file into the folder")
        if not file.is_file():  # a pipe would be waited for without end
            raise Damaged(path, "is missing or no regular file")
        return file


def check_name(name: str, where: object) -> str:
    """A name that can be shown and written anywhere."""
    if not name.strip() or any(category(sign) in ("Cc", "Cs") for sign in name):
        raise DataError(f"{where}: names must be text without control characters, got {name!a}; rename it")
    return name


def check_settings(side: int | None, channels: int | None) -> None:
    largest = isqrt(PIXEL_LIMIT)
    if side is not None and not 1 <= side <= largest:
        raise ConfigError(f"side must be 1 to {largest} pixels, got {side}; give another or none")
    if channels not in (None, 1, 3):
        raise ConfigError(
            f"channels must be 1 (grey) or 3 (colour), got {channels}; give one of them or none"
        )


def allocate(source: object, shape: tuple[int, ...]) -> Bytes:
    """Room for images, or a DataError that names the source and what it needs."""
    try:
        return np.empty(shape, np.uint8)
    except (MemoryError, ValueError) as error:
        need = f"{shape[0]:,} images of {' x '.join(map(str, shape[1:]))} bytes do not fit into memory"
        raise DataError(f"{source}: {need}; give a smaller side or fewer images") from error


def _unequal(source: Path, first: str, shape: tuple[int, ...], name: str, got: tuple[int, ...]) -> DataError:
    return DataError(
        f"{source}: images must have one size, got {first} of {shape[-1]} x {shape[-2]} pixels and {name} of "
        f"{got[-1]} x {got[-2]}; give a side to resize and crop them to"
    )
