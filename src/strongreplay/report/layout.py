"""Parts that pictures share: panels in rows, a legend for all of them, lines across, labels beside points."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import cos, isfinite, pi, sin
from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from strongreplay.report.styles import Style, drawn, told
from strongreplay.report.svg import say, settle
from strongreplay.report.tables import Summary

LABEL_SIZE = 8.0  # points
LETTERS = 10.5  # of a title, in an inch
GAPS = (8.0, 15.0, 24.0, 36.0, 50.0)  # points between a marker and its label, nearest first
ANGLES = tuple(pi * step / 8 for step in (0, 8, 4, 12, 2, 6, 14, 10, 1, 7, 15, 9, 3, 5, 13, 11))
MARKER = 4.0  # points, half the side of the square a marker needs


def lay_out(
    title: str,
    heads: list[str],
    height: float = 4.4,
    width: float = 4.6,
    columns: int = 4,
    beside: float = 0.0,
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each head, in rows, and room beside for a legend; sizes in inches."""
    across = min(columns, len(heads)) or 1
    down = -(-len(heads) // across) or 1
    figure = Figure(figsize=(width * across + beside, height * down), layout="constrained")
    panels: list[Axes] = list(figure.subplots(down, across, squeeze=False).flat) if heads else []
    for panel in panels[len(heads) :]:
        panel.remove()
    for panel, head in zip(panels, heads, strict=False):
        panel.set_title(drawn(head, int(LETTERS * width)), fontsize="medium")
    if heads:
        figure.suptitle(
            drawn(title, int(LETTERS * (width * across + beside))), x=0.01, ha="left", fontsize="medium"
        )
    return figure, panels[: len(heads)]


def add_legend(figure: Figure, panels: list[Axes]) -> None:
    """One for all panels, outside; what is in some of them only is in it as well."""
    found: dict[str, Artist] = {}
    for panel in panels:
        handles, labels = panel.get_legend_handles_labels()
        found |= {label: handle for handle, label in zip(handles, labels, strict=True) if label not in found}
    if found:
        style = {"fontsize": "small", "framealpha": 0, "handlelength": 3}
        figure.legend(found.values(), found, loc="outside right upper", **style)


def draw_bound(panel: Axes, style: Style, score: Summary) -> None:
    """A line across for joint training, which learns all tasks at once."""
    if not isfinite(score.mean):
        return
    label = drawn(f"{style.label}, upper bound (n={score.count})")
    line = panel.axhline(score.mean, color=style.colour, linestyle=":", label=label, zorder=1)
    say(line, [f"{style.label}, upper bound: {told(score)}"])


@dataclass(frozen=True, slots=True)
class Point:
    """A marker with its label beside it and its text under the pointer."""

    x: float
    y: float
    style: Style
    text: str


def draw_points(panel: Axes, points: list[Point]) -> None:
    for point in points:
        marker, colour = point.style.marker, point.style.colour
        (line,) = panel.plot(point.x, point.y, marker=marker, color=colour, linestyle="", markersize=7.0)
        say(line, [point.text])
    panel.margins(0.14)
    panel.grid(alpha=0.3)


def add_labels(figure: Figure, panels: list[Axes], points: list[list[Point]]) -> None:
    """Beside each point its label, where there is room; one that has to stand apart gets a thin line."""
    settle(figure)  # only now it is known where the points are
    for panel, own in zip(panels, points, strict=True):
        label_points(panel, own, 72 / figure.dpi)


def label_points(panel: Axes, points: list[Point], scale: float) -> None:
    """Greedy: from the top down, each label takes the nearest free place, or the least crowded one."""
    marker = box_around(0, 0, 2 * MARKER, 2 * MARKER)
    where = {id(p): (panel.transData.transform((p.x, p.y)) * scale).tolist() for p in points}
    taken = [moved(marker, where[id(p)]) for p in points]
    frame = Box(*(panel.get_window_extent().get_points() * scale).ravel().tolist())
    for point in sorted(points, key=lambda p: -p.y):
        text = drawn(point.style.label, 26)
        offsets = list(offsets_of(text))
        here = where[id(point)]
        costs = [
            crowding(moved(box, here), taken, frame) + (crossing(here, box, taken) if gap > GAPS[0] else 0.0)
            for gap, box in offsets
        ]
        gap, box = offsets[costs.index(min(costs))]
        taken.append(moved(box, here))
        label = panel.annotate(
            text,
            (point.x, point.y),
            xytext=((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=LABEL_SIZE,
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
            if gap > GAPS[0]
            else None,
        )
        label.set_in_layout(False)


class Box(NamedTuple):
    """Matplotlib's own takes most of the time when thousands are compared."""

    x0: float
    y0: float
    x1: float
    y1: float

    def contains(self, x: float, y: float) -> bool:
        return self.x0 <= x <= self.x1 and self.y0 <= y <= self.y1


def offsets_of(text: str) -> Iterator[tuple[float, Box]]:
    """Boxes for a text around the origin, nearest first, with their gap."""
    lines = text.split("\n")
    width, height = 0.7 * LABEL_SIZE * max(map(len, lines)), 1.25 * LABEL_SIZE * len(lines)
    for gap in GAPS:
        for angle in ANGLES:
            x, y = cos(angle) * (gap + width / 2), sin(angle) * (gap + height / 2)
            yield gap, box_around(x, y, width, height)


def box_around(x: float, y: float, width: float, height: float) -> Box:
    return Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def moved(box: Box, by: Sequence[float]) -> Box:
    return Box(box.x0 + by[0], box.y0 + by[1], box.x1 + by[0], box.y1 + by[1])


def crowding(box: Box, taken: list[Box], frame: Box) -> float:
    """The area of a box that is not its own."""
    return sum(shared(box, other) for other in taken) + shared(box, box) - shared(box, frame)


def crossing(start: Sequence[float], box: Box, taken: list[Box]) -> float:
    """What a line to a label would cross, but for the marker it begins at."""
    x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
    steps = [(start[0] + part * x, start[1] + part * y) for part in (0.3, 0.5, 0.7)]
    others = [other for other in taken if not other.contains(start[0], start[1])]
    return sum(LABEL_SIZE for step in steps for other in others if other.contains(*step))


def shared(one: Box, other: Box) -> float:
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return width * height if width > 0 and height > 0 else 0.0
