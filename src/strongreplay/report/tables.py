"""Groups of records: one for each configuration, with a name that distinguishes it from the others."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Any

from strongreplay.errors import ConfigError, printable
from strongreplay.methods.table import method_label
from strongreplay.report.summary import Summary, summarise
from strongreplay.runs.paper import fingerprints
from strongreplay.runs.recipes import PUBLISHED, TUNED, find_recipe
from strongreplay.storage.records import RunRecord, fingerprint, flatten, format_setting


@dataclass(frozen=True, slots=True)
class Group:
    """All seeds of one configuration."""

    stream: str
    method: str
    memory_size: int | None
    records: tuple[RunRecord, ...]
    variant: str = ""  # distinguishes configurations of one method

    @property
    def protocol(self) -> str:
        return self.records[0].protocol

    @property
    def place(self) -> str:
        """Only groups of one place are compared."""
        return self.records[0].place

    @property
    def label(self) -> str:
        """The method as papers print it; the label of a user's method is in its records."""
        recorded = self.records[0].measured.get("label") if self.records else None
        return recorded if isinstance(recorded, str) and recorded else method_label(self.method)

    @property
    def name(self) -> str:
        """The label and the variant, such as "DER++ (alpha=3)"."""
        variant = re.sub(r"\bmethod\.", "", self.variant)
        return printable(self.label + (f" ({variant})" if variant else ""))

    @property
    def num_tasks(self) -> int:
        """The tasks of the first record; 0 if it stopped before the end of the first task."""
        first = self.records[0]
        return max((len(first.matrix(scenario)[-1]) for scenario in first.scenarios), default=0)

    @property
    def train_seconds(self) -> float | None:
        """The median over seeds: a run that was paused, or shared its machine, does not change it much."""
        every = [record.measured.get("phases", {}).get("train", {}).get("seconds") for record in self.records]
        known = [float(seconds) for seconds in every if seconds is not None]
        return median(known) if known else None

    def score(self, scenario: str, name: str) -> Summary | None:
        """The summary of a score over the seeds that have it."""
        return summarise(
            record.score(scenario, name) for record in self.records if scenario in record.scenarios
        )


def group_records(records: Iterable[RunRecord]) -> list[Group]:
    """One group for each configuration, by place, memory and accuracy; each seed once, in order."""
    by_config: dict[tuple[str, str], dict[int, RunRecord]] = defaultdict(dict)
    for record in records:
        by_config[record.stream, fingerprint(record.config)].setdefault(record.seed, record)
    groups = []
    for seeds in by_config.values():
        ordered = tuple(seeds[seed] for seed in sorted(seeds))
        groups.append(Group(ordered[0].stream, ordered[0].method, ordered[0].memory_size, ordered))
    return sorted(tell_apart(groups), key=rank)


def rank(group: Group) -> tuple[str, int, float]:
    scenarios = group.records[0].scenarios  # empty if a run stopped before the end of its first task
    accuracy = group.score(scenarios[0], "average_accuracy") if scenarios else None
    return group.place, group.memory_size or 0, accuracy.mean if accuracy else 0.0


def tell_apart(groups: Iterable[Group]) -> list[Group]:
    """Add variants to groups: the name of the recipe, or else the settings that differ."""
    twins: dict[tuple[str, str, int | None], list[Group]] = defaultdict(list)
    for group in groups:
        twins[group.place, group.method, group.memory_size].append(group)
    return [named for alike in twins.values() for named in name_variants(alike)]


def name_variants(alike: list[Group]) -> Iterator[Group]:
    """Name settings as key=value: those that differ from the paper's configuration if it is in `alike`, else
    all that vary, and all that differ from the group's protocol.

    A setting that is None is not named, unless it differs from the paper's.
    """
    if len(alike) == 1:
        changed = name_settings(alike[0], changed_from_protocol(alike[0]))
        yield replace(alike[0], variant=changed)
        return
    flat = [flatten(group.records[0].config) for group in alike]
    names = [fingerprint(settings) for settings in flat]
    protocol = alike[0].protocol
    usual = next((own for own, name in zip(flat, names, strict=True) if name in of_the_paper(protocol)), None)
    recipes = {fingerprint(usual): PUBLISHED, tuned_fingerprint(usual): TUNED} if usual else {}
    if protocol != "full":
        recipes = {fingerprint(usual): f"{protocol} protocol"} if usual else {}
    keys = [key for key in dict.fromkeys(key for settings in flat for key in settings) if key != "seed"]
    differing = [key for key in keys if any(settings.get(key) != flat[0].get(key) for settings in flat)]
    for group, own, name in zip(alike, flat, names, strict=True):
        if usual:
            named = [key for key in keys if own.get(key) != usual.get(key)]
        else:
            named = [key for key in differing if own.get(key) is not None]
            named += [key for key in changed_from_protocol(group) if key not in named]
        yield replace(group, variant=recipes.get(name) or name_settings(group, named))


def name_settings(group: Group, keys: Iterable[str]) -> str:
    settings = flatten(group.records[0].config)
    return ", ".join(f"{key}={format_setting(settings.get(key))}" for key in keys)


def changed_from_protocol(group: Group) -> list[str]:
    """The settings in which runs of the cpu protocol are not as it prescribes."""
    if group.protocol == "full":
        return []
    try:
        recipe = find_recipe(group.stream, group.method, group.memory_size, group.protocol)
    except ConfigError:
        return []  # a method of the user's own
    settings = flatten(group.records[0].config)
    return [
        key for key, value in (recipe.settings | {"data.tasks": None}).items() if settings.get(key) != value
    ]


@cache
def of_the_paper(protocol: str) -> frozenset[str]:
    """The fingerprints of all configurations of the paper's cells."""
    return frozenset(fingerprints(protocol).values())


def tuned_fingerprint(published: dict[str, Any]) -> str | None:
    """The fingerprint of a published configuration with the tuned recipe; None if there is no such recipe."""
    flat = flatten(published)
    place = flat["stream"], flat["method.name"], flat.get("method.memory_size")
    try:
        return fingerprint(flat | find_recipe(*place, TUNED).settings)
    except ConfigError:
        return None
