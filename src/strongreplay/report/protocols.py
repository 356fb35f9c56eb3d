"""Results of the cpu protocol: tables, and whether they confirm the paper's ordering of methods.

They are not compared with printed numbers, because net and epochs differ. The ordering can be compared: if
the paper prints SER ahead of another method, is it ahead here, over common seeds, and by as much? Intervals
are Student's 95 % intervals of the paired differences.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strongreplay.report.paired import PairedTest, compare_cells
from strongreplay.report.reproduction import gap_text, score_text
from strongreplay.report.styles import PRINTED, TITLES, scenarios_of
from strongreplay.report.summary import Summary
from strongreplay.report.tables import Group, group_records
from strongreplay.report.text_tables import markdown_table
from strongreplay.report.verdicts import FEWEST_SEEDS, Cell, judge_all
from strongreplay.runs.paper import PaperCell, items
from strongreplay.storage.records import RunRecord, fingerprint

ORDERINGS = ("confirmed", "contradicted", "not shown", "too few seeds")
LEADS_TITLE = (
    "cpu protocol: SER's lead in points, printed and here; here: mean ± 95 % interval (common seeds)"
)
MARGIN_COLUMNS = ("stream", "memory", "scenario", "against", "printed", "here", "ordering", "lead")


@dataclass(frozen=True, slots=True)
class Lead:
    """The lead of SER over another method: as printed, and here over common seeds."""

    test: PairedTest
    other: PaperCell  # the cell of the other method
    printed: float
    here: Summary

    @property
    def ordering(self) -> str:
        """Whether the paper's ordering is confirmed, contradicted, or neither."""
        if self.here.half_width is None or self.test.count < FEWEST_SEEDS:
            return "too few seeds"
        if abs(self.here.mean) <= self.here.half_width:
            return "not shown"
        return "confirmed" if (self.here.mean > 0) == (self.printed > 0) else "contradicted"

    @property
    def sentence(self) -> str:
        """For the cell of the other method."""
        size = self.test.place.memory_size
        said = (
            "too few seeds"
            if self.here.count is None or self.here.count < FEWEST_SEEDS
            else (f"ordering {self.ordering}, lead {self.size}")
        )
        return f"SER (memory {size}) leads by {gap_text(self.here)}, printed {self.printed:+.2f}: {said}"

    @property
    def size(self) -> str:
        """The size of the lead, compared with the printed one."""
        if self.here.half_width is None or self.test.count < FEWEST_SEEDS:
            return "too few seeds"
        if abs(self.here.mean - self.printed) <= self.here.half_width:
            return "as printed"
        return "larger" if self.here.mean > self.printed else "smaller"


def cpu_cells(records: Iterable[RunRecord]) -> list[Cell]:
    """The paper's cells with the results of the cpu protocol."""
    return judge_all(items("cpu"), records)


def summary(records: Sequence[RunRecord]) -> str:
    """One line: how many cells were run with the cpu protocol, and how many leads of SER are confirmed."""
    cells = cpu_cells(records)
    found = Counter(lead.ordering for lead in leads(cells))
    said = ", ".join(f"{found[word]} {word}" for word in ORDERINGS if found[word]) or "none compared"
    run = sum(bool(cell.records) for cell in cells)
    return f"cpu protocol: {run} of {len(cells)} cells run; leads of SER: {said}"


def as_markdown(records: Sequence[RunRecord]) -> str:
    """The last section of the verdicts."""
    head = "\n## The cpu protocol: does SER lead where the paper says so?\n\n"
    return f"{head}{summary(records)}\n\n{LEADS_TITLE}.\n\n{lead_table(cpu_cells(records))}\n"


def leads(cells: Sequence[Cell]) -> list[Lead]:
    """SER against every other method of a column, if both have runs and printed numbers."""
    printed = {
        (c.item.target, c.item.stream, c.item.memory_size, c.item.scenario, c.item.method): c.item
        for c in cells
        if c.item.mean is not None
    }
    found = []
    for test in compare_cells(cells):
        place = test.place
        own = printed.get((place.target, place.stream, place.memory_size, place.scenario, test.method))
        sizes = (place.memory_size, None)  # methods without memory have no size
        others = (printed.get((place.target, place.stream, s, place.scenario, test.other)) for s in sizes)
        other = next((item for item in others if item), None)
        if own and other and test.gap:
            found.append(Lead(test, other, (own.mean or 0.0) - (other.mean or 0.0), test.gap))
    return found


def lead_texts(lead: Lead) -> tuple[str, ...]:
    place = lead.test.place
    return (
        place.stream, str(place.memory_size), TITLES[place.scenario], PRINTED[lead.test.other],
        f"{lead.printed:+.2f}", f"{gap_text(lead.here)} ({lead.here.count})", lead.ordering, lead.size,
    )  # fmt: skip


def lead_table(cells: Sequence[Cell]) -> str:
    rows = [lead_texts(lead) for lead in leads(cells)]
    return "\n".join(markdown_table(MARGIN_COLUMNS, rows)) if rows else "Not run yet."


def stream_table(records: Sequence[RunRecord], stream: str, size: int) -> str:
    """All runs on one stream, the best last, then joint training, with the printed means."""
    groups = [
        group
        for group in group_records(records)
        if group.protocol == "cpu" and group.stream == stream and group.memory_size in (None, size)
    ]
    scenarios = scenarios_of(groups)
    columns = ["method"]
    for scenario in scenarios:
        columns += [f"{TITLES[scenario]}, cpu", "forgetting", "printed"]
    means = printed_means()
    rows = []
    for group in sorted(groups, key=lambda group: group.method == "joint"):
        row = [group.name]
        for scenario in scenarios:
            mean = means.get((fingerprint(group.records[0].config), scenario))
            row += [score_text(group.score(scenario, name)) for name in ("average_accuracy", "forgetting")]
            row.append("-" if mean is None else f"{mean:.2f}")
        rows.append([*row, hours(group)])
    return "\n".join(markdown_table([*columns, "hours"], rows)) if rows else "Not run yet."


def printed_means() -> dict[tuple[str | None, str], float | None]:
    """Printed means by configuration and scenario. Tables 1 and 2 override Table 4, which repeats cells."""
    cells = sorted(items("cpu"), key=lambda item: item.target in ("table1", "table2"))
    return {(c.fingerprint, c.scenario): c.mean for c in cells if c.score == "average_accuracy" and c.mean}


def hours(group: Group) -> str:
    """Hours of the fastest seed, with evaluation and checkpoints; others may have shared the machine."""
    spent = [
        sum(phase["seconds"] for phase in record.measured.get("phases", {}).values())
        for record in group.records
    ]
    return f"{min(spent) / 3600:.1f}"
