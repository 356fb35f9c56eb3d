"""Bars: what each method forgets, and SER with some of its terms, published beside ours or ours alone."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from strongreplay.report.layout import add_legend, lay_out
from strongreplay.report.styles import (
    TITLES,
    Style,
    caption,
    drawn,
    plain,
    scenarios_of,
    score_of,
    style_groups,
    told,
)
from strongreplay.report.svg import say
from strongreplay.report.tables import Group, Summary
from strongreplay.report.verdicts import Cell, Estimate
from strongreplay.runs.paper import ABLATIONS
from strongreplay.storage.records import fingerprint

PARTS = {"sgd": "CE", "replay": "+ replay", "backward": "+ backward", "forward": "+ forward", "ser": "both"}
STYLES = {"published": ("#999999", "//"), "ours": ("#D55E00", "")}  # ours as SER looks elsewhere


@dataclass(frozen=True, slots=True)
class AblationBar:
    """One number of the ablation."""

    part: str
    source: str  # of STYLES
    score: Summary | Estimate


def forgetting_figure(groups: list[Group]) -> Figure:
    """A bar a method, the one that forgets least on top, a panel a scenario."""
    found = {}
    for scenario in scenarios_of(groups):
        every = [(style, score_of(g, scenario, "forgetting")) for g, style in style_groups(groups)]
        bars = [(style, score) for style, score in every if score]
        if bars:
            found[scenario] = sorted(bars, key=lambda bar: bar[1].mean)
    most = max((len(bars) for bars in found.values()), default=0)
    figure, panels = lay_out(
        caption(groups), [TITLES[scenario] for scenario in found], 1.4 + 0.27 * most, 4.8
    )
    for panel, bars in zip(panels, found.values(), strict=True):
        for place, (style, score) in enumerate(bars):
            draw_bar(panel, place, style, score)
        panel.set_yticks(range(len(bars)), [drawn(style.label, 26) for style, _ in bars], fontsize="small")
        panel.invert_yaxis()
        panel.set_xlabel("forgetting (points), less is better")
        panel.axvline(0, color="black", linewidth=0.8)
        panel.grid(axis="x", alpha=0.3)
        panel.set_axisbelow(True)
        panel.margins(x=0.12)
    return figure


def draw_bar(panel: Axes, place: int, style: Style, score: Summary) -> None:
    bar = panel.barh(
        place, score.mean, 0.76, color=style.colour, hatch=style.hatch, edgecolor="white", linewidth=0
    )
    say(bar.patches[0], [f"{style.label}, forgetting: {told(score)}"])
    if score.deviation is not None:
        panel.errorbar(score.mean, place, xerr=score.deviation, ecolor="black", capsize=2, linewidth=1)
    beside = (max(0.0, score.mean + (score.deviation or 0.0)), place)
    panel.annotate(
        f"{score.mean:.1f}", beside, (3, 0), textcoords="offset points", va="center", fontsize="x-small"
    )


def ablation_figure(cells: list[Cell]) -> Figure:
    """Table 4 as far as it was run: published and ours side by side, a panel for each stream and scenario."""
    heads: dict[str, list[AblationBar]] = defaultdict(list)
    for cell in cells:
        item, part = cell.item, cell.item.name.split("/")[-2]
        if item.target == "table4" and cell.ours:
            head = f"{item.stream}, memory {item.memory_size}, {TITLES[item.scenario]}"
            heads[head] += [AblationBar(PARTS[part], "published", cell.published)] if cell.published else []
            heads[head].append(AblationBar(PARTS[part], "ours", cell.ours))
    return parts_figure("Ablation of SER", heads)


def ablation_groups_figure(groups: list[Group]) -> Figure:
    """The same from runs of SER that differ in their terms only."""
    heads: dict[str, list[AblationBar]] = {}
    alone = len(families(groups)) == 1
    for number, family in enumerate(families(groups), start=1):
        for scenario in scenarios_of(family):
            scores = [(part_of(g), score_of(g, scenario, "average_accuracy")) for g in family]
            # Families may differ in what the caption does not tell, so they have numbers.
            head = TITLES[scenario] if alone else f"{number}. {caption(family)} · {TITLES[scenario]}"
            heads[head] = [AblationBar(part, "ours", score) for part, score in scores if score]
    return parts_figure(f"Ablation of SER · {caption(groups)}" if alone else "Ablation of SER", heads)


def families(groups: Iterable[Group]) -> list[list[Group]]:
    """Groups of SER that are alike but for their terms, where there are at least two."""
    found: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in groups:
        config = group.records[0].config
        method = {key: value for key, value in config["method"].items() if key != "terms"}
        if group.method == "ser" and config["method"].get("terms"):
            found[group.stream, fingerprint(config | {"method": method})].append(group)
    return [family for family in found.values() if len(family) > 1]


def is_part(group: Group) -> bool:
    """Whether some term is left out."""
    return part_of(group) != PARTS["ser"]


def part_of(group: Group) -> str:
    terms = tuple(map(str, group.records[0].config["method"]["terms"]))
    return PARTS[ABLATIONS[terms]] if terms in ABLATIONS else plain(" + ".join(terms))


def rank(part: str) -> int:
    known = list(PARTS.values())
    return known.index(part) if part in known else len(known)


def parts_figure(title: str, heads: dict[str, list[AblationBar]]) -> Figure:
    figure, panels = lay_out(title, list(heads), 3.8, 4.8, columns=2)
    for panel, bars in zip(panels, heads.values(), strict=True):
        draw_parts(panel, bars)
    if any(bar.source != "ours" for bars in heads.values() for bar in bars):
        add_legend(figure, panels)
    return figure


def draw_parts(panel: Axes, bars: list[AblationBar]) -> None:
    parts = sorted(dict.fromkeys(bar.part for bar in bars), key=rank)
    sources = [source for source in STYLES if any(bar.source == source for bar in bars)]
    width = 0.8 / len(sources)
    for bar in bars:
        place = parts.index(bar.part) + (sources.index(bar.source) - (len(sources) - 1) / 2) * width
        draw_part(panel, bar, place, width * 0.94)
    panel.set_xticks(range(len(parts)), parts, fontsize="small")
    panel.set_ylabel("average accuracy (%)")
    panel.grid(axis="y", alpha=0.3)
    panel.set_axisbelow(True)
    panel.margins(y=0.1)


def draw_part(panel: Axes, bar: AblationBar, place: float, width: float) -> None:
    colour, hatch = STYLES[bar.source]
    mean, spread = bar.score.mean, bar.score.deviation
    shape = panel.bar(place, mean, width, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
    shape.set_label(bar.source)
    count = "" if bar.score.count is None else f" (n = {bar.score.count})"
    number = f"{mean:.2f}" + ("" if spread is None else f" ± {spread:.2f}")
    say(shape.patches[0], [f"{bar.part}, {bar.source}: {number} %{count}"])
    if spread is not None:
        panel.errorbar(place, mean, spread, fmt="none", ecolor="black", capsize=3, linewidth=1)
    above = (place, mean + (spread or 0.0))
    panel.annotate(f"{mean:.1f}", above, (0, 2), textcoords="offset points", ha="center", fontsize="x-small")
