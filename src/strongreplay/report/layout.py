"""Parts that several figures share: panels in rows, labels at line ends, and horizontal lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from strongreplay.report.styles import Style, describe_score, wrap
from strongreplay.report.summary import Summary
from strongreplay.report.svg import freeze_layout, set_tooltips

LABEL_SIZE = 8.0  # points
LINE_HEIGHT = 1.25 * LABEL_SIZE
LETTERS = 10.5  # letters of a title per inch
LABEL_LETTERS = 28  # of a line of a label; bold ones take as much room as 34 others
INTERVAL = "mean ± 95 % interval over seeds"  # for lines, bands, bars and tooltips


def lay_out(
    title: str, heads: list[str], height: float = 4.4, width: float = 5.4, columns: int = 2
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each head, in rows; sizes of a panel in inches."""
    across = min(columns, len(heads)) or 1
    down = -(-len(heads) // across) or 1
    padded = ConstrainedLayoutEngine(w_pad=0.12)  # inches, so that no label is cut
    figure = Figure(figsize=(width * across, height * down), layout=padded)
    panels: list[Axes] = list(figure.subplots(down, across, squeeze=False).flat) if heads else []
    for panel in panels[len(heads) :]:
        panel.remove()
    for panel, head in zip(panels, heads, strict=False):
        panel.set_title(wrap(head, int(LETTERS * width)), fontsize="medium")
    if heads:
        figure.suptitle(wrap(title, int(LETTERS * width * across)), x=0.01, ha="left", fontsize="medium")
    return figure, panels[: len(heads)]


@dataclass(frozen=True, slots=True)
class LineEnd:
    """The end of a line, and the name to write there."""

    x: float
    y: float
    text: str
    style: Style


def draw_bound(panel: Axes, style: Style, score: Summary) -> LineEnd | None:
    """Draw a horizontal line for joint training, which learns all tasks at once."""
    if not isfinite(score.mean):
        return None
    line = panel.axhline(score.mean, color=style.colour, linestyle=":", linewidth=1.2, zorder=1)
    set_tooltips(line, [f"{style.label}, upper bound: {describe_score(score)}"])
    return LineEnd(panel.get_xlim()[1], score.mean, f"{style.label}, upper bound (n={score.count})", style)


def label_line_ends(figure: Figure, panels: Sequence[Axes], ends: Sequence[Sequence[LineEnd]]) -> None:
    """Write names to the right of a panel, as close to their lines as possible without overlap."""
    texts = [
        [
            panel.text(
                1.04, 0.5, wrap(end.text, LABEL_LETTERS), transform=panel.transAxes, va="center",
                fontsize=LABEL_SIZE, color=end.style.text_colour,
                fontweight="bold" if end.style.label.startswith("SER") else None,
            )
            for end in own
        ]
        for panel, own in zip(panels, ends, strict=True)
    ]  # fmt: skip
    figure.draw_without_rendering()  # lays out: names need the final panel sizes
    freeze_layout(figure)
    for panel, own, labels in zip(panels, ends, texts, strict=True):
        height = panel.get_window_extent().height * 72 / figure.dpi
        places = panel.transData.transform([(end.x, end.y) for end in own]) if own else np.empty((0, 2))
        starts = panel.transAxes.inverted().transform(places) if own else places
        lines = [label.get_text().count("\n") + 1 for label in labels]
        for start, place, label, end in zip(
            starts, spread_out(starts[:, 1] * height, lines, height) / height, labels, own, strict=True
        ):
            label.set_y(place)
            panel.plot(
                [start[0], 1.005, 1.035], [start[1], start[1], place], transform=panel.transAxes,
                color=end.style.colour, linewidth=0.5, alpha=0.7, clip_on=False, zorder=1,
            )  # fmt: skip


def spread_out(
    wished: "np.ndarray[tuple[int], np.dtype[np.float64]]", lines: Sequence[int], height: float
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Positions of labels without overlap that minimise the squared distances to `wished`.

    After the heights of the labels below are subtracted, this is an isotonic regression.
    """
    from scipy.optimize import isotonic_regression

    if not len(wished):
        return wished
    order = np.argsort(wished, kind="stable")
    heights = LINE_HEIGHT * np.array(lines, dtype=float)[order]
    needed = np.cumsum(heights) - (heights + heights[0]) / 2  # height of each centre above the lowest centre
    level = isotonic_regression(wished[order] - needed).x
    top = max(0.0, height - needed[-1])
    places = np.empty_like(wished)
    places[order] = np.clip(level, 0.0, top) + needed
    return places


def panel_height(num_labels: int) -> float:
    """The height in inches that these labels need."""
    return max(4.4, (num_labels + 2) * LINE_HEIGHT / 72 + 1.2)
