"""Read a user's labelled images, from class folders or a CSV manifest, into one uint8 tensor.

Every file must be inside the folder. All headers are read before any pixels, so that a bad file is reported
at once and not after an hour.
"""

import csv
import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from strongreplay.data import images
from strongreplay.data.archives import Damaged, OnProgress, telling
from strongreplay.data.images import ENDINGS, REPLACE
from strongreplay.data.labels import check_name
from strongreplay.data.rows import Rows
from strongreplay.errors import DataError

if TYPE_CHECKING:
    from strongreplay.data.convert import Fit

HEADER = ["path", "label"]
MANIFEST_LIMIT = 1 << 26  # bytes; about a million lines


@dataclass(frozen=True, slots=True)
class Images:
    """Decoded images with labels and paths."""

    inputs: Tensor  # (N, C, H, W) uint8
    labels: list[str]
    paths: list[str]  # relative to the folder


class ImageEntry(NamedTuple):
    """One image to read: displayed name, label, and file with links resolved."""

    name: str
    label: str
    file: Path


def read_images(
    source: Path,
    side: int | None,
    channels: int | None,
    progress: OnProgress | None = None,
    *,
    largest: int | None = None,
    fit: "Fit | None" = None,
) -> Images:
    """All images of a folder or manifest, in order; without `side` and `largest` they must have one size.

    `fit` may choose side and channels when those of the files are known, and make other rows of the images.
    """
    images.check_settings(side, channels)
    with telling(source, "give a folder of class folders, or a CSV manifest"):
        source.stat()
        items = list_folder(source) if source.is_dir() else list_manifest(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about metadata that is not used here
        headers = [images.read_header(item.file) for item in items]
        if fit is not None:
            fit = fit.settled(images.choose_side(headers), images.choose_channels(headers))
            side, channels = fit.side, fit.channels
        channels = channels or images.choose_channels(headers)
        if side is None and largest is not None:
            side = images.choose_side(headers, largest)
        rows = Rows(source, len(items), fit.transform if fit else None)
        for row, item in enumerate(items):
            with images.opened(item.file) as image:
                pixels = images.decode(image, side, channels)
            if pixels.shape != (rows.shape or pixels.shape):
                raise _unequal(source, items[0].name, rows.shape or (), item.name, pixels.shape)
            rows.add(pixels)
            images.report(progress, row + 1, len(items))
    return Images(rows.tensor(), [item.label for item in items], [item.name for item in items])


def list_folder(folder: Path) -> list[ImageEntry]:
    """The images of each class folder, sorted by class and file name; deeper folders are ignored."""
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
    """The images listed in a CSV file with the columns path and label, in its order; others are ignored."""
    remedy = f"write UTF-8 lines under the header {','.join(HEADER)}"
    with telling(manifest, remedy):
        if not manifest.is_file() or manifest.stat().st_size > MANIFEST_LIMIT:
            raise Damaged(manifest, f"must be a regular file of at most {MANIFEST_LIMIT:,} bytes")
        root = manifest.parent.resolve()
        rows = csv.reader(io.StringIO(manifest.read_bytes().decode("utf-8-sig"), newline=""), strict=True)
        try:
            header = [name.strip() for name in next(rows, [])]
            if any(header.count(name) != 1 for name in HEADER):
                raise Damaged(manifest, f"must begin with the header path,label, got {str(header)[:80]}")
            items = [_manifest_item(manifest, root, rows.line_num, row, header) for row in rows if row]
        except csv.Error as error:
            raise Damaged(manifest, f"line {rows.line_num} is not CSV ({error})") from error
        if not items:
            raise Damaged(manifest, "must name at least one image, got none")
    return items


def _manifest_item(manifest: Path, root: Path, line: int, row: list[str], header: list[str]) -> ImageEntry:
    where = f"{manifest} line {line}"
    if len(row) != len(header):
        raise DataError(f"{where} must have a path and a label, got {len(row)} fields; fix the line")
    values = dict(zip(header, row, strict=True))
    path = values["path"]
    label = values["label"].strip()  # a space after the comma must not make another class
    file = _inside(manifest.parent / check_name(path, where), root)
    return ImageEntry(file.relative_to(root).as_posix(), check_name(label, where), file)


def _entries(folder: Path) -> list[Path]:
    """The entries of a folder that are not hidden, sorted by name."""
    with telling(folder, REPLACE):
        return sorted((p for p in folder.iterdir() if not p.name.startswith(".")), key=lambda p: p.name)


def _inside(path: Path, root: Path) -> Path:
    """The regular file of a path, with links resolved; it must be inside the root."""
    with telling(path, REPLACE):
        file = path.resolve()
        if not file.is_relative_to(root):
            raise DataError(f"{path} must stay inside {root}, got {file}; copy the file into the folder")
        if not file.is_file():  # reading a pipe could wait forever
            raise Damaged(path, "is missing or no regular file")
        return file


def _unequal(source: Path, first: str, shape: tuple[int, ...], name: str, got: tuple[int, ...]) -> DataError:
    return DataError(
        f"{source}: images must have one size, got {first} of {shape[-1]} x {shape[-2]} pixels and {name} of "
        f"{got[-1]} x {got[-2]}; give a side to resize and crop them to"
    )
