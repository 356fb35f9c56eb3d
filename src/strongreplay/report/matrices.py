"""Accuracy on each task after each task, as heat maps."""

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.transforms import AffineDeltaTransform

from strongreplay.metrics import Matrix
from strongreplay.report.layout import lay_out
from strongreplay.report.styles import INK, TITLES, UPPER_BOUND, caption, matrices_of, style_groups
from strongreplay.report.svg import set_tooltips
from strongreplay.report.tables import Group

MOST_NUMBERS = 10  # tasks; with more, numbers in the cells are too small to read
SHADES = 64  # more cannot be distinguished; each is a shape in the colour bar
SQUARE = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) / 2
GAPPED, CLOSED = 0.96, 1.02  # sides of a cell; small cells have no gaps, which would look uneven


def matrices_figure(groups: list[Group], scenario: str) -> Figure:
    """One panel per method, with the mean over seeds in each cell."""
    found = [
        (style, matrices_of(g, scenario))
        for g, style in style_groups(groups[::-1])
        if g.method != UPPER_BOUND
    ]
    shown = [(style.label, np.mean(own, axis=0), len(own)) for style, own in found if own and len(own[0]) > 1]
    heads = [f"{label} (n={count})" for label, _, count in shown]
    figure, panels = lay_out(
        caption(groups, TITLES.get(scenario, scenario), "means over seeds"), heads, 2.7, 2.7, columns=4
    )
    if not panels:
        return figure
    seen = np.concatenate([matrix[np.tri(*matrix.shape) > 0] for _, matrix, _ in shown])
    low, high = 10 * np.floor(np.nanmin(seen) / 10), 10 * np.ceil(np.nanmax(seen) / 10)
    shades = ScalarMappable(
        Normalize(low, max(high, low + 10)), matplotlib.colormaps["cividis"].resampled(SHADES)
    )
    for panel, (label, matrix, count) in zip(panels, shown, strict=True):
        draw_matrix(panel, label, matrix, count, shades)
    figure.supxlabel("task", fontsize="medium")
    figure.supylabel("after learning task", fontsize="medium")
    figure.colorbar(shades, ax=panels, label="accuracy (%)", fraction=0.05, aspect=30)
    return figure


def draw_matrix(panel: Axes, label: str, matrix: Matrix, count: int, shades: ScalarMappable) -> None:
    """Draw cells on and below the diagonal, as one shape at many positions to keep the SVG small."""
    rows, columns = np.nonzero((np.tri(*matrix.shape) > 0) & np.isfinite(matrix))
    values, places = matrix[rows, columns], np.stack([columns, rows], axis=1) + 1
    colours = shades.to_rgba(values)
    cell = SQUARE * (GAPPED if len(matrix) <= MOST_NUMBERS else CLOSED)
    delta = AffineDeltaTransform(panel.transData)  # type: ignore[arg-type]  # both axes are linear
    cells = PolyCollection(
        [cell], offsets=places, offset_transform=panel.transData, facecolors=colours, linewidths=0
    )
    cells.set(transform=delta, clip_on=False)
    texts = [f"task {x} after {y}: {v:.2f} %" for (x, y), v in zip(places, values, strict=True)]
    set_tooltips(cells, [f"{label}, {text} (n = {count})" for text in texts])
    panel.add_collection(cells, autolim=False)
    if len(matrix) <= MOST_NUMBERS:
        for (x, y), v, (red, green, blue, _) in zip(places, values, colours, strict=True):
            ink = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else INK
            panel.text(x, y, f"{v:.0f}", color=ink, ha="center", va="center", fontsize="x-small")
    panel.set(xlim=(0.4, matrix.shape[1] + 0.6), ylim=(len(matrix) + 0.6, 0.4), aspect="equal")
    step = 1 if len(matrix) <= MOST_NUMBERS else 5
    panel.set_xticks([t for t in range(1, matrix.shape[1] + 1) if t % step == 0], minor=False)
    panel.set_yticks([t for t in range(1, len(matrix) + 1) if t % step == 0], minor=False)
    panel.tick_params(labelsize="x-small", length=2)
    panel.spines[["top", "right"]].set_visible(False)
