"""Methods as points or lines in a plane: stability against plasticity, accuracy against memory and time."""

from collections import defaultdict
from dataclasses import replace
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from strongreplay.report.layout import Point, add_labels, add_legend, draw_bound, draw_points, lay_out
from strongreplay.report.styles import (
    TITLES,
    UPPER_BOUND,
    Style,
    caption,
    drawn,
    matrices_of,
    scenarios_of,
    score_of,
    style_groups,
    told,
)
from strongreplay.report.svg import say
from strongreplay.report.tables import Group, Summary, summarise
from strongreplay.runs.recipes import PUBLISHED

ACCURACY = "average accuracy after the last task (%)"


def plane_figure(groups: list[Group]) -> Figure:
    """What was learnt against what is left of it in the end."""
    found = {
        s: [p for g, style in style_groups(groups) if (p := plane_point(g, style, s))]
        for s in scenarios_of(groups)
    }
    found = {scenario: points for scenario, points in found.items() if points}
    figure, panels = lay_out(caption(groups), [TITLES[scenario] for scenario in found], 4.6, 5.4)
    for panel, (scenario, points) in zip(panels, found.items(), strict=True):
        draw_points(panel, points)
        draw_no_loss(panel)
        for group, style in style_groups(groups):
            past = summarise(float(m[-1, :-1].mean()) for m in matrices_of(group, scenario) if m.shape[1] > 1)
            if group.method == UPPER_BOUND and past:
                draw_bound(panel, style, past)
        panel.set_xlabel("plasticity: accuracy on each task just after learning it (%)")
        panel.set_ylabel("stability: accuracy on past tasks in the end (%)")
        if panel.get_legend_handles_labels()[1]:
            panel.legend(fontsize="small", framealpha=0, loc="best")
    add_labels(figure, panels, list(found.values()))
    return figure


def plane_point(group: Group, style: Style, scenario: str) -> Point | None:
    matrices = [m for m in matrices_of(group, scenario) if len(m) > 1]
    if group.method == UPPER_BOUND or not matrices:
        return None
    x = fmean(float(np.diag(matrix).mean()) for matrix in matrices)
    y = fmean(float(matrix[-1, :-1].mean()) for matrix in matrices)
    text = f"{style.label}: plasticity {x:.2f} %, stability {y:.2f} % (n = {len(matrices)})"
    return Point(x, y, style, text) if np.isfinite([x, y]).all() else None


def draw_no_loss(panel: Axes) -> None:
    """Where a method would be that forgets nothing, as far as the panel reaches."""
    left, right, low, high = *panel.get_xlim(), *panel.get_ylim()
    if min(right, high) - max(left, low) > (right - left) / 10:  # more than a corner
        panel.plot([0, 100], [0, 100], color="#999999", linewidth=0.8, label="nothing lost", zorder=1)
        panel.set(xlim=(left, right), ylim=(low, high))


def memory_figure(groups: list[Group]) -> Figure:
    """Average accuracy against memory, a line a method that has two sizes; without memory, a line across."""
    found = {scenario: lines_of(groups, scenario) for scenario in scenarios_of(groups)}
    found = {scenario: lines for scenario, lines in found.items() if lines}
    figure, panels = lay_out(caption(groups), [TITLES[scenario] for scenario in found], beside=2.4)
    for panel, (scenario, lines) in zip(panels, found.items(), strict=True):
        # The size is on the axis and not in the label.
        ends = [replace(line[-1][0], memory_size=None) for line in lines]
        others = [group for group in groups if group.memory_size is None]
        styles = [style for _, style in style_groups([*ends, *others])]
        for style, line in zip(styles, lines, strict=False):
            draw_line(panel, style, [(group.memory_size or 0, score) for group, score in line])
        sizes = sorted({group.memory_size or 0 for line in lines for group, _ in line})
        for style, group in zip(styles[len(lines) :], others, strict=True):
            draw_across(panel, group, style, scenario, sizes)
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(FixedLocator(sizes))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
        panel.set(xlabel="memory (samples)", ylabel=ACCURACY)
        panel.grid(alpha=0.3)
    add_legend(figure, panels)
    return figure


def lines_of(groups: list[Group], scenario: str) -> list[list[tuple[Group, Summary]]]:
    """Groups of one method and variant by memory size, the best first, where there are two sizes."""
    lines: dict[tuple[str, str], list[tuple[Group, Summary]]] = defaultdict(list)
    for group in sorted(groups, key=lambda g: g.memory_size or 0):
        score = score_of(group, scenario, "average_accuracy")
        if group.memory_size and score:  # an empty memory has no place on a log axis
            # Of two sizes one may have nothing to be told apart from, and then no name.
            variant = "" if group.variant == PUBLISHED else group.variant
            lines[group.method, variant].append((group, score))
    return sorted((line for line in lines.values() if len(line) > 1), key=lambda line: -line[-1][1].mean)


def draw_line(panel: Axes, style: Style, line: list[tuple[int, Summary]]) -> None:
    sizes, means = [size for size, _ in line], [score.mean for _, score in line]
    spreads = [score.deviation or 0.0 for _, score in line]
    panel.errorbar(sizes, means, spreads, fmt="none", ecolor=style.colour, capsize=2, linewidth=0.8)
    (drawn_line,) = panel.plot(sizes, means, color=style.colour, marker=style.marker, linestyle=style.dash)
    drawn_line.set_label(drawn(style.label))
    say(drawn_line, [f"{style.label}, memory {size}: {told(score)}" for size, score in line])


def draw_across(panel: Axes, group: Group, style: Style, scenario: str, sizes: list[int]) -> None:
    score = score_of(group, scenario, "average_accuracy")
    if score is None:
        return
    if group.method == UPPER_BOUND:
        return draw_bound(panel, style, score)
    ends, label = (sizes[0], sizes[-1]), f"{style.label}, no memory"
    (line,) = panel.plot(ends, [score.mean] * 2, color=style.colour, marker=style.marker, linestyle=":")
    line.set(label=drawn(label))
    say(line, [f"{label}: {told(score)}"] * 2)


def time_figure(groups: list[Group]) -> Figure:
    """Average accuracy against the seconds spent on training."""
    found = {
        s: [p for g, style in style_groups(groups) if (p := time_point(g, style, s))]
        for s in scenarios_of(groups)
    }
    found = {scenario: points for scenario, points in found.items() if points}
    figure, panels = lay_out(caption(groups), [TITLES[scenario] for scenario in found], 4.6, 5.4)
    for panel, (scenario, points) in zip(panels, found.items(), strict=True):
        panel.set_xscale("log")
        draw_points(panel, points)
        bounds = [(g, style) for g, style in style_groups(groups) if g.method == UPPER_BOUND]
        for group, style in bounds:
            draw_across(panel, group, style, scenario, [])
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set(xlabel="training time (seconds)", ylabel=ACCURACY)
        if bounds:
            panel.legend(fontsize="small", framealpha=0, loc="best")
    add_labels(figure, panels, list(found.values()))
    return figure


def time_point(group: Group, style: Style, scenario: str) -> Point | None:
    score = score_of(group, scenario, "average_accuracy")
    phases = [record.measured.get("phases", {}).get("train", {}) for record in group.records]
    seconds = [float(phase["seconds"]) for phase in phases if phase.get("seconds", 0) > 0]
    if group.method == UPPER_BOUND or score is None or not seconds:
        return None
    return Point(fmean(seconds), score.mean, style, f"{style.label}: {told(score)} in {fmean(seconds):.1f} s")
