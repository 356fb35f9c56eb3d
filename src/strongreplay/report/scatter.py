"""Methods as points: stability against plasticity, accuracy against training time."""

from collections.abc import Callable
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from strongreplay.report.layout import draw_bound, lay_out
from strongreplay.report.point_labels import LabelledPoint, draw_points, label_points
from strongreplay.report.styles import (
    TITLES,
    UPPER_BOUND,
    Style,
    caption,
    describe_score,
    matrices_of,
    scenarios_of,
    style_groups,
)
from strongreplay.report.summary import summarise
from strongreplay.report.tables import Group

ACCURACY = "average accuracy after the last task (%)"
MakePoint = Callable[[Group, Style, str], LabelledPoint | None]
FinishPanel = Callable[[Axes, list[tuple[Group, Style]], str], None]


def plane_figure(groups: list[Group], scenario: str = "") -> Figure:
    """Plasticity (accuracy just after learning) against stability (accuracy in the end)."""
    return draw_plane(groups, scenario, plane_point, finish_plane)


def time_figure(groups: list[Group], scenario: str = "") -> Figure:
    """Average accuracy against the seconds spent on training."""
    return draw_plane(groups, scenario, time_point, finish_time)


def draw_plane(groups: list[Group], scenario: str, make: MakePoint, finish: FinishPanel) -> Figure:
    """One panel per scenario, one point per group; joint training is a horizontal line."""
    styled = style_groups(groups)
    names = [scenario] if scenario else scenarios_of(groups)
    found = {name: [p for g, style in styled if (p := make(g, style, name))] for name in names}
    found = {name: points for name, points in found.items() if points}
    figure, panels = lay_out(caption(groups, "means over seeds"), [TITLES[name] for name in found], 5.0, 6.6)
    for panel, (name, points) in zip(panels, found.items(), strict=True):
        draw_points(panel, points)
        finish(panel, styled, name)
        if panel.get_legend_handles_labels()[1]:
            panel.legend(fontsize="small", framealpha=0, loc="best")
    label_points(figure, panels, list(found.values()))
    return figure


def plane_point(group: Group, style: Style, scenario: str) -> LabelledPoint | None:
    matrices = [m for m in matrices_of(group, scenario) if len(m) > 1]
    if group.method == UPPER_BOUND or not matrices:
        return None
    x = fmean(float(np.diag(matrix).mean()) for matrix in matrices)
    y = fmean(float(matrix[-1, :-1].mean()) for matrix in matrices)
    text = f"{style.label}: plasticity {x:.2f} %, stability {y:.2f} % (n = {len(matrices)})"
    return LabelledPoint(x, y, style, text) if np.isfinite([x, y]).all() else None


def finish_plane(panel: Axes, styled: list[tuple[Group, Style]], scenario: str) -> None:
    draw_no_loss(panel)
    for group, style in styled:
        past = summarise(float(m[-1, :-1].mean()) for m in matrices_of(group, scenario) if m.shape[1] > 1)
        if group.method == UPPER_BOUND and past and (end := draw_bound(panel, style, past)):
            panel.lines[-1].set_label(end.text)
    panel.set_xlabel("plasticity: accuracy on each task just after learning it (%)")
    panel.set_ylabel("stability: accuracy on past tasks in the end (%)")


def draw_no_loss(panel: Axes) -> None:
    """Draw the diagonal, on which a method without forgetting lies."""
    left, right, low, high = *panel.get_xlim(), *panel.get_ylim()
    if min(right, high) - max(left, low) > (right - left) / 10:  # skip it if only a corner would show
        panel.plot([0, 100], [0, 100], color="#999999", linewidth=0.8, label="nothing lost", zorder=1)
        panel.set(xlim=(left, right), ylim=(low, high))


def time_point(group: Group, style: Style, scenario: str) -> LabelledPoint | None:
    score = group.score(scenario, "average_accuracy")
    seconds = group.train_seconds
    if group.method == UPPER_BOUND or score is None or not seconds:
        return None
    return LabelledPoint(
        seconds, score.mean, style, f"{style.label}: {describe_score(score)} in {seconds:.1f} s"
    )


def finish_time(panel: Axes, styled: list[tuple[Group, Style]], scenario: str) -> None:
    panel.set_xscale("log")
    for group, style in styled:
        score = group.score(scenario, "average_accuracy")
        if group.method == UPPER_BOUND and score and (end := draw_bound(panel, style, score)):
            panel.lines[-1].set_label(end.text)
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set(xlabel="training time (seconds, median over seeds)", ylabel=ACCURACY)
