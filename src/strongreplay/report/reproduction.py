"""Verdicts as text: Markdown, CSV, LaTeX, and the first table of the README."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from strongreplay.report.paired import PairedTest
from strongreplay.report.styles import PRINTED, TITLES
from strongreplay.report.summary import Summary, summarise
from strongreplay.report.tables import tuned_fingerprint
from strongreplay.report.text_tables import escape_latex, latex_table, markdown_table
from strongreplay.report.verdicts import MARGIN, Cell
from strongreplay.runs.paper import TARGETS
from strongreplay.storage.files import csv_text
from strongreplay.storage.records import RunRecord, fingerprint

COLUMNS = ("cell", "published", "ours", "difference", "verdict", "cpu", "note")
SHOWN = ("sgd", "er", "derpp", "clser", "ser")  # in the README
BEGIN, END = "<!-- results: made by ser reproduce report --readme -->", "<!-- end of results -->"


def texts(cell: Cell) -> tuple[str, ...]:
    """One row of COLUMNS; numbers are mean ± interval (runs)."""
    item = cell.item
    gap = "" if cell.difference is None else f"{cell.difference:+.2f}"
    note = "; ".join(part for part in (item.why_none, item.note) if part)
    return (
        item.name, score_text(cell.published), score_text(cell.ours), gap, cell.verdict_text,
        score_text(cell.cpu), note,
    )  # fmt: skip


def table_title(margin: float | None = None) -> str:
    """A title that explains the numbers of `texts`."""
    rule = "" if margin is None else f"; margin of the verdicts: {margin:g} points"
    return f"published and ours: mean ± 95 % interval (runs), in per cent{rule}"


def score_text(score: Summary | None) -> str:
    return "-" if score is None else score.text(count=True)


def counts(cells: Iterable[Cell]) -> dict[str, int]:
    return Counter(cell.verdict for cell in cells)


def as_markdown(cells: Sequence[Cell], tests: Sequence[PairedTest]) -> str:
    """A table for each table of the paper, then SER against the others."""
    margin = cells[0].margin if cells else MARGIN
    lines = [
        "# What was published and what was measured",
        "",
        f"{table_title().capitalize()}. The difference is ours minus published, in points. Its 95 % "
        f"interval (Welch) decides: better if all above 0, reproduced if all above -{margin:g}, below if "
        f"all under 0 and reaching below -{margin:g}, else undecided. Results of the cpu protocol have a "
        "column of their own and verdicts on SER's lead alone, below.",
    ]
    for target, group in groupby(cells, key=lambda cell: cell.item.target):
        lines += ["", f"## {target}: {TARGETS[target]}", ""]
        lines += markdown_table(COLUMNS, [texts(cell) for cell in group])
    if tests:
        lines += [
            "",
            "## SER against the others, over common seeds",
            "",
            f"{PAIRED_TITLE.capitalize()}.",
        ]
        lines += ["", *markdown_table(PAIRED_COLUMNS, [paired_texts(test) for test in tests])]
    return "\n".join(lines) + "\n"


PAIRED_TITLE = "ahead by: mean ± 95 % interval of the differences, in points; paired t-test, p after Holm"
PAIRED_COLUMNS = ("stream", "memory", "scenario", "method", "against", "ahead by", "seeds", "p", "outcome")


def paired_texts(test: PairedTest) -> tuple[str, ...]:
    """One row of PAIRED_COLUMNS."""
    place = test.place
    return (
        place.stream, "-" if place.memory_size is None else str(place.memory_size), TITLES[place.scenario],
        PRINTED.get(test.method, test.method), PRINTED.get(test.other, test.other),
        gap_text(test.gap), str(test.count),
        p_text(test.p), test.outcome,
    )  # fmt: skip


def gap_text(gap: Summary | None) -> str:
    """A difference in points with its sign."""
    return "-" if gap is None else ("" if gap.mean < 0 else "+") + gap.text()


def p_text(p: float | None) -> str:
    if p is None:
        return "-"
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"


def as_csv(cells: Iterable[Cell]) -> str:
    """One row per cell, as numbers; missing numbers are empty."""
    head = (
        "cell,target,stream,memory,method,setting,score,published_mean,published_sd,published_n,ours_mean,ours_sd,"
        "ours_n,ours_half_width,difference,low,high,cpu_mean,cpu_n,verdict,note,why_none"
    )
    rows: list[Sequence[object]] = [head.split(",")]
    for cell in cells:
        item, ours = cell.item, cell.ours
        mine = (ours.mean, ours.deviation, ours.count, ours.half_width) if ours else (None,) * 4
        low, high = cell.interval or (None, None)
        cpu = (cell.cpu.mean, cell.cpu.count) if cell.cpu else (None, None)
        numbers = (item.mean, item.deviation, item.count, *mine, cell.difference, low, high, *cpu)
        rows.append(
            [item.name, item.target, item.stream, item.memory_size, item.method, item.scenario, item.score]
            + ["" if value is None else f"{value:.6g}" for value in numbers]
            + [cell.verdict, item.note, item.why_none]
        )
    return csv_text(rows)


def as_latex(cells: Sequence[Cell]) -> str:
    """Tabulars for \\input, one for each target."""
    parts = []
    for target, group in groupby(cells, key=lambda cell: cell.item.target):
        rows = [[escape_latex(text) for text in texts(cell)[:5]] for cell in group]
        title = f"{target}: {TARGETS[target]}; {table_title()}"
        parts.append("\n".join(latex_table(COLUMNS[:5], rows, "lrrrl", title)))
    return "\n\n".join(parts) + "\n"


def readme_table(cells: Sequence[Cell], records: Sequence[RunRecord]) -> str:
    """The MNIST columns of Table 2: a row for each stream and memory size; the last column is tuned SER."""
    rows = []
    found = {
        (c.item.stream, c.item.memory_size, c.item.method): c for c in cells if c.item.target == "table2"
    }
    for stream, title in (("p-mnist", "permuted MNIST"), ("r-mnist", "rotated MNIST")):
        for size in (200, 500):
            row = [f"{title}, memory {size}"]
            for method in SHOWN:
                cell = found[stream, None if method == "sgd" else size, method]
                row.append(score_text(cell.ours))
                if method in ("clser", "ser"):
                    row.append(score_text(cell.published))
            rows.append([*row, score_text(tuned(cell, records))])
    columns = ["mean ± 95 % interval (n)"]
    for method in SHOWN:
        name = PRINTED[method]
        columns += [name, *([f"{name}, published"] if method in ("clser", "ser") else [])]
    return "\n".join(markdown_table([*columns, "SER, tuned"], rows))


def tuned(cell: Cell, records: Sequence[RunRecord]) -> Summary | None:
    """The score of a cell's configuration with the tuned recipe."""
    if not cell.records:
        return None
    item, wanted = cell.item, tuned_fingerprint(cell.records[0].config)
    return summarise(r.score(item.scenario, item.score) for r in records if fingerprint(r.config) == wanted)
