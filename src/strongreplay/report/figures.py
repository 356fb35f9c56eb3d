"""The list of figures for a set of records. A figure is drawn only on request.

A new figure is a file with a drawing function and a row in FIGURES.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from strongreplay.report.ablation import families, lacks_terms
from strongreplay.report.page_text import shorten
from strongreplay.report.styles import TITLES, UPPER_BOUND, matrices_of, net_of, scenarios_of, sizes_of
from strongreplay.report.tables import Group, tell_apart
from strongreplay.report.verdicts import Cell
from strongreplay.storage.records import fingerprint

LONGEST_NAME = 80  # characters; drawing long names is slow


class FigureContent(NamedTuple):
    """The content of one figure, and the arguments of its drawing function."""

    about: str
    name: str  # the beginning of its file's name
    num_entries: int  # lines, bars or panels
    arguments: tuple[Any, ...]
    shapes: int = 1  # number of shapes per entry


Split = Callable[[list[Group], list[Cell]], Iterator[FigureContent]]


@dataclass(frozen=True, slots=True)
class PlannedFigure:
    """A figure that could be drawn."""

    kind: str  # a kind in FIGURES
    about: str
    name: str  # a valid file name
    num_entries: int
    draw: Callable[[], Figure]
    shapes: int = 1

    @property
    def cost(self) -> int:
        return self.num_entries * self.shapes

    @property
    def stream(self) -> str:
        return self.about.split(",")[0]

    @property
    def title(self) -> str:
        return TITLE_OF[self.kind] + (f": {self.about}" if self.about else "")


def plan_figures(groups: list[Group], cells: list[Cell]) -> list[PlannedFigure]:
    """All figures, in the order of FIGURES."""
    plans = []
    for kind, _, split, function in FIGURES:
        module, _, name = function.partition(":")
        for subject in split(groups, cells):
            draw = getattr(import_module(f"strongreplay.report.{module}"), name)
            plans.append(
                PlannedFigure(
                    kind,
                    subject.about,
                    f"{subject.name}-{kind}",
                    subject.num_entries,
                    partial(draw, *subject.arguments),
                    subject.shapes,
                )
            )
    return plans


def all_figures(
    groups: list[Group], cells: list[Cell], progress: Callable[[str, int, int], None] | None = None
) -> Iterator[tuple[str, Figure]]:
    """Every figure that has content, with its name; each is drawn when the iterator reaches it."""
    taken: set[str] = set()
    plans = plan_figures(groups, cells)
    for number, plan in enumerate(plans):
        if progress:
            progress("drawing figures", number, len(plans))
        name, figure = plan.name, plan.draw()
        while name in taken:  # file names can be equal after invalid characters are replaced
            name += "-2"
        if figure.axes:
            taken.add(name)
            figure.set_label(name)  # prefix of its ids in a page
            yield name, figure


def by_net(groups: list[Group]) -> Iterator[tuple[str, str, list[Group]]]:
    """Groups with the same place and net; a set with only joint training is left out."""
    parts = {id(group) for family in families(groups) for group in family if lacks_terms(group)}
    nets: dict[str, dict[str, list[Group]]] = defaultdict(lambda: defaultdict(list))
    for group in groups:
        if id(group) not in parts and has_several_tasks(group):
            nets[group.place][net_of(group)].append(group)
    for stream, own_nets in nets.items():
        for net, own in own_nets.items():
            if num_rivals(own):
                name = file_safe(f"{stream}-{net}" if len(own_nets) > 1 else stream)
                yield (
                    name,
                    ", ".join(shorten(one, LONGEST_NAME) for one in (stream, net)),
                    [shorten_names(g) for g in tell_apart(own)],
                )


def each_size(groups: list[Group], cells: list[Cell], fewest: int = 1) -> Iterator[FigureContent]:
    """A figure for each memory size and scenario; configurations without memory are in each size."""
    for name, about, own in by_net(groups):
        for size in sizes_of(own) or (None,):
            here = [group for group in own if group.memory_size in (None, size)]
            base, what = (name, about) if size is None else (f"{name}-m{size}", f"{about}, memory {size}")
            if num_rivals(here) >= fewest:
                yield from each_scenario(what, base, here)


def each_scenario(about: str, name: str, groups: list[Group]) -> Iterator[FigureContent]:
    """One figure per scenario; if there are several, the file name contains the scenario."""
    scenarios = scenarios_of(groups)
    for scenario in scenarios:
        full = f"{name}-{scenario}" if len(scenarios) > 1 else name
        yield FigureContent(f"{about}, {TITLES[scenario]}", full, len(groups), (groups, scenario))


def each_matrix(groups: list[Group], cells: list[Cell]) -> Iterator[FigureContent]:
    """As `each_size`; a panel has a shape for each number of its matrix."""
    for subject in each_size(groups, cells):
        yield subject._replace(
            shapes=max(4, max(group.num_tasks for group in subject.arguments[0]) ** 2 // 10)
        )


def several_sizes(groups: list[Group], cells: list[Cell]) -> Iterator[FigureContent]:
    """A figure for each scenario with all memory sizes, if there are at least two."""
    for name, about, own in by_net(groups):
        if len(sizes_of(own)) > 1:
            yield from each_scenario(about, name, own)


def ablation_cells(groups: list[Group], cells: list[Cell]) -> Iterator[FigureContent]:
    paper = [cell for cell in cells if cell.item.target == "table4" and cell.ours]
    if paper:
        yield FigureContent("the paper's", "paper", len(paper), (paper,))


def ablation_families(groups: list[Group], cells: list[Cell]) -> Iterator[FigureContent]:
    """A user's own runs that differ in their terms and are not in the paper."""
    known = {cell.item.fingerprint for cell in cells if cell.item.target == "table4" and cell.ours}
    for family in families(groups):
        if not any(fingerprint(group.records[0].config) in known for group in family):
            own = [shorten_names(group) for group in family]
            about = f"{own[0].stream}, memory {own[0].memory_size}"
            name = file_safe(f"{family[0].stream}-m{family[0].memory_size}")
            yield FigureContent(about, name, len(own), (own,))


