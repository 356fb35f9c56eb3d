"""Average accuracy against memory size, as lines."""

from collections import defaultdict
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from strongreplay.report.layout import (
    INTERVAL,
    LineEnd,
    draw_bound,
    label_line_ends,
    lay_out,
    panel_height,
)
from strongreplay.report.scatter import ACCURACY
from strongreplay.report.styles import (
    TITLES,
    UPPER_BOUND,
    Style,
    caption,
    describe_score,
    key_of,
    scenarios_of,
    style_groups,
)
from strongreplay.report.summary import Summary
from strongreplay.report.svg import set_tooltips
from strongreplay.report.tables import Group

Line = list[tuple[Group, Summary]]


def memory_figure(groups: list[Group], scenario: str = "") -> Figure:
    """One line per method with at least two sizes; a horizontal line for methods without memory."""
    names = [scenario] if scenario else scenarios_of(groups)
    found = {name: lines for name in names if (lines := lines_of(groups, name))}
    most = max((len(lines) for lines in found.values()), default=0)
    heads = [TITLES[name] for name in found]
    figure, panels = lay_out(caption(groups, INTERVAL), heads, panel_height(most + 4), 7.2)
    ends = [draw_panel(panel, name, groups, found[name]) for panel, name in zip(panels, found, strict=True)]
    label_line_ends(figure, panels, ends)
    return figure


def lines_of(groups: list[Group], scenario: str) -> list[Line]:
    """Groups of one method and variant by memory size, the best first, if there are two sizes."""
    lines: dict[tuple[str, str], Line] = defaultdict(list)
    for group in sorted(groups, key=lambda g: g.memory_size or 0):
        score = group.score(scenario, "average_accuracy")
        if group.memory_size and score:  # a log axis has no zero
            lines[key_of(group)].append((group, score))
    return sorted((line for line in lines.values() if len(line) > 1), key=lambda line: -line[-1][1].mean)


def draw_panel(panel: Axes, scenario: str, groups: list[Group], lines: list[Line]) -> list[LineEnd]:
    others = [group for group in groups if group.memory_size is None]
    # key_of drops the variant "published", which only some sizes of a line may have.
    shown = [replace(line[-1][0], variant=key_of(line[-1][0])[1]) for line in lines]
    styles = [style for _, style in style_groups([*shown, *others])]
    sizes = sorted({group.memory_size or 0 for line in lines for group, _ in line})
    panel.set_xscale("log")
    panel.set_xlim(sizes[0] / 1.1, sizes[-1] * 1.1)
    ends = [draw_line(panel, style, line) for style, line in zip(styles, lines, strict=False)]
    for style, group in zip(styles[len(lines) :], others, strict=True):
        if (score := group.score(scenario, "average_accuracy")) and (
            end := draw_across(panel, group, style, score, sizes)
        ):
            ends.append(end)
    panel.xaxis.set_major_locator(FixedLocator(sizes))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
    panel.set(xlabel="memory (samples)", ylabel=ACCURACY)
    panel.grid(alpha=0.3)
    return ends


def draw_line(panel: Axes, style: Style, line: Line) -> LineEnd:
    sizes, means = [group.memory_size or 0 for group, _ in line], [score.mean for _, score in line]
    tooltips = [f"{style.label}, memory {g.memory_size}: {describe_score(score)}" for g, score in line]
    width = 1.6 if style.is_coloured else 0.8
    (drawn,) = panel.plot(
        sizes, means, color=style.colour, marker=style.marker, linewidth=width, markersize=5
    )
    set_tooltips(drawn, tooltips if style.is_coloured else tooltips[-1:])
    if style.is_coloured:
        halves = [score.half_width or 0.0 for _, score in line]
        panel.errorbar(sizes, means, halves, fmt="none", ecolor=style.colour, capsize=2, linewidth=0.8)
    return LineEnd(sizes[-1], means[-1], style.label, style)


def draw_across(panel: Axes, group: Group, style: Style, score: Summary, sizes: list[int]) -> LineEnd | None:
    if group.method == UPPER_BOUND:
        return draw_bound(panel, style, score)
    label, ends = f"{style.label}, no memory", (sizes[0], sizes[-1])
    (line,) = panel.plot(ends, [score.mean] * 2, color=style.colour, marker=style.marker, linestyle=":")
    set_tooltips(line, [f"{label}: {describe_score(score)}"] * (2 if style.is_coloured else 1))
    return LineEnd(sizes[-1], score.mean, label, style)
