"""Images on one sheet, row by row, optionally with names of the rows and frames around some images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from strongreplay.errors import RunError

MOST_ROWS = 100  # classes
IN_ROW = 24  # images per row
MOST_LINES = 20  # rows, if there is only one class
SMALL, LARGE = 32, 64  # pixels a side: smaller images are enlarged, larger ones shrunk
GAP, TEXT_WIDTH, TEXT_SIZE = 4, 170, 14
INK, PAPER, FRAME = (30, 30, 30), (255, 255, 255), (213, 94, 0)

Pixels = npt.NDArray[np.uint8]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class SheetRow:
    """A row of the sheet: the indices of its images, and a name."""

    numbers: list[int]
    name: str = ""


def draw_rows(
    images: Pixels,
    rows: Sequence[SheetRow],
    size: tuple[int, int],
    gap: int,
    framed: Sequence[bool] = (),
    title: str = "",
    progress: Progress = lambda what, done, total: None,
) -> Image.Image:
    """The sheet, with a transparent background; `images` are (N, C, H, W), `size` is width and height."""
    font = ImageFont.load_default(TEXT_SIZE)
    names = [shorten_name(row.name, font) for row in rows]
    names_width = 4 * GAP + int(max(map(font.getlength, names))) if any(names) else 0
    step_x, step_y = size[0] + gap, size[1] + gap
    head = step_y if title else 0
    border = gap if title else 0
    width = names_width + step_x * max(len(row.numbers) for row in rows) - gap + 2 * border
    title_width = int(font.getlength(title)) + 2 * GAP if title else 0
    height = head + step_y * len(rows) - gap + 2 * border
    sheet = Image.new("RGBA", (max(width, title_width), height), (*PAPER, 0))
    pen = ImageDraw.Draw(sheet)
    pen.text((GAP, GAP), title, INK, font)
    for number, (row, name) in enumerate(zip(rows, names, strict=True)):
        progress("drawing", number + 1, len(rows))
        top = head + border + number * step_y
        pen.text((GAP, top + size[1] // 2 - TEXT_SIZE // 2 - 2), name, INK, font)
        for place, image in enumerate(row.numbers):
            left = names_width + place * step_x
            sheet.paste(resize(images[image], size), (left, top))
            if framed and framed[image]:
                box = (left - 2, top - 2, left + size[0] + 1, top + size[1] + 1)
                pen.rectangle(box, outline=FRAME, width=2)
    return sheet


def draw_sheet(
    images: Pixels,
    labels: Sequence[str],
    framed: Sequence[bool],
    path: Path,
    progress: Progress = lambda what, done, total: None,
) -> int:
    """Write a PNG with one row per class; returns the number of images on it."""
    rows = rows_by_label(labels)
    side = min(max(images.shape[2], images.shape[3], SMALL), LARGE)
    title = "one row per class; framed: held out for testing"
    sheet = draw_rows(images, rows, (side, side), GAP, framed, title, progress)
    white = Image.new("RGBA", sheet.size, (*PAPER, 255))
    try:
        Image.alpha_composite(white, sheet).convert("RGB").save(path, "PNG")
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error.strerror or error}); choose another place"
        ) from None
    return sum(len(row.numbers) for row in rows)


def rows_by_label(labels: Sequence[str]) -> list[SheetRow]:
    """One row per class; a single class gets several rows."""
    groups: dict[str, list[int]] = {}
    for number, label in enumerate(labels):
        groups.setdefault(label, []).append(number)
    if len(groups) == 1:
        ((name, numbers),) = groups.items()
        starts = range(0, min(len(numbers), IN_ROW * MOST_LINES), IN_ROW)
        return [SheetRow(numbers[start : start + IN_ROW], "" if start else name) for start in starts]
    # Held-out images are last; a shortened row must still show some of them.
    return [
        SheetRow(choose_evenly(numbers, IN_ROW), name) for name, numbers in list(groups.items())[:MOST_ROWS]
    ]


def choose_evenly(numbers: list[int], most: int) -> list[int]:
    """At most `most` numbers, evenly spaced over the list."""
    if len(numbers) <= most:
        return numbers
    return [numbers[place * len(numbers) // most] for place in range(most)]


def resize(image: Pixels, size: tuple[int, int]) -> Image.Image:
    """A (C, H, W) array as an image of that width and height; enlarged pixels stay sharp."""
    pixels = image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
    picture = Image.fromarray(pixels).convert("RGB")
    method = Image.Resampling.NEAREST if max(picture.size) < max(size) else Image.Resampling.BILINEAR
    return picture if picture.size == size else picture.resize(size, method)


def shorten_name(name: str, font: "ImageFont.FreeTypeFont | ImageFont.ImageFont") -> str:
    """Cut a name to the available width."""
    short = name[: TEXT_WIDTH // 3]  # measuring is slow, and few letters are narrower than three pixels
    while short and font.getlength(short if short == name else f"{short}...") > TEXT_WIDTH - 4 * GAP:
        short = short[:-1]
    return short if short == name else f"{short}..."
