"""Published and measured numbers, with a verdict for each cell of the paper.

The verdict is an equivalence test. It uses Welch's 95 % interval of the difference of both means, ours minus
published, with the sign chosen so that more is better, and a margin (default: 2 points):

- better: the whole interval is above 0;
- reproduced: the whole interval is above minus the margin;
- below: the whole interval is under 0, and it reaches below minus the margin;
- undecided: anything else, with the number of seeds that would decide it if means and deviations stay.

An interval needs a deviation from at least three seeds: two can agree by chance. If the paper prints no
deviation, ours is used instead, with five runs, the number the paper states for Tables 1 and 2.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import sqrt

from strongreplay.metrics import METRICS
from strongreplay.report.summary import Summary, student_quantile, summarise
from strongreplay.runs.paper import NUM_RUNS, PaperCell
from strongreplay.storage.records import RunRecord, fingerprint

FEWEST_SEEDS = 3
MARGIN = 2.0  # points
MOST_SEEDS = 100  # upper limit of the search for a deciding number of seeds
VERDICTS = ("better", "reproduced", "below", "undecided", "too few seeds", "not run", "no number")
ByConfig = dict[tuple[str, str], dict[int, RunRecord]]  # stream and fingerprint -> seed -> record


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the paper: the printed number, our records, and the verdict."""

    item: PaperCell
    published: Summary | None
    ours: Summary | None
    verdict: str
    records: tuple[RunRecord, ...] = ()  # by seed
    cpu: Summary | None = None  # for a cell of the full protocol: the result of the cpu protocol
    margin: float = MARGIN

    @property
    def difference(self) -> float | None:
        """Ours minus published, in points; None for another protocol than the paper's."""
        if self.ours and self.published and self.item.protocol == "full":
            return self.ours.mean - self.published.mean
        return None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the difference; None with too few seeds."""
        if self.ours and self.published and self.difference is not None:
            return difference_interval(self.ours, self.published)
        return None

    @property
    def verdict_text(self) -> str:
        """The verdict; if it is undecided, with the number of seeds that would decide it."""
        if self.verdict != "undecided" or not self.ours or not self.published:
            return self.verdict
        needed = seeds_to_decide(self.item, self.ours, self.published, self.margin)
        return f"undecided ({needed or f'>{MOST_SEEDS}'} seeds would decide)"


def published_summary(item: PaperCell) -> Summary | None:
    return None if item.mean is None else Summary(item.mean, item.deviation, item.count)


def judge(item: PaperCell, ours: Summary | None, margin: float = MARGIN) -> str:
    """One of VERDICTS, by the rule above."""
    published = published_summary(item)
    if ours is None:
        return "not run" if item.is_runnable else "no number"
    if published is None:
        return "no number"
    if item.protocol != "full":
        return "not comparable"  # net and epochs differ from those of the printed number
    interval = difference_interval(ours, published)
    return "too few seeds" if interval is None else judge_interval(interval, METRICS[item.score].sign, margin)


def judge_interval(interval: tuple[float, float], sign: int, margin: float) -> str:
    low, high = sorted(sign * end for end in interval)
    if low > 0:
        return "better"
    if low > -margin:
        return "reproduced"
    return "below" if high < 0 else "undecided"


def difference_interval(ours: Summary, published: Summary) -> tuple[float, float] | None:
    """Welch's 95 % interval of ours minus published; None with too few seeds."""
    if ours.deviation is None or ours.count is None or ours.count < FEWEST_SEEDS:
        return None
    known = published.deviation is not None
    deviation = published.deviation if published.deviation is not None else ours.deviation
    count = (published.count or NUM_RUNS) if known else NUM_RUNS
    own, other = ours.deviation**2 / ours.count, deviation**2 / count  # squared errors of both means
    if own + other == 0:
        return (ours.mean - published.mean,) * 2
    freedom = (own + other) ** 2 / (own**2 / (ours.count - 1) + other**2 / (count - 1))
    half, gap = student_quantile(freedom) * sqrt(own + other), ours.mean - published.mean
    return gap - half, gap + half


def seeds_to_decide(item: PaperCell, ours: Summary, published: Summary, margin: float) -> int | None:
    """The smallest number of seeds that decides with these means and deviations; None above MOST_SEEDS."""
    for count in range((ours.count or 0) + 1, MOST_SEEDS + 1):
        interval = difference_interval(Summary(ours.mean, ours.deviation, count), published)
        if interval and judge_interval(interval, METRICS[item.score].sign, margin) != "undecided":
            return count
    return None


def judge_all(items: Iterable[PaperCell], records: Iterable[RunRecord], margin: float = MARGIN) -> list[Cell]:
    """A cell for each item, in order. Of two records of one configuration and seed, the first is used."""
    by_config: ByConfig = {}
    for record in records:
        by_config.setdefault((record.stream, fingerprint(record.config)), {}).setdefault(record.seed, record)
    cells = []
    for item in items:
        own = records_of(item, by_config)
        ours, cpu = score_of(item, own), None
        if item.protocol == "full":
            cpu = score_of(item, records_of(replace(item, protocol="cpu"), by_config))
        verdict = judge(item, ours, margin)
        cells.append(Cell(item, published_summary(item), ours, verdict, own, cpu, margin))
    return cells


def records_of(item: PaperCell, by_config: ByConfig) -> tuple[RunRecord, ...]:
    """The records of the cell's configuration, by seed."""
    seeds = by_config.get((item.stream, item.fingerprint or ""), {})
    return tuple(seeds[seed] for seed in sorted(seeds) if item.scenario in seeds[seed].scenarios)


def score_of(item: PaperCell, records: Iterable[RunRecord]) -> Summary | None:
    return summarise(record.score(item.scenario, item.score) for record in records)