# Kind, title, function that lists the figures, and function that draws one; the most informative come first.
FIGURES: tuple[tuple[str, str, Split, str], ...] = (
    ("curves", "Accuracy after each task", each_size, "curves:curves_figure"),
    ("ablation", "Ablation", ablation_cells, "ablation:ablation_figure"),
    ("ablation", "Ablation", ablation_families, "ablation:ablation_groups_figure"),
    ("plane", "Stability and plasticity", partial(each_size, fewest=2), "scatter:plane_figure"),
    ("memory", "Accuracy by memory size", several_sizes, "memory_sizes:memory_figure"),
    ("time", "Accuracy and training time", partial(each_size, fewest=2), "scatter:time_figure"),
    ("forgetting", "Forgetting", partial(each_size, fewest=2), "bars:forgetting_figure"),
    ("matrices", "Accuracy on each task after each task", each_matrix, "matrices:matrices_figure"),
)
TITLE_OF = {kind: title for kind, title, _, _ in FIGURES}


def has_several_tasks(group: Group) -> bool:
    """Whether a group has several tasks or is joint training; one task cannot show forgetting."""
    scenarios = group.records[0].scenarios
    return group.method == UPPER_BOUND or any(len(m) > 1 for s in scenarios for m in matrices_of(group, s))


def num_rivals(groups: list[Group]) -> int:
    return sum(group.method != UPPER_BOUND for group in groups)


def shorten_names(group: Group) -> Group:
    stream, method, variant = (
        shorten(name, LONGEST_NAME) for name in (group.stream, group.method, group.variant)
    )
    return replace(group, stream=stream, method=method, variant=variant)


def file_safe(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "stream"
