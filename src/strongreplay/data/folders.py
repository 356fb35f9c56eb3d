"""Read a user's labelled images into one tensor: from class folders, lists of images, or tables.

All headers are read before any pixels, so that side and channels are known. If a header is bad, the pixels of
the other files are checked at once, so that one message names all bad files.
"""

import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from strongreplay.data import images
from strongreplay.data.archives import OnProgress, telling
from strongreplay.data.images import ENDINGS, REPLACE
from strongreplay.data.labels import Label, check_name, normalise
from strongreplay.data.layouts import find_parts
from strongreplay.data.manifests import ImageEntry, find_metadata, has_labels, list_manifest, locate
from strongreplay.data.read_options import STRICT, Faults, ReadOptions
from strongreplay.data.rows import Rows
from strongreplay.data.tables import TableFiles, expect_one, find_tables, is_table, list_table
from strongreplay.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

    from strongreplay.data.convert import RequiredForm


KINDS = "give a folder of class folders, or a CSV manifest"


@dataclass(frozen=True, slots=True)
class Images:
    """Decoded images with labels and paths."""

    inputs: Tensor  # (N, C, H, W) uint8
    labels: list[Label]
    paths: list[str]  # relative to the folder


class ListedImages(NamedTuple):
    """Images that are known but not read: names, labels, and a function that opens one after the other."""

    names: list[str]
    labels: list[Label]
    open_all: Callable[[], Iterator[AbstractContextManager["Image.Image"]]]


def read_images(
    source: Path | TableFiles,
    side: int | None,
    channels: int | None,
    progress: OnProgress | None = None,
    *,
    largest: int | None = None,
    form: "RequiredForm | None" = None,
    options: ReadOptions = STRICT,
) -> Images:
    """All images of a source, in order; without `side` and `largest` they must have one size.

    The `choose` of `form` may set side and channels once those of the files are known, and change the rows.
    """
    images.check_settings(side, channels)
    listed = list_images(source, options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about metadata that is not used here
        faults = Faults(source, options)
        headers = read_headers(listed, faults)
        if faults.texts and not (options.skip_bad and headers):
            check_pixels(listed, headers, faults, progress)
            faults.settle(0)
        known = list(headers.values())
        if form is not None:
            form = form.settled(images.choose_side(known), images.choose_channels(known))
            side, channels = form.side, form.channels
        channels = channels or images.choose_channels(known)
        if side is None and largest is not None:
            side = images.choose_side(known, largest)
        rows = Rows(source, len(headers), form.transform if form else None)
        num_bad = len(faults.texts)
        read: list[int] = []
        for row, opening in enumerate(listed.open_all()):
            if row not in headers:
                continue
            pixels = None
            with faults.collected(), opening as image:
                pixels = images.decode(image, side, channels)
            if pixels is not None:
                if pixels.shape != (rows.shape or pixels.shape):
                    names = listed.names[read[0]], listed.names[row]
                    raise _unequal(source, names, rows.shape or (), pixels.shape)
                rows.add(pixels)
                read.append(row)
            images.report(progress, len(read) + len(faults.texts) - num_bad, len(headers))
    faults.settle(len(read))
    return Images(rows.tensor(), [listed.labels[row] for row in read], [listed.names[row] for row in read])


def read_headers(listed: ListedImages, faults: Faults) -> dict[int, images.Header]:
    """The header of each image by its row, without bad ones."""
    headers = {}
    for row, opening in enumerate(listed.open_all()):
        with faults.collected(), opening as image:
            headers[row] = images.header_of(image)
    return headers


def check_pixels(
    listed: ListedImages, rows: Collection[int], faults: Faults, progress: OnProgress | None
) -> None:
    """Find images among these rows that have a header and cannot be decoded."""
    done = 0
    for row, opening in enumerate(listed.open_all()):
        if row in rows:
            with faults.collected(), opening as image:
                images.decode(image, 1, 1)
            done += 1
            images.report(progress, done, len(rows))


def list_images(source: Path | TableFiles, options: ReadOptions = STRICT) -> ListedImages:
    """The images of class folders, of a list, or of tables."""
    if isinstance(source, TableFiles):
        return ListedImages(*list_table(source, options))
    with telling(source, KINDS):
        source.stat()
        if is_table(source) and not source.is_dir():
            return ListedImages(*list_table(TableFiles(source, (source,)), options))
        if not source.is_dir():
            items = list_manifest(source, options)
        elif parts := find_parts(source):
            one = [*parts.values()][-1]
            if isinstance(one, TableFiles) and one.source == source:
                one = one.files[0]
            raise DataError(f"{source} has the parts {', '.join(parts)}; give one of them, such as {one}")
        elif tables := find_tables(source):
            return ListedImages(*list_table(expect_one(source, tables), options))
        else:
            items = list_folder(source, options)
    return ListedImages(
        [item.name for item in items],
        [item.label for item in items],
        lambda: (images.opened(item.file) for item in items),
    )


def list_folder(folder: Path, options: ReadOptions = STRICT) -> list[ImageEntry]:
    """The images of each class folder, sorted by class and file name; deeper folders are ignored.

    A folder with metadata.csv or metadata.jsonl that has labels is read by that list.
    """
    if metadata := find_metadata(folder):
        if has_labels(metadata):
            return list_manifest(metadata, options)
        options.tell(f"{metadata}: has no column of labels; classes are the names of the folders")
    root = folder.resolve()
    items, faults = [], Faults(folder, options)
    for place in _entries(folder):
        if not place.is_dir():
            continue
        label = normalise(check_name(place.name, folder))
        files = [path for path in _entries(place) if path.suffix.lower() in ENDINGS and not path.is_dir()]
        if not files:
            raise DataError(
                f"{place} must hold the images of a class, got none with the ending {', '.join(ENDINGS)}; "
                "put images straight into it or take the folder out"
            )
        for path in files:
            name = f"{label}/{check_name(path.name, place)}"
            with faults.collected():
                items.append(ImageEntry(name, label, locate(path, root, options)))
    faults.settle(len(items))
    if not items:
        raise DataError(
            f"{folder} must hold a folder for each class, got none; sort the images into folders "
            "named after their classes"
        )
    return items


def _entries(folder: Path) -> list[Path]:
    """The entries of a folder that are not hidden, sorted by name."""
    with telling(folder, REPLACE):
        return sorted((p for p in folder.iterdir() if not p.name.startswith(".")), key=lambda p: p.name)


def _unequal(
    source: object, names: tuple[str, str], shape: tuple[int, ...], got: tuple[int, ...]
) -> DataError:
    return DataError(
        f"{source}: images must have one size, got {names[0]} of {shape[-1]} x {shape[-2]} pixels and "
        f"{names[1]} of {got[-1]} x {got[-2]}; give a side to resize and crop them to"
    )
