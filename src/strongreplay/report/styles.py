"""How a method looks and what it is called, the same in every picture and readable in black and white."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import fill

from strongreplay import metrics
from strongreplay.methods.table import COLOURS, METHOD_ROWS, method_colour, method_look
from strongreplay.report.tables import Group, Summary

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
DASHES = ("-", "--", "-.", ":")
# Lines only: as SVG, dots and circles are many times larger.
HATCHES = ("", "//", "--", "xx", "\\\\", "++", "||", "////", "-/", "|\\")
ORDER = tuple(sorted(METHOD_ROWS, key=method_look))  # a method looks the same in every picture
PRINTED = {name: row.label for name, row in METHOD_ROWS.items()}
TITLES = {"class-il": "Class-IL", "task-il": "Task-IL", "domain-il": "Domain-IL"}
INK = "#111111"  # on data colours; pure black is the page's colour, which may be light
UPPER_BOUND = "joint"


@dataclass(frozen=True, slots=True)
class Style:
    """What tells one group from the others."""

    label: str
    colour: str
    marker: str
    dash: str
    hatch: str


def style_groups(groups: Iterable[Group]) -> list[tuple[Group, Style]]:
    """Each group with its look; variants of a method have its colour, and a marker and dash of their own."""
    groups = list(groups)
    sizes = {group.memory_size for group in groups} - {None}
    numbers: dict[int, int] = {}
    # Sorted, so that a look depends on what is in the picture and not on who is better.
    for group in sorted(groups, key=lambda g: (g.method, g.memory_size or 0, g.variant)):
        number = method_look(group.method)
        while number in numbers.values():
            number += len(ORDER)
        numbers[id(group)] = number
    return [
        (group, style_of(label_of(group, len(sizes) > 1), method_colour(group.method), numbers[id(group)]))
        for group in groups
    ]


def style_of(label: str, colour: str, number: int) -> Style:
    return Style(
        label,
        colour,
        MARKERS[number % len(MARKERS)],
        DASHES[number // len(COLOURS) % len(DASHES)],
        HATCHES[number % len(HATCHES)],
    )


def label_of(group: Group, with_size: bool = False) -> str:
    """As papers print it, such as "DER++, memory 200 (alpha=3)"."""
    size = f", memory {group.memory_size}" if with_size and group.memory_size is not None else ""
    variant = re.sub(r"\bmethod\.", "", group.variant)
    return plain(group.label + size + (f" ({variant})" if variant else ""))


def plain(text: str) -> str:
    """Text that can be shown anywhere: names are free, and some characters mean something elsewhere."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def drawn(text: str, width: int = 34) -> str:
    """The same for matplotlib, in lines; a dollar would begin a formula."""
    return fill(text, width).replace("$", r"\$")


def matrices_of(group: Group, scenario: str) -> list[metrics.Matrix]:
    """A matrix a seed; a run that stopped early is left out where others went further."""
    found = [metrics.as_matrix(r.matrix(scenario)) for r in group.records if scenario in r.scenarios]
    longest = max((matrix.shape for matrix in found), default=(0, 0))
    return [matrix for matrix in found if matrix.shape == longest and matrix.size]


def scenarios_of(groups: Iterable[Group]) -> list[str]:
    there = {scenario for group in groups for record in group.records for scenario in record.scenarios}
    return [scenario for scenario in TITLES if scenario in there]


def net_of(group: Group) -> str:
    """Such as "cnn, width 8", or "resnet18, width 20, cpu protocol"; empty where the record does not say.

    What differs in this is never in one table or picture.
    """
    net = group.records[0].config.get("net")
    if not isinstance(net, dict):
        return ""
    parts = [f"{key} {value}" for key, value in net.items() if key != "name" and value is not None]
    parts += ["cpu protocol"] if group.protocol == "cpu" else []
    return plain(", ".join([str(net.get("name", "")), *parts]))


def caption(groups: Iterable[Group], what: str = "") -> str:
    """What all groups of a picture have in common."""
    groups = list(groups)
    sizes = {group.memory_size for group in groups if group.memory_size is not None}
    nets = {net_of(group) for group in groups}
    parts = [" and ".join(sorted({plain(group.stream) for group in groups}))]
    parts += [f"memory {size}" for size in sizes if len(sizes) == 1]
    parts += [net for net in nets if net and len(nets) == 1]
    return " · ".join([*parts, *([what] if what else [])])


def told(score: Summary) -> str:
    """Such as "84.21 ± 0.30 % (n = 5)"."""
    return f"{score} % (n = {score.count})"


def score_of(group: Group, scenario: str, name: str) -> Summary | None:
    """Over the seeds that have it."""
    return group.score(scenario, name)
