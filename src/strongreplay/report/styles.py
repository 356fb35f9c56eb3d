"""The style and the label of a configuration in figures.

At most eight configurations of a figure are in colour: the bounds, SER and its closest rivals. Each of them
has its own colour and marker. The others are thin and grey, with their names beside them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from textwrap import fill

from strongreplay import metrics
from strongreplay.errors import printable
from strongreplay.methods.table import COLOURS, METHOD_ROWS, style_number
from strongreplay.report.summary import Summary
from strongreplay.report.tables import Group, tell_apart

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
MOST_COLOURED = len(COLOURS)
GREY, GREY_TEXT = "#A9A9A9", "#7A7A7A"  # readable on a light and on a dark page
PRINTED = {name: row.label for name, row in METHOD_ROWS.items()}
TITLES = {"class-il": "Class-IL", "task-il": "Task-IL", "domain-il": "Domain-IL"}
INK = "#111111"  # text on data colours; pure black would become the page's text colour, which may be light
LOWER_BOUND, UPPER_BOUND = "sgd", "joint"


@dataclass(frozen=True, slots=True)
class Style:
    """Label, colour and marker of a configuration; grey ones have no marker."""

    label: str
    colour: str
    marker: str
    is_coloured: bool = True

    @property
    def text_colour(self) -> str:
        return self.colour if self.is_coloured else GREY_TEXT


def style_groups(groups: Iterable[Group]) -> list[tuple[Group, Style]]:
    """Each group with its style. Two memory sizes of one configuration look the same."""
    groups = list(groups)
    coloured = choose_coloured(groups)
    numbers: dict[tuple[str, str], int] = {}
    # Sorted by name, so that styles do not depend on the results; variants come last.
    for key in sorted(coloured, key=lambda key: (key[1] != "", style_number(key[0]), key)):
        free = [number for number in range(MOST_COLOURED) if number not in numbers.values()]
        wished = style_number(key[0]) % MOST_COLOURED
        numbers[key] = wished if wished in free else free[0]
    return [(group, style_of(group, numbers.get(key_of(group)))) for group in groups]


def style_of(group: Group, number: int | None) -> Style:
    label = group.name
    if group.method == UPPER_BOUND:
        return Style(label, "#000000", "")  # becomes the colour of the page's text
    if number is None:
        return Style(label, GREY, "", is_coloured=False)
    return Style(label, COLOURS[number], MARKERS[number])


def key_of(group: Group) -> tuple[str, str]:
    """Method and variant, without "published"; the key is the same for all memory sizes."""
    return group.method, "" if group.variant == "published" else group.variant


def choose_coloured(groups: Sequence[Group]) -> set[tuple[str, str]]:
    """All if there are few; else bounds, SER, the best, a user's methods, and those closest to SER."""
    keys = {key_of(group) for group in groups if group.method != UPPER_BOUND}
    limit = MOST_COLOURED - any(group.method == UPPER_BOUND for group in groups)
    if len(keys) <= limit:
        return keys
    scenario = next(iter(scenarios_of(groups)), "")
    means = {key: mean_accuracy([g for g in groups if key_of(g) == key], scenario) for key in keys}
    own = [means[key] for key in keys if key[0] == "ser"]
    goal = max(own or means.values())
    first = {max(means, key=lambda key: means[key])} | {key for key in keys if key[0] not in METHOD_ROWS}
    first |= {key for key in keys if key[0] in (LOWER_BOUND, "ser") and is_plain(key[1])}
    ranked = sorted(keys, key=lambda key: (key not in first, abs(means[key] - goal), key))
    return set(ranked[:limit])


def is_plain(variant: str) -> bool:
    """Whether a configuration has the settings of a recipe, on whatever net."""
    return all(
        part.strip() in ("", "tuned") or part.strip().startswith("net.") for part in variant.split(",")
    )


def mean_accuracy(groups: Sequence[Group], scenario: str) -> float:
    found = [group.score(scenario, "average_accuracy") for group in groups]
    return fmean([score.mean for score in found if score] or [0.0])


def wrap(text: str, width: int = 34) -> str:
    """Break text into lines and escape dollar signs, which start a formula in matplotlib."""
    return fill(text, width).replace("$", r"\$")


def matrices_of(group: Group, scenario: str) -> list[metrics.Matrix]:
    """One matrix per seed; runs that stopped earlier than others are left out."""
    found = [metrics.as_matrix(r.matrix(scenario)) for r in group.records if scenario in r.scenarios]
    longest = max((matrix.shape for matrix in found), default=(0, 0))
    return [matrix for matrix in found if matrix.shape == longest and matrix.size]


def scenarios_of(groups: Iterable[Group]) -> list[str]:
    there = {scenario for group in groups for record in group.records for scenario in record.scenarios}
    return [scenario for scenario in TITLES if scenario in there]


def ranked(groups: Iterable[Group]) -> list[Group]:
    """Rows of one table by accuracy in its first scenario; joint training, an upper bound, comes last."""
    rows = tell_apart(groups)
    first = next(iter(scenarios_of(rows)), None)

    def rank_in_table(group: Group) -> tuple[bool, float]:
        accuracy = group.score(first, "average_accuracy") if first else None
        return group.method == "joint", accuracy.mean if accuracy else 0.0

    return sorted(rows, key=rank_in_table)


def sizes_of(groups: Iterable[Group]) -> list[int]:
    return sorted({group.memory_size for group in groups if group.memory_size is not None})


def net_of(group: Group) -> str:
    """Such as "cnn, width 8", or "resnet18, width 20, cpu protocol"; empty if the record does not say.

    Groups that differ in this are never in one table or figure.
    """
    net = group.records[0].config.get("net")
    if not isinstance(net, dict):
        return ""
    parts = [f"{key} {value}" for key, value in net.items() if key != "name" and value is not None]
    parts += ["cpu protocol"] if group.protocol == "cpu" else []
    return printable(", ".join([str(net.get("name", "")), *parts]))


def caption(groups: Iterable[Group], *more: str) -> str:
    """A text of what all groups of a figure have in common."""
    groups = list(groups)
    sizes, nets = sizes_of(groups), {net_of(group) for group in groups}
    parts = [" and ".join(sorted({printable(group.place) for group in groups}))]
    parts += [f"memory {size}" for size in sizes if len(sizes) == 1]
    parts += [net for net in nets if net and len(nets) == 1]
    return " · ".join([*parts, *filter(None, more)])


def describe_score(score: Summary) -> str:
    """Such as "84.21 ± 0.30 % (n = 5)"."""
    return f"{score} %" + ("" if score.count is None else f" (n = {score.count})")
