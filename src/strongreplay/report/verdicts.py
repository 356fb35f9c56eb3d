"""What was published beside what was measured, a verdict for each cell, and which method beats which.

Intervals are Student's, 95 %, for the mean over seeds; that of a published number is made of its deviation
and number of runs, and a point where these are not given. Methods are compared over the seeds they have in
common, by a paired t-test, corrected for the number of comparisons after Holm.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import mean, stdev

from strongreplay.runs.paper import PaperCell
from strongreplay.storage.records import RunRecord, fingerprint

FEWEST = 3  # seeds; the interval of two is 13 times their deviation and would agree with anything
CONFIDENCE = 0.95
VERDICTS = ("reproduced", "below", "too few seeds", "not run", "no number")
BETTER = {"average_accuracy": 1, "forgetting": -1}
ByConfig = dict[tuple[str, str], dict[int, RunRecord]]  # stream and fingerprint -> seed -> record


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its deviation, number of runs and half the width of its interval; none where unknown."""

    mean: float
    deviation: float | None
    count: int | None
    margin: float | None

    def __str__(self) -> str:
        spread = "" if self.margin is None else f" ± {self.margin:.2f}"
        return f"{self.mean:.2f}{spread}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the paper: what is printed, what the records say, and what that means."""

    item: PaperCell
    published: Estimate | None
    ours: Estimate | None
    verdict: str
    records: tuple[RunRecord, ...] = ()  # by seed
    cpu: Estimate | None = None  # of a cell of the full protocol: what the cpu protocol gave

    @property
    def difference(self) -> float | None:
        """Ours minus theirs, in points; none under another protocol than the paper's."""
        if not (self.ours and self.published) or self.item.protocol != "full":
            return None
        return self.ours.mean - self.published.mean


def estimate(values: Sequence[float]) -> Estimate | None:
    if not values:
        return None
    deviation = stdev(values) if len(values) > 1 else None
    return Estimate(mean(values), deviation, len(values), margin(deviation, len(values)))


def margin(deviation: float | None, count: int | None) -> float | None:
    """Half the width of the interval of a mean."""
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    if deviation is None or count is None or count < 2:
        return None
    return float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * deviation / sqrt(count)


def published(item: PaperCell) -> Estimate | None:
    if item.mean is None:
        return None
    return Estimate(item.mean, item.deviation, item.count, margin(item.deviation, item.count))


def judge(item: PaperCell, ours: Estimate | None) -> str:
    """Reproduced: the intervals meet, or ours is the better one."""
    theirs = published(item)
    if ours is None:
        return "not run" if item.is_runnable else "no number"
    if item.protocol != "full":
        return "not comparable"  # another net and other epochs than those of the printed number
    if theirs is None:
        return "no number"
    if ours.count is None or ours.count < FEWEST:
        return "too few seeds"
    ahead = BETTER[item.score] * (ours.mean - theirs.mean)
    meet = -ahead <= (ours.margin or 0.0) + (theirs.margin or 0.0)
    return "reproduced" if meet else "below"


def judge_all(items: Iterable[PaperCell], records: Iterable[RunRecord]) -> list[Cell]:
    """A cell for each item, in order. Of two records of one configuration and seed the first counts."""
    by_config: ByConfig = {}
    for record in records:
        by_config.setdefault((record.stream, fingerprint(record.config)), {}).setdefault(record.seed, record)
    cells = []
    for item in items:
        own = records_of(item, by_config)
        ours, cpu = estimate(scores_of(item, own)), None
        if item.protocol == "full":
            cpu = estimate(scores_of(item, records_of(replace(item, protocol="cpu"), by_config)))
        cells.append(Cell(item, published(item), ours, judge(item, ours), own, cpu))
    return cells


def records_of(item: PaperCell, by_config: ByConfig) -> tuple[RunRecord, ...]:
    """Those of the cell's configuration, by seed."""
    seeds = by_config.get((item.stream, item.fingerprint or ""), {})
    return tuple(seeds[seed] for seed in sorted(seeds) if item.scenario in seeds[seed].scenarios)


def scores_of(item: PaperCell, records: Iterable[RunRecord]) -> list[float]:
    found = [record.score(item.scenario, item.score) for record in records]
    return [score for score in found if score is not None]


@dataclass(frozen=True, slots=True)
class MethodComparison:
    """SER against another method over the seeds both have; p is Holm's, none where it cannot be had."""

    rival: Cell
    own: Cell
    difference: float  # mean over seeds, in points, positive where the method is better
    count: int
    p: float | None

    @property
    def holds(self) -> bool:
        return self.difference > 0 and self.p is not None and self.p < 1 - CONFIDENCE


def compare(cells: Iterable[Cell], method: str = "ser") -> list[MethodComparison]:
    """The method against each other one in the same column: stream, memory and scenario."""
    columns: dict[tuple[str, str, int | None, str], list[Cell]] = {}
    for cell in cells:
        if cell.ours and cell.item.target in ("table1", "table2") and cell.item.method != "joint":
            item = cell.item
            columns.setdefault((item.target, item.stream, item.memory_size, item.scenario), []).append(cell)
    found = []
    for (target, stream, _, scenario), column in columns.items():
        own = next((cell for cell in column if cell.item.method == method), None)
        without = columns.get((target, stream, None, scenario), [])  # methods that keep no samples
        if own:
            found += holm([meet(own, rival) for rival in [*without, *column] if rival is not own])
    return found


def meet(own: Cell, rival: Cell) -> MethodComparison:
    from scipy.special import stdtr

    gaps = differences(own, rival)
    sign = BETTER[own.item.score]
    if len(gaps) < FEWEST or len(set(gaps)) == 1:
        return MethodComparison(rival, own, sign * mean(gaps) if gaps else 0.0, len(gaps), None)
    statistic = mean(gaps) / (stdev(gaps) / sqrt(len(gaps)))
    p = 2 * float(stdtr(len(gaps) - 1, -abs(statistic)))
    return MethodComparison(rival, own, sign * mean(gaps), len(gaps), p)


def differences(own: Cell, rival: Cell) -> list[float]:
    """The score of one less that of the other, for each common seed."""
    mine, theirs = ({r.seed: score_of(cell, r) for r in cell.records} for cell in (own, rival))
    return [mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())]


def score_of(cell: Cell, record: RunRecord) -> float:
    score = record.score(cell.item.scenario, cell.item.score)
    return 0.0 if score is None else score


def holm(rivalries: list[MethodComparison]) -> list[MethodComparison]:
    """Each p times the number of those not smaller, never below one before it."""
    ranked = sorted((r for r in rivalries if r.p is not None), key=lambda r: r.p or 0.0)
    corrected, least = {}, 0.0
    for number, rivalry in enumerate(ranked):
        least = max(least, min(1.0, (len(ranked) - number) * (rivalry.p or 0.0)))
        corrected[id(rivalry)] = least
    return [replace(r, p=corrected[id(r)]) if r.p is not None else r for r in rivalries]
