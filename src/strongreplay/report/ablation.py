"""Figures of the ablation: SER with some of its terms, published and ours, or only ours."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from strongreplay.errors import printable
from strongreplay.report.layout import INTERVAL, lay_out
from strongreplay.report.styles import TITLES, caption, describe_score, scenarios_of
from strongreplay.report.summary import Summary
from strongreplay.report.svg import set_tooltips
from strongreplay.report.tables import Group
from strongreplay.report.verdicts import Cell
from strongreplay.runs.paper import ABLATIONS
from strongreplay.storage.records import fingerprint

# Every tick lists all terms of its loss: "+ backward" alone could mean "added to the bar before it".
LOSSES = {
    "sgd": "CE",
    "replay": "CE + replay",
    "backward": "CE + replay\n+ backward",
    "forward": "CE + replay\n+ forward",
    "ser": "CE + replay\n+ backward\n+ forward (SER)",
}
SOURCES = {"published": ("#999999", "//"), "ours": ("#D55E00", "")}  # ours in the colour of SER


@dataclass(frozen=True, slots=True)
class AblationBar:
    """One number of the ablation."""

    loss: str
    source: str  # a key of SOURCES
    score: Summary


def ablation_figure(cells: list[Cell]) -> Figure:
    """The cells of Table 4 with records: published and ours, with a panel for each stream and scenario."""
    heads: dict[str, list[AblationBar]] = defaultdict(list)
    for cell in cells:
        item, loss = cell.item, LOSSES.get(cell.item.name.split("/")[-2], "")
        if item.target == "table4" and cell.ours:
            head = f"{item.stream}, memory {item.memory_size}, {TITLES[item.scenario]}"
            heads[head] += [AblationBar(loss, "published", cell.published)] if cell.published else []
            heads[head].append(AblationBar(loss, "ours", cell.ours))
    return draw_losses("Ablation of SER", heads)


def ablation_groups_figure(groups: list[Group]) -> Figure:
    """The same for runs of SER that differ only in their terms."""
    heads: dict[str, list[AblationBar]] = {}
    found = families(groups)
    alone = len(found) == 1
    for number, family in enumerate(found, start=1):
        for scenario in scenarios_of(family):
            scores = [(loss_of(g), g.score(scenario, "average_accuracy")) for g in family]
            # Families are numbered, because captions of different families can be equal.
            head = TITLES[scenario] if alone else f"{number}. {caption(family)} · {TITLES[scenario]}"
            heads[head] = [AblationBar(loss, "ours", score) for loss, score in scores if score]
    return draw_losses(f"Ablation of SER · {caption(groups)}" if alone else "Ablation of SER", heads)


def families(groups: Iterable[Group]) -> list[list[Group]]:
    """Groups of SER that differ only in their terms, if there are at least two."""
    found: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in groups:
        config = group.records[0].config
        method = {key: value for key, value in config["method"].items() if key != "terms"}
        if group.method == "ser" and config["method"].get("terms"):
            found[group.stream, fingerprint(config | {"method": method})].append(group)
    return [family for family in found.values() if len(family) > 1]


def lacks_terms(group: Group) -> bool:
    return loss_of(group) != LOSSES["ser"]


def loss_of(group: Group) -> str:
    terms = tuple(map(str, group.records[0].config["method"]["terms"]))
    return LOSSES[ABLATIONS[terms]] if terms in ABLATIONS else printable(" + ".join(terms))


def draw_losses(title: str, heads: dict[str, list[AblationBar]]) -> Figure:
    figure, panels = lay_out(f"{title} · {INTERVAL}", list(heads), 4.0, 5.6)
    for panel, bars in zip(panels, heads.values(), strict=True):
        draw_panel(panel, bars)
    if any(bar.source != "ours" for bars in heads.values() for bar in bars):
        handles, labels = panels[0].get_legend_handles_labels()
        once = dict(zip(labels, handles, strict=True))
        figure.legend(once.values(), once, loc="outside right upper", fontsize="small", framealpha=0)
    return figure


def draw_panel(panel: Axes, bars: list[AblationBar]) -> None:
    known = list(LOSSES.values())
    losses = sorted(
        dict.fromkeys(bar.loss for bar in bars),
        key=lambda loss: known.index(loss) if loss in known else len(known),
    )
    sources = [source for source in SOURCES if any(bar.source == source for bar in bars)]
    width = 0.8 / len(sources)
    for bar in bars:
        place = losses.index(bar.loss) + (sources.index(bar.source) - (len(sources) - 1) / 2) * width
        draw_bar(panel, bar, place, width * 0.94)
    panel.set_xticks(range(len(losses)), losses, fontsize="x-small")
    panel.set_ylabel("average accuracy (%)")
    panel.grid(axis="y", alpha=0.3)
    panel.set_axisbelow(True)
    panel.margins(y=0.14)


def draw_bar(panel: Axes, bar: AblationBar, place: float, width: float) -> None:
    colour, hatch = SOURCES[bar.source]
    mean, half = bar.score.mean, bar.score.half_width
    shape = panel.bar(place, mean, width, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
    shape.set_label(bar.source)
    loss = bar.loss.replace("\n", " ")
    set_tooltips(shape.patches[0], [f"{loss}, {bar.source}: {describe_score(bar.score)}"])
    if half is not None:
        panel.errorbar(place, mean, half, fmt="none", ecolor="black", capsize=3, linewidth=1)
    above = (place, mean + (half or 0.0))
    count = "" if bar.score.count is None else f"\nn={bar.score.count}"
    panel.annotate(
        f"{mean:.1f}{count}", above, (0, 2), textcoords="offset points", ha="center", fontsize="x-small"
    )
