"""One method against the others over the seeds they share: paired t-tests, corrected after Holm."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import NamedTuple

from strongreplay.errors import unknown
from strongreplay.report.summary import CONFIDENCE, Summary, summarise
from strongreplay.report.tables import Group
from strongreplay.report.verdicts import FEWEST_SEEDS, Cell
from strongreplay.storage.records import RunRecord

Scores = Mapping[int, float]  # seed -> average accuracy


class Place(NamedTuple):
    """What the compared runs have in common."""

    stream: str
    memory_size: int | None
    scenario: str
    target: str = ""  # the table of the paper, if the runs belong to one


@dataclass(frozen=True, slots=True)
class PairedTest:
    """A method minus another one; `p` is corrected after Holm, None with too few common seeds."""

    place: Place
    method: str
    other: str
    own_score: Summary | None  # over all seeds of the method
    other_score: Summary | None
    gap: Summary | None  # over the common seeds, in points; positive if the method is better
    p: float | None

    @property
    def difference(self) -> float | None:
        return self.gap.mean if self.gap else None

    @property
    def count(self) -> int:
        """Common seeds."""
        return (self.gap.count or 0) if self.gap else 0

    @property
    def outcome(self) -> str:
        if self.p is None or self.p >= 1 - CONFIDENCE or self.difference is None:
            return "not decided"
        return "ahead" if self.difference > 0 else "behind"


def compare_cells(cells: Iterable[Cell], method: str = "ser") -> list[PairedTest]:
    """A method against every other one in the same column of Table 1 or 2, with the same protocol."""
    columns: dict[Place, dict[str, Scores]] = {}
    for cell in cells:
        item = cell.item
        if cell.ours and item.target in ("table1", "table2") and item.method != "joint":
            place = Place(item.stream, item.memory_size, item.scenario, item.target)
            columns.setdefault(place, {})[item.method] = scores_by_seed(cell.records, item.scenario)
    found: list[PairedTest] = []
    for place, column in columns.items():
        without = columns.get(place._replace(memory_size=None), {})  # methods without memory
        if method in column:
            found += compare_scores(place, method, without | column)
    return found


def compare_groups(groups: Sequence[Group], name: str) -> list[PairedTest]:
    """The same for a user's own runs. `name` is a method, or a configuration as in tables ("SER (tuned)").

    Runs are compared within a stream, memory size and scenario; those without memory are in each size.
    """
    wanted = [group for group in groups if name.lower() in (group.method.lower(), group.name.lower())]
    if not wanted:
        raise unknown("method", name, sorted({group.method for group in groups}), "See: ser compare FOLDER")
    found: list[PairedTest] = []
    for own in wanted:
        near = [g for g in groups if g.place == own.place and g.memory_size in (None, own.memory_size)]
        for scenario in own.records[0].scenarios:
            place = Place(own.place, own.memory_size, scenario)
            scores = {g.name: scores_by_seed(g.records, scenario) for g in near if g.method != "joint"}
            found += compare_scores(place, own.name, scores)
    return found


def scores_by_seed(records: Iterable[RunRecord], scenario: str) -> Scores:
    held = {r.seed: r.score(scenario, "average_accuracy") for r in records if scenario in r.scenarios}
    return {seed: score for seed, score in held.items() if score is not None}


def compare_scores(place: Place, method: str, scores: Mapping[str, Scores]) -> list[PairedTest]:
    """One method against all others of a column; Holm's correction is over these tests."""
    own = scores[method]
    tests = [
        PairedTest(
            place, method, other, summarise(own.values()), summarise(theirs.values()), *paired_t(own, theirs)
        )
        for other, theirs in scores.items()
        if other != method
    ]
    return correct_after_holm(tests)


def paired_t(own: Scores, other: Scores) -> tuple[Summary | None, float | None]:
    """The differences over common seeds, and p of the two-sided test."""
    from scipy.special import stdtr

    gap = summarise(own[seed] - other[seed] for seed in sorted(own.keys() & other.keys()))
    if gap is None or gap.count is None or gap.count < FEWEST_SEEDS or not gap.deviation:
        return gap, None
    statistic = gap.mean / (gap.deviation / sqrt(gap.count))
    return gap, 2 * float(stdtr(gap.count - 1, -abs(statistic)))


def correct_after_holm(tests: Sequence[PairedTest]) -> list[PairedTest]:
    """Holm: multiply the smallest of k p-values by k, the next by k - 1, and so on, never decreasing."""
    ranked = sorted((test.p, place) for place, test in enumerate(tests) if test.p is not None)
    corrected, least = list(tests), 0.0
    for number, (p, place) in enumerate(ranked):
        least = max(least, min(1.0, (len(ranked) - number) * p))
        corrected[place] = replace(tests[place], p=least)
    return corrected
