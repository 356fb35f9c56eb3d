"""Which pictures a set of records gives; none is drawn before somebody asks for it."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from matplotlib.figure import Figure

from strongreplay.report.bars import (
    ablation_figure,
    ablation_groups_figure,
    families,
    forgetting_figure,
    is_part,
)
from strongreplay.report.curves import curves_figure
from strongreplay.report.matrices import matrices_figure
from strongreplay.report.scatter import memory_figure, plane_figure, time_figure
from strongreplay.report.styles import TITLES, UPPER_BOUND, matrices_of, net_of, scenarios_of
from strongreplay.report.tables import Group, tell_apart
from strongreplay.report.verdicts import Cell
from strongreplay.storage.records import fingerprint

KINDS = {  # in the order in which they tell most; matrices are large and come last
    "curves": "Accuracy after each task",
    "ablation": "Ablation",
    "plane": "Stability and plasticity",
    "memory": "Accuracy by memory size",
    "time": "Accuracy and training time",
    "forgetting": "Forgetting",
    "matrices": "Accuracy on each task after each task",
}
COMPARED: dict[str, Callable[[list[Group]], Figure]] = {
    "plane": plane_figure, "time": time_figure, "forgetting": forgetting_figure
}  # fmt: skip
LONGEST = 80  # characters of a name; drawing takes time with their length


@dataclass(frozen=True, slots=True)
class PlannedFigure:
    """A picture that could be drawn."""

    kind: str  # of KINDS
    about: str  # what it shows
    name: str  # that can be a file's
    lines: int  # or bars, or panels
    draw: Callable[[], Figure]
    weight: int = 1  # work a line

    @property
    def cost(self) -> int:
        return self.lines * self.weight

    @property
    def stream(self) -> str:
        return self.about.split(",")[0]

    @property
    def title(self) -> str:
        return KINDS[self.kind] + (f": {self.about}" if self.about else "")


def plan_figures(groups: list[Group], cells: list[Cell]) -> list[PlannedFigure]:
    """All there are, by kind: curves of every stream come before any matrix."""
    plans = [*comparisons(groups), *ablations(groups, cells)]
    return sorted(plans, key=lambda plan: list(KINDS).index(plan.kind))


def all_figures(
    groups: list[Group], cells: list[Cell], tell: Callable[[str, int, int], None] | None = None
) -> Iterator[tuple[str, Figure]]:
    """Every picture there is something for, with its name; each is drawn when its turn comes."""
    taken: set[str] = set()
    plans = plan_figures(groups, cells)
    for number, plan in enumerate(plans):
        if tell:
            tell("drawing figures", number, len(plans))
        name, figure = plan.name, plan.draw()
        while name in taken:  # names that differ in what a file's name cannot have
            name += "-2"
        if figure.axes:
            taken.add(name)
            figure.set_label(name)  # its ids in a page are made of it
            yield name, figure


def comparisons(groups: list[Group]) -> Iterator[PlannedFigure]:
    """Pictures of methods that learnt the same stream with the same net; joint alone is no comparison."""
    parts = {id(group) for family in families(groups) for group in family if is_part(group)}
    nets: dict[str, dict[str, list[Group]]] = defaultdict(lambda: defaultdict(list))
    for group in groups:
        if id(group) not in parts and has_path(group):
            nets[group.stream][net_of(group)].append(group)
    for stream, by_net in nets.items():
        for net, own in by_net.items():
            if num_rivals(own):
                name = file_safe(f"{stream}-{net}" if len(by_net) > 1 else stream)
                about = f"{cut(stream)}, {cut(net)}"
                yield from by_size(name, about, [shortened(group) for group in tell_apart(own)])


def by_size(name: str, about: str, groups: list[Group]) -> Iterator[PlannedFigure]:
    """For each memory size its own pictures, methods without memory in each."""
    sizes = sorted({group.memory_size for group in groups if group.memory_size is not None})
    for size in sizes or (None,):
        own = [group for group in groups if group.memory_size in (None, size)]
        base, what = (name, about) if size is None else (f"{name}-m{size}", f"{about}, memory {size}")
        yield PlannedFigure("curves", what, f"{base}-curves", len(own), partial(curves_figure, own))
        for kind, draw in (
            COMPARED.items() if num_rivals(own) > 1 else ()
        ):  # one alone is compared with nothing
            yield PlannedFigure(kind, what, f"{base}-{kind}", len(own), partial(draw, own))
        shapes = max(4, num_tasks(own) ** 2 // 10)  # a panel a method, in it a shape a number
        for scenario in scenarios_of(own):
            draw_matrices = partial(matrices_figure, own, scenario)
            title = f"{what}, {TITLES[scenario]}"
            yield PlannedFigure(
                "matrices", title, f"{base}-matrices-{scenario}", len(own), draw_matrices, shapes
            )
    if len(sizes) > 1:
        yield PlannedFigure("memory", about, f"{name}-memory", len(groups), partial(memory_figure, groups))


def ablations(groups: list[Group], cells: list[Cell]) -> Iterator[PlannedFigure]:
    """The paper's, and those of our own that are not in it."""
    paper = [cell for cell in cells if cell.item.target == "table4" and cell.ours]
    if paper:
        yield PlannedFigure(
            "ablation", "the paper's", "ablation-paper", len(paper), partial(ablation_figure, paper)
        )
    known = {cell.item.fingerprint for cell in paper}
    for family in families(groups):
        if not any(fingerprint(group.records[0].config) in known for group in family):
            own = [shortened(group) for group in family]
            about = f"{own[0].stream}, memory {own[0].memory_size}"
            name = file_safe(f"{family[0].stream}-m{family[0].memory_size}-ablation")
            yield PlannedFigure("ablation", about, name, len(own), partial(ablation_groups_figure, own))


def has_path(group: Group) -> bool:
    """At least two tasks, or joint training: a single task tells nothing about forgetting."""
    scenarios = group.records[0].scenarios
    return group.method == UPPER_BOUND or any(len(m) > 1 for s in scenarios for m in matrices_of(group, s))


def num_rivals(groups: list[Group]) -> int:
    return sum(group.method != UPPER_BOUND for group in groups)


def num_tasks(groups: list[Group]) -> int:
    found = [len(group.records[0].matrix(s)[-1]) for group in groups for s in group.records[0].scenarios]
    return max(found, default=0)


def shortened(group: Group) -> Group:
    return replace(group, stream=cut(group.stream), method=cut(group.method), variant=cut(group.variant))


def cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def file_safe(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "stream"
