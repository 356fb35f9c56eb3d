"""Accuracy after each task as curves; the other pictures are in files beside, and all of them in `gallery`.

A function given nothing it can draw returns a figure without panels.
"""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from strongreplay.metrics import Matrix, accuracy_curve
from strongreplay.report.layout import add_legend, draw_bound, lay_out
from strongreplay.report.styles import (
    TITLES,
    UPPER_BOUND,
    Style,
    caption,
    drawn,
    matrices_of,
    scenarios_of,
    style_groups,
    told,
)
from strongreplay.report.svg import say, write
from strongreplay.report.tables import Group, Summary, summarise


def accuracy_curves(groups: list[Group], path: Path) -> Path:
    """Mean accuracy on the tasks seen so far after each task, a line a method, deviation as a band."""
    return write(curves_figure(groups), path)


def curves_figure(groups: list[Group]) -> Figure:
    """The same as a figure; joint training has no path, only an end, and is a line across."""
    scenarios = scenarios_of(groups)
    heads = [TITLES[scenario] for scenario in scenarios]
    figure, panels = lay_out(caption(groups), heads, beside=2.4)
    for panel, scenario in zip(panels, scenarios, strict=True):
        every = [(style, group.method, curves_of(group, scenario)) for group, style in style_groups(groups)]
        there = [(style, method, curves) for style, method, curves in every if curves.size]
        # The best first, so that the legend has the order in which the lines end.
        for style, method, curves in sorted(there, key=lambda entry: -float(entry[2][:, -1].mean())):
            if method == UPPER_BOUND:
                draw_bound(panel, style, over_seeds(curves[:, -1]))
            else:
                draw_curve(panel, style, curves)
        mark_tasks(panel, max((curves.shape[1] for _, _, curves in there), default=1))
        panel.set(xlabel="tasks learnt", ylabel="accuracy on tasks seen so far (%)")
        panel.grid(alpha=0.3)
    add_legend(figure, panels)
    return figure


def curves_of(group: Group, scenario: str) -> Matrix:
    """A row a seed, a column a task."""
    return np.array([accuracy_curve(matrix) for matrix in matrices_of(group, scenario)])


def over_seeds(values: Matrix) -> Summary:
    summary = summarise(map(float, values))
    assert summary, "a group has at least one seed"
    return summary


def draw_curve(panel: Axes, style: Style, curves: Matrix) -> None:
    tasks = np.flatnonzero(np.isfinite(curves).all(axis=0))  # what was not measured has no marker
    scores = [over_seeds(curves[:, task]) for task in tasks]
    mean, label = np.array([score.mean for score in scores]), drawn(f"{style.label} (n={len(curves)})")
    (line,) = panel.plot(tasks + 1, mean, color=style.colour, marker=style.marker, linestyle=style.dash)
    line.set(label=label, markersize=5)
    say(line, [f"{style.label}, after task {t + 1}: {told(s)}" for t, s in zip(tasks, scores, strict=True)])
    if len(curves) > 1:
        spread = np.array([score.deviation for score in scores])
        low, high = np.maximum(mean - spread, 0), np.minimum(mean + spread, 100)
        panel.fill_between(tasks + 1, low, high, color=style.colour, alpha=0.12, linewidth=0)


def mark_tasks(panel: Axes, num_tasks: int) -> None:
    panel.set_xticks(range(1, num_tasks + 1) if num_tasks <= 10 else range(2, num_tasks + 1, 2))
