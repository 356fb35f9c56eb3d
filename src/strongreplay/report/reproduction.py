"""Verdicts as text: Markdown, CSV, LaTeX, and the table that opens the README. No torch in here."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from strongreplay.report.styles import PRINTED, TITLES
from strongreplay.report.tables import tuned_fingerprint
from strongreplay.report.verdicts import Cell, Estimate, MethodComparison, estimate
from strongreplay.runs.paper import TARGETS
from strongreplay.storage.files import csv_text
from strongreplay.storage.records import RunRecord, fingerprint

COLUMNS = ("cell", "published", "ours", "difference", "verdict", "cpu", "note")
SHOWN = ("sgd", "er", "derpp", "clser", "ser")  # in the README
BEGIN, END = "<!-- results: made by ser reproduce report --readme -->", "<!-- end of results -->"


def texts(cell: Cell) -> tuple[str, ...]:
    """A row: name, printed mean ± deviation (n), ours mean ± interval (n), difference, verdict, cpu, note."""
    item = cell.item
    shown = "-" if item.mean is None else f"{item.mean:.2f}"
    if item.deviation is not None:
        shown += f" ± {item.deviation:.2f}"
    if item.count:
        shown += f" ({item.count})"
    gap = "" if cell.difference is None else f"{cell.difference:+.2f}"
    note = "; ".join(part for part in (item.why_none, item.note) if part)
    return item.name, shown, told(cell.ours), gap, cell.verdict, told(cell.cpu), note


def told(ours: Estimate | None) -> str:
    return "-" if ours is None else f"{ours} ({ours.count})"


def counts(cells: Iterable[Cell]) -> dict[str, int]:
    found: dict[str, int] = {}
    for cell in cells:
        found[cell.verdict] = found.get(cell.verdict, 0) + 1
    return found


def as_markdown(cells: Sequence[Cell], rivalries: Sequence[MethodComparison]) -> str:
    """A table for each table of the paper, then SER against the others."""
    lines = [
        "# What was published and what was measured",
        "",
        "Published: mean ± deviation (runs). Ours: mean ± 95 % interval (seeds). Reproduced: the intervals "
        "meet, or ours is better. Results of the cpu protocol have a column of their own and no verdict.",
    ]
    for target, group in groupby(cells, key=lambda cell: cell.item.target):
        lines += ["", f"## {target}: {TARGETS[target]}", ""]
        lines += markdown_table(COLUMNS, [texts(cell) for cell in group])
    if rivalries:
        lines += ["", "## SER against the others, over common seeds (paired t-test, p after Holm)", ""]
        lines += markdown_table(RIVAL_COLUMNS, [rival_texts(rivalry) for rivalry in rivalries])
    return "\n".join(lines) + "\n"


RIVAL_COLUMNS = ("stream", "memory", "scenario", "against", "ahead by", "seeds", "p", "SER is better")


def rival_texts(rivalry: MethodComparison) -> tuple[str, ...]:
    item = rivalry.own.item
    verdict = "cannot be said" if rivalry.p is None else "yes" if rivalry.holds else "not shown"
    return (
        item.stream, str(item.memory_size), TITLES[item.scenario], PRINTED[rivalry.rival.item.method],
        f"{rivalry.difference:+.2f}", str(rivalry.count), "-" if rivalry.p is None else f"{rivalry.p:.4f}",
        verdict,
    )  # fmt: skip


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def as_csv(cells: Iterable[Cell]) -> str:
    """A row a cell, in numbers, empty where there is none."""
    head = (
        "cell,target,stream,memory,method,setting,score,published_mean,published_sd,published_n,ours_mean,ours_sd,"
        "ours_n,ours_margin,difference,cpu_mean,cpu_n,verdict,note,why_none"
    )
    rows: list[Sequence[object]] = [head.split(",")]
    for cell in cells:
        item, ours = cell.item, cell.ours
        mine = (ours.mean, ours.deviation, ours.count, ours.margin) if ours else (None,) * 4
        cpu = (cell.cpu.mean, cell.cpu.count) if cell.cpu else (None, None)
        numbers = (item.mean, item.deviation, item.count, *mine, cell.difference, *cpu)
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
        rows = [" & ".join(latex(text) for text in texts(cell)[:5]) + r" \\" for cell in group]
        head = " & ".join(latex(column) for column in COLUMNS[:5]) + r" \\"
        opening = [f"% {target}: {TARGETS[target]}", r"\begin{tabular}{lrrrl}", r"\hline", head, r"\hline"]
        parts.append("\n".join([*opening, *rows, r"\hline", r"\end{tabular}"]))
    return "\n\n".join(parts) + "\n"


SPECIAL = str.maketrans({"%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "±": r"$\pm$"})


def latex(text: str) -> str:
    return text.translate(SPECIAL)


def readme_table(cells: Sequence[Cell], records: Sequence[RunRecord]) -> str:
    """The MNIST columns of Table 2: a row for each stream and memory size; last SER with tuned settings."""
    rows = []
    found = {
        (c.item.stream, c.item.memory_size, c.item.method): c for c in cells if c.item.target == "table2"
    }
    for stream, title in (("p-mnist", "permuted MNIST"), ("r-mnist", "rotated MNIST")):
        for size in (200, 500):
            row = [f"{title}, memory {size}"]
            for method in SHOWN:
                cell = found[stream, None if method == "sgd" else size, method]
                row.append(told(cell.ours))
                if method in ("clser", "ser"):
                    row.append(f"{cell.item.mean:.2f}")
            rows.append([*row, told(tuned(cell, records))])
    columns = ["20 tasks, Domain-IL"]
    for method in SHOWN:
        columns += [PRINTED[method], *(["published"] if method in ("clser", "ser") else [])]
    return "\n".join(markdown_table([*columns, "SER, tuned"], rows))


def tuned(cell: Cell, records: Sequence[RunRecord]) -> Estimate | None:
    """With the tuned recipe of a cell that was run; in all else the configurations are alike."""
    if not cell.records:
        return None
    item, wanted = cell.item, tuned_fingerprint(cell.records[0].config)
    scores = [r.score(item.scenario, item.score) for r in records if fingerprint(r.config) == wanted]
    return estimate([score for score in scores if score is not None])
