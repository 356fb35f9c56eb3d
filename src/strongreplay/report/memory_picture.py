"""A picture of a memory's images, read from the checkpoints beside a record, without torch."""

import base64
import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from strongreplay.errors import DataError
from strongreplay.report.contact_sheet import SheetRow, choose_evenly, draw_rows
from strongreplay.storage import files
from strongreplay.storage.checkpoints import TENSORS, checkpoints, read_files

MOST_IMAGES = 200
MOST_ROWS = 20  # classes; with more, classes do not have their own rows
LARGEST = 32  # pixels a side; larger images are shrunk

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MemoryContents:
    """The filled part of a memory; some methods keep no labels."""

    images: Pixels  # (N, C, H, W)
    labels: Labels | None


@dataclass(frozen=True, slots=True)
class MemoryPicture:
    """A picture as a data URL, its text description, and its size in pixels."""

    address: str
    text: str
    width: int
    height: int


def grid_of(folder: Path, tell: Callable[[str], None]) -> MemoryPicture | None:
    """The memory in the newest complete checkpoint of a folder; `tell` is called for each damaged one."""
    for path in checkpoints(folder):
        try:
            contents = read_contents(path)
        except DataError as error:
            tell(str(error))
            continue
        return draw(contents) if contents is not None and len(contents.images) else None
    return None


def read_contents(path: Path) -> MemoryContents | None:
    """The memory in a checkpoint; None if it has no images, a DataError if it is damaged."""
    from safetensors import SafetensorError, safe_open

    _, _, tree = read_files(path)
    try:
        count = find_number(files.parse_json(tree), "num_filled")
        with safe_open(path / TENSORS, framework="np") as tensors:
            names = {name.rpartition(".")[2]: name for name in tensors.keys() if "/memory." in name}  # noqa: SIM118
            if "images" not in names:
                return None
            images = tensors.get_tensor(names["images"])[:count]
            labels = tensors.get_tensor(names["labels"])[:count] if "labels" in names else None
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path}: not a checkpoint of this package ({error}); remove the folder") from None
    return checked(path, images, labels)


def checked(path: Path, images: Any, labels: Any) -> MemoryContents | None:
    """The contents if they are raw images, grey or colour; else None."""
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        return None
    if labels is not None and labels.shape != (len(images),):
        raise DataError(
            f"{path}: {len(images)} images with labels of shape {labels.shape}; remove the folder"
        )
    return MemoryContents(images, None if labels is None else labels.astype(np.int64))


def find_number(node: Any, name: str) -> int | None:
    """The first whole number of that name in a tree, whose dicts are lists of pairs."""
    if isinstance(node, list) and len(node) == 2 and node[0] == name and isinstance(node[1], int):
        return int(node[1])
    parts = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return next((found for part in parts if (found := find_number(part, name)) is not None), None)


def draw(contents: MemoryContents) -> MemoryPicture:
    """Draw at most MOST_IMAGES: one row per class, or continuous rows if there are too many classes."""
    rows = arrange(contents.labels, len(contents.images))
    height, width = contents.images.shape[2:]
    scale = min(1.0, LARGEST / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    # The background is transparent, so that short rows look right on light and dark pages.
    sheet = draw_rows(contents.images, [SheetRow(numbers) for numbers in rows], size, gap=1)
    address = "data:image/png;base64," + base64.b64encode(encode(sheet)).decode()
    return MemoryPicture(address, describe(contents, rows), *sheet.size)


def arrange(labels: Labels | None, count: int) -> list[list[int]]:
    """The indices of the images to show, row by row."""
    if labels is None:
        return split_rows(choose_evenly(list(range(count)), MOST_IMAGES))
    order = np.argsort(labels, kind="stable")
    classes = np.unique(labels)
    if len(classes) > MOST_ROWS:
        return split_rows(choose_evenly(order.tolist(), MOST_IMAGES))
    most = MOST_IMAGES // len(classes)
    return [choose_evenly(order[labels[order] == label].tolist(), most) for label in classes]


def split_rows(numbers: list[int]) -> list[list[int]]:
    return [numbers[start : start + MOST_ROWS] for start in range(0, len(numbers), MOST_ROWS)]


def encode(sheet: Image.Image) -> bytes:
    """PNG with 255 colours and transparency: a third of the bytes, and no visible difference."""
    buffer = io.BytesIO()
    sheet.quantize(256, method=Image.Quantize.FASTOCTREE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def describe(contents: MemoryContents, rows: list[list[int]]) -> str:
    shown, count = sum(map(len, rows)), len(contents.images)
    how_many = f"{count} images" if shown == count else f"{shown} of {count} images"
    if contents.labels is None:
        return f"{how_many} in the memory, in stored order; the method keeps no labels"
    counts = sorted(Counter(contents.labels.tolist()).items())
    if len(counts) > MOST_ROWS:
        return f"{how_many} in the memory, sorted by class; {len(counts)} classes"
    listed = ", ".join(f"class {label}: {number}" for label, number in counts)
    return f"{how_many} in the memory, one row per class ({listed})"
