"""Images on one sheet, a row a class with its name beside it; those that are marked have a frame."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from strongreplay.errors import RunError

MOST_ROWS = 100  # classes
IN_ROW = 24  # images of a class beside each other
MOST_LINES = 20  # of one class, if there is no other
SMALL, LARGE = 32, 64  # pixels a side: smaller images are enlarged, larger ones shrunk
GAP, TEXT_WIDTH, TEXT_SIZE = 4, 170, 14
INK, PAPER, FRAME = (30, 30, 30), (255, 255, 255), (213, 94, 0)

Pixels = npt.NDArray[np.uint8]


def draw_sheet(
    images: Pixels,
    labels: Sequence[str],
    framed: Sequence[bool],
    path: Path,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> int:
    """Write the picture and tell how many images are on it."""
    lines = arrange(labels)
    side = min(max(images.shape[2], images.shape[3], SMALL), LARGE)
    step = side + GAP
    font = ImageFont.load_default(TEXT_SIZE)
    names_width = min(TEXT_WIDTH, 4 * GAP + int(max(font.getlength(name) for name, _ in lines)))
    width = names_width + step * max(len(rows) for _, rows in lines) + GAP
    sheet = Image.new("RGB", (max(width, 320), step * (len(lines) + 1) + GAP), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((GAP, GAP), "a row a class; in a frame: held out to judge by", INK, font)
    for number, (name, rows) in enumerate(lines, 1):
        progress("drawing", number, len(lines))
        top = number * step + GAP
        pen.text((GAP, top + side // 2 - TEXT_SIZE // 2 - 2), fitting(name, font), INK, font)
        for place, row in enumerate(rows):
            left = names_width + place * step
            sheet.paste(tile(images[row], side), (left, top))
            if framed[row]:
                pen.rectangle((left - 2, top - 2, left + side + 1, top + side + 1), outline=FRAME, width=2)
    try:
        sheet.save(path, "PNG")
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error.strerror or error}); choose another place with --out"
        ) from None
    return sum(len(rows) for _, rows in lines)


def arrange(labels: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Lines of a name and the images beside it; one class alone may have several."""
    groups: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        groups.setdefault(label, []).append(row)
    if len(groups) == 1:
        ((name, rows),) = groups.items()
        starts = range(0, min(len(rows), IN_ROW * MOST_LINES), IN_ROW)
        return [("" if start else name, rows[start : start + IN_ROW]) for start in starts]
    return [(name, spread(rows)) for name, rows in list(groups.items())[:MOST_ROWS]]


def spread(rows: list[int]) -> list[int]:
    """At most IN_ROW, evenly over all: what is held out comes last and must not be cut off."""
    if len(rows) <= IN_ROW:
        return rows
    return [rows[place * len(rows) // IN_ROW] for place in range(IN_ROW)]


def tile(image: Pixels, side: int) -> Image.Image:
    pixels = image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
    picture = Image.fromarray(pixels).convert("RGB")
    # Enlarged pixels stay sharp: it is them one wants to see.
    how = Image.Resampling.NEAREST if max(picture.size) < side else Image.Resampling.BILINEAR
    return picture.resize((side, side), how)


def fitting(name: str, font: "ImageFont.FreeTypeFont | ImageFont.ImageFont") -> str:
    """As much of a name as there is room for."""
    cut = name[: TEXT_WIDTH // 3]  # measuring takes time, and hardly a sign is narrower than that
    while cut and font.getlength(cut if cut == name else f"{cut}...") > TEXT_WIDTH - 2 * GAP:
        cut = cut[:-1]
    return cut if cut == name else f"{cut}..."
