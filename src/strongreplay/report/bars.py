"""A bar chart of the forgetting of each method."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from strongreplay.report.layout import INTERVAL, lay_out
from strongreplay.report.styles import (
    TITLES,
    Style,
    caption,
    describe_score,
    scenarios_of,
    style_groups,
    wrap,
)
from strongreplay.report.summary import Summary
from strongreplay.report.svg import set_tooltips
from strongreplay.report.tables import Group


def forgetting_figure(groups: list[Group], scenario: str = "") -> Figure:
    """One bar per method, the least forgetting on top; one panel per scenario."""
    found: dict[str, list[tuple[Style, Summary]]] = {}
    for name in [scenario] if scenario else scenarios_of(groups):
        every = [(style, group.score(name, "forgetting")) for group, style in style_groups(groups)]
        bars = [(style, score) for style, score in every if score]
        if bars:
            found[name] = sorted(bars, key=lambda bar: bar[1].mean)
    most = max((len(bars) for bars in found.values()), default=0)
    heads = [TITLES[name] for name in found]
    figure, panels = lay_out(caption(groups, INTERVAL), heads, 1.4 + 0.27 * most, 6.4)
    for panel, bars in zip(panels, found.values(), strict=True):
        for place, (style, score) in enumerate(bars):
            draw_bar(panel, place, style, score)
        panel.set_yticks(range(len(bars)), [wrap(style.label, 40) for style, _ in bars], fontsize="small")
        panel.invert_yaxis()
        panel.set_xlabel("forgetting (points), less is better")
        panel.axvline(0, color="black", linewidth=0.8)
        panel.grid(axis="x", alpha=0.3)
        panel.set_axisbelow(True)
        panel.margins(x=0.12)
    return figure


def draw_bar(panel: Axes, place: int, style: Style, score: Summary) -> None:
    """A bar with its interval, and its mean as text beside it."""
    bar = panel.barh(place, score.mean, 0.76, color=style.colour, linewidth=0)
    set_tooltips(bar.patches[0], [f"{style.label}, forgetting: {describe_score(score)}"])
    half = score.half_width
    if half is not None:
        panel.errorbar(score.mean, place, xerr=half, ecolor="black", capsize=2, linewidth=1)
    beside = (max(0.0, score.mean + (half or 0.0)), place)
    panel.annotate(
        f"{score.mean:.1f}", beside, (3, 0), textcoords="offset points", va="center", fontsize="x-small"
    )
