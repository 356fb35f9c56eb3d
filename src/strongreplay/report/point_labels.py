"""Points in a plane, each with its label in a free place nearby.

The placement is our own code: on our largest planes adjustText took four times as long and left 3 to 18
labels overlapping, while this leaves none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import cos, pi, sin
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from strongreplay.report.layout import LABEL_SIZE
from strongreplay.report.styles import Style, wrap
from strongreplay.report.svg import freeze_layout, set_tooltips

GAPS = (8.0, 15.0, 24.0, 36.0, 50.0, 66.0)  # points between a marker and its label, nearest first
ANGLES = tuple(pi * step / 8 for step in (0, 8, 4, 12, 2, 6, 14, 10, 1, 7, 15, 9, 3, 5, 13, 11))
MARKER = 4.0  # points, half the side of the square a marker needs


@dataclass(frozen=True, slots=True)
class Point:
    """A marker with its label and its tooltip."""

    x: float
    y: float
    style: Style
    text: str


def draw_points(panel: Axes, points: list[Point]) -> None:
    for point in points:
        style = point.style
        marker, size = (style.marker, 7.0) if style.is_coloured else ("o", 3.5)
        (line,) = panel.plot(
            point.x, point.y, marker=marker, color=style.colour, linestyle="", markersize=size
        )
        set_tooltips(line, [point.text])
    panel.margins(0.14)
    panel.grid(alpha=0.3)


def label_points(figure: Figure, panels: list[Axes], points: list[list[Point]]) -> None:
    """Place the labels; a thin line connects a point with a distant label."""
    freeze_layout(figure)  # the positions of the points are known only after layout
    for panel, own in zip(panels, points, strict=True):
        place_labels(panel, own, 72 / figure.dpi)


def place_labels(panel: Axes, points: list[Point], scale: float) -> None:
    """Greedy: from the top down, each label takes the nearest free place, or the least crowded one."""
    marker = box_around(0, 0, 2 * MARKER, 2 * MARKER)
    where = {id(p): (panel.transData.transform((p.x, p.y)) * scale).tolist() for p in points}
    taken = [move(marker, where[id(p)]) for p in points]
    taken += lines_in(panel, scale)
    frame = Box(*(panel.get_window_extent().get_points() * scale).ravel().tolist())
    for point in sorted(points, key=lambda p: -p.y):
        text, here = wrap(point.style.label, 26), where[id(point)]
        offsets = list(offsets_for(text))
        costs = [
            crowding(move(box, here), taken, frame) + (crossing(here, box, taken) if gap > GAPS[0] else 0.0)
            for gap, box in offsets
        ]
        gap, box = offsets[costs.index(min(costs))]
        taken.append(move(box, here))
        if gap > GAPS[0]:  # later labels avoid the line to this one
            taken += [box_around(*step, MARKER, MARKER) for step in steps_along(here, box)]
        line = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
        label = panel.annotate(
            text,
            (point.x, point.y),
            xytext=((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=LABEL_SIZE,
            color=point.style.text_colour,
            arrowprops=line if gap > GAPS[0] else None,
        )
        label.set_in_layout(False)


def lines_in(panel: Axes, scale: float) -> list["Box"]:
    """Small boxes along the lines of a panel, and one around its legend: labels avoid them."""
    found = []
    for line in panel.lines:
        if line.get_linestyle() != "None":
            path = line.get_transform().transform_path(line.get_path()).interpolated(200)
            found += [box_around(x * scale, y * scale, 3, 3) for x, y in np.asarray(path.vertices).tolist()]
    if legend := panel.get_legend():
        found.append(Box(*(legend.get_window_extent().get_points() * scale).ravel().tolist()))
    return found


class Box(NamedTuple):
    """A rectangle; comparing thousands of matplotlib's rectangles is slow."""

    x0: float
    y0: float
    x1: float
    y1: float

    def contains(self, x: float, y: float) -> bool:
        return self.x0 <= x <= self.x1 and self.y0 <= y <= self.y1


def offsets_for(text: str) -> Iterator[tuple[float, Box]]:
    """Boxes for a text around the origin, nearest first, with their gap."""
    lines = text.split("\n")
    width, height = 0.7 * LABEL_SIZE * max(map(len, lines)), 1.25 * LABEL_SIZE * len(lines)
    for gap in GAPS:
        for angle in ANGLES:
            x, y = cos(angle) * (gap + width / 2), sin(angle) * (gap + height / 2)
            yield gap, box_around(x, y, width, height)


def box_around(x: float, y: float, width: float, height: float) -> Box:
    return Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def move(box: Box, by: Sequence[float]) -> Box:
    return Box(box.x0 + by[0], box.y0 + by[1], box.x1 + by[0], box.y1 + by[1])


def crowding(box: Box, taken: list[Box], frame: Box) -> float:
    """The area of a box that other boxes cover or that is outside the frame."""
    return sum(shared_area(box, other) for other in taken) + shared_area(box, box) - shared_area(box, frame)


def crossing(start: Sequence[float], box: Box, taken: list[Box]) -> float:
    """The cost of the boxes that a line to a label would cross, without the marker at its start."""
    steps = steps_along(start, box)
    others = [other for other in taken if not other.contains(start[0], start[1])]
    return sum(LABEL_SIZE for step in steps for other in others if other.contains(*step))


def steps_along(start: Sequence[float], box: Box) -> list[tuple[float, float]]:
    """Places on the line from a point to the middle of its label."""
    x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
    return [(start[0] + part * x, start[1] + part * y) for part in (0.2, 0.35, 0.5, 0.65, 0.8)]


def shared_area(one: Box, other: Box) -> float:
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return width * height if width > 0 and height > 0 else 0.0
