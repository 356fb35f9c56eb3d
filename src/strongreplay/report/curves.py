"""Accuracy after each task as curves, a panel for each memory size and scenario.

A drawing function without data to draw returns a figure without panels.
"""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from strongreplay.metrics import Matrix, accuracy_curve
from strongreplay.report.layout import (
    INTERVAL,
    LineEnd,
    draw_bound,
    label_line_ends,
    lay_out,
    panel_height,
)
from strongreplay.report.styles import (
    TITLES,
    UPPER_BOUND,
    Style,
    caption,
    describe_score,
    matrices_of,
    scenarios_of,
    sizes_of,
    style_groups,
)
from strongreplay.report.summary import Summary, summarise
from strongreplay.report.svg import set_tooltips, write
from strongreplay.report.tables import Group

Styled = list[tuple[Group, Style]]


def accuracy_curves(groups: list[Group], path: Path) -> Path:
    """Write the figure to a file."""
    return write(curves_figure(groups), path)


def curves_figure(groups: list[Group], scenario: str = "") -> Figure:
    """Mean accuracy on the tasks seen so far: one line per configuration, with its interval as a band."""
    scenarios = [scenario] if scenario else scenarios_of(groups)
    sizes: list[int | None] = [*sizes_of(groups)] or [None]
    styled = style_groups(groups)
    shown = {
        (size, s): [(g, style) for g, style in styled if g.memory_size in (None, size) and matrices_of(g, s)]
        for size in sizes
        for s in scenarios
    }
    shown = {place: own for place, own in shown.items() if own}
    heads = [head_of(size, s, len(sizes) > 1) for size, s in shown]
    most = max(map(len, shown.values()), default=0)
    what = "" if len(shown) != 1 else heads[0]
    columns = len(scenarios) if len(scenarios) > 1 else 2
    figure, panels = lay_out(
        caption(groups, what, INTERVAL), heads if len(shown) > 1 else [""] * len(shown),
        panel_height(most), 7.2, columns,
    )  # fmt: skip
    ends = [draw_panel(panel, s, shown[size, s]) for panel, (size, s) in zip(panels, shown, strict=True)]
    label_line_ends(figure, panels, ends)
    return figure


def head_of(size: int | None, scenario: str, with_size: bool) -> str:
    return f"memory {size} · {TITLES[scenario]}" if with_size and size is not None else TITLES[scenario]


def draw_panel(panel: Axes, scenario: str, styled: Styled) -> list[LineEnd]:
    curves = {id(group): curves_of(group, scenario) for group, _ in styled}
    num_tasks = max((own.shape[1] for own in curves.values()), default=1)
    panel.set_xlim(0.7, num_tasks + 0.3)
    ends: list[LineEnd | None] = []
    for group, style in sorted(styled, key=lambda entry: entry[1].is_coloured):  # grey lines below the others
        if group.method == UPPER_BOUND:
            score = summarise(map(float, curves[id(group)][:, -1]))
            ends.append(draw_bound(panel, style, score) if score else None)
        else:
            ends.append(draw_curve(panel, style, curves[id(group)]))
    panel.set_xticks(range(1, num_tasks + 1) if num_tasks <= 10 else range(2, num_tasks + 1, 2))
    panel.set(xlabel="tasks learnt", ylabel="accuracy on tasks seen so far (%)")
    panel.grid(alpha=0.3)
    return [end for end in ends if end]


def curves_of(group: Group, scenario: str) -> Matrix:
    """One row per seed, one column per task."""
    return np.array([accuracy_curve(matrix) for matrix in matrices_of(group, scenario)])


def draw_curve(panel: Axes, style: Style, curves: Matrix) -> LineEnd | None:
    tasks = np.flatnonzero(np.isfinite(curves).all(axis=0))  # tasks without a measurement have no marker
    scores = [score for task in tasks if (score := summarise(map(float, curves[:, task])))]
    if not scores:
        return None
    mean = np.array([score.mean for score in scores])
    width, marker = (1.6, style.marker) if style.is_coloured else (0.8, "")
    (line,) = panel.plot(tasks + 1, mean, color=style.colour, marker=marker, linewidth=width, markersize=4.5)
    label = f"{style.label} (n={len(curves)})"
    if style.is_coloured:
        set_tooltips(line, [tooltip(style, int(t), s) for t, s in zip(tasks, scores, strict=True)])
        draw_band(panel, style, np.array(tasks + 1, dtype=np.float64), mean, scores)
    else:
        set_tooltips(line, [tooltip(style, int(tasks[-1]), scores[-1])])
    return LineEnd(float(tasks[-1]) + 1, float(mean[-1]), label, style)


def tooltip(style: Style, task: int, score: Summary) -> str:
    return f"{style.label}, after task {task + 1}: {describe_score(score)}"


def draw_band(panel: Axes, style: Style, x: Matrix, mean: Matrix, scores: list[Summary]) -> None:
    """Draw the intervals. They do not change the axis range, because two seeds give very wide ones."""
    spread = np.array([score.half_width or 0.0 for score in scores])
    if spread.any():
        low, high = np.maximum(mean - spread, 0), np.minimum(mean + spread, 100)
        band = panel.fill_between(x, low, high, color=style.colour, alpha=0.12, linewidth=0)
        band.remove()
        panel.add_collection(band, autolim=False)
