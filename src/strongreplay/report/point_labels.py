"""Points in a plane, each with its label in a free place nearby.

The placement is our own code: on our largest planes adjustText took four times as long and left 3 to 18
labels overlapping, while this leaves none.
"""

from dataclasses import dataclass
from math import pi
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from strongreplay.report.layout import LABEL_SIZE
from strongreplay.report.styles import Style, wrap
from strongreplay.report.svg import freeze_layout, set_tooltips

GAPS = (8.0, 15.0, 24.0, 36.0, 50.0, 66.0)  # points between a marker and its label, nearest first
ANGLES = tuple(pi * step / 8 for step in (0, 8, 4, 12, 2, 6, 14, 10, 1, 7, 15, 9, 3, 5, 13, 11))
ROUNDS = 4  # how often each label may choose its place
MARKER = 4.0  # points, half the side of the square a marker needs
STEPS = np.array([0.2, 0.35, 0.5, 0.65, 0.8])[:, None]  # of the way from a point to the middle of its label
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LabelledPoint:
    """A marker with its label and its tooltip."""

    x: float
    y: float
    style: Style
    text: str


def draw_points(panel: Axes, points: list[LabelledPoint]) -> None:
    for point in points:
        style = point.style
        marker, size = (style.marker, 7.0) if style.is_coloured else ("o", 3.5)
        (line,) = panel.plot(
            point.x, point.y, marker=marker, color=style.colour, linestyle="", markersize=size
        )
        set_tooltips(line, [point.text])
    panel.margins(0.14)
    panel.grid(alpha=0.3)


def label_points(figure: Figure, panels: list[Axes], points: list[list[LabelledPoint]]) -> None:
    """Place the labels; a thin line connects a point with a distant label."""
    freeze_layout(figure)  # the positions of the points are known only after layout
    for panel, own in zip(panels, points, strict=True):
        place_labels(panel, own, 72 / figure.dpi)


def place_labels(panel: Axes, points: list[LabelledPoint], scale: float) -> None:
    """From the top down, each label takes the nearest free place, or the least crowded one.

    In further rounds it may take another, when the places of all the others are known.
    """
    where = {id(p): panel.transData.transform((p.x, p.y)) * scale for p in points}
    texts = {id(p): wrap(p.style.label, 26) for p in points}
    fixed = np.vstack(
        [boxes_around(np.array([*where.values()]), 2 * MARKER, 2 * MARKER), lines_in(panel, scale)]
    )
    frame = (panel.get_window_extent().get_points() * scale).reshape(1, 4)
    chosen: dict[
        int, tuple[float, Numbers]
    ] = {}  # the gap, and the middle of the label as seen from its point
    covered: dict[int, Numbers] = {}  # by a label and the line to it
    for point in sorted(points, key=lambda p: -p.y) * ROUNDS:
        key, here = id(point), where[id(point)]
        taken = np.vstack([fixed, *(boxes for other, boxes in covered.items() if other != key)])
        gaps, middles, size = places_for(texts[key])
        boxes, steps = boxes_around(here + middles, *size), here + STEPS * middles[:, None]
        inside = shared_areas(boxes, frame)[:, 0]
        costs = shared_areas(boxes, taken).sum(1) + size[0] * size[1] - inside
        costs += np.where(gaps > GAPS[0], LABEL_SIZE * crossings(here, steps, taken), 0)
        best = int(costs.round(6).argmin())  # of equal costs, the nearest
        chosen[key] = gaps[best], middles[best]
        line = boxes_around(steps[best], MARKER, MARKER)[: None if gaps[best] > GAPS[0] else 0]
        covered[key] = np.vstack([boxes[best], line])
    for point in points:
        gap, middle = chosen[id(point)]
        line_style = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
        label = panel.annotate(
            texts[id(point)],
            (point.x, point.y),
            xytext=(float(middle[0]), float(middle[1])),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=LABEL_SIZE,
            color=point.style.text_colour,
            arrowprops=line_style if gap > GAPS[0] else None,
        )
        label.set_in_layout(False)


def lines_in(panel: Axes, scale: float) -> Numbers:
    """Small boxes along the lines of a panel, and one around its legend: labels avoid them."""
    found = [np.empty((0, 4))]
    for line in panel.lines:
        if line.get_linestyle() != "None":
            path = line.get_transform().transform_path(line.get_path()).interpolated(200)
            found.append(boxes_around(np.asarray(path.vertices) * scale, 3, 3))
    if legend := panel.get_legend():
        found.append((legend.get_window_extent().get_points() * scale).reshape(1, 4))
    return np.vstack(found)


def places_for(text: str) -> tuple[Numbers, Numbers, tuple[float, float]]:
    """Gaps and middles of a text around its point, nearest first, and its width and height."""
    lines = text.split("\n")
    width, height = 0.75 * LABEL_SIZE * max(map(len, lines)), 1.25 * LABEL_SIZE * len(lines)
    gaps, angles = (grid.ravel() for grid in np.meshgrid(GAPS, ANGLES, indexing="ij"))
    middles = np.stack([np.cos(angles) * (gaps + width / 2), np.sin(angles) * (gaps + height / 2)], 1)
    return gaps, middles, (width, height)


def boxes_around(middles: Numbers, width: float, height: float) -> Numbers:
    """Rectangles as rows of x0, y0, x1, y1."""
    half = np.array([width / 2, height / 2])
    return np.concatenate([middles - half, middles + half], 1)


def shared_areas(boxes: Numbers, others: Numbers) -> Numbers:
    """The area that each box, a row, shares with each of the others, a column."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return np.asarray(np.clip(high - low, 0, None).prod(2))


def crossings(start: Numbers, steps: Numbers, taken: Numbers) -> Numbers:
    """For each line from `start`, how many of its steps are in boxes, without the marker at its start."""
    others = taken[~inside_of(start, taken)]
    return np.asarray(inside_of(steps[:, :, None], others).sum((1, 2)))


def inside_of(places: Numbers, boxes: Numbers) -> Any:
    return ((places >= boxes[:, :2]) & (places <= boxes[:, 2:])).all(-1)
