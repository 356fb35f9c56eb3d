"""Tables of verdicts on the paper, of paired tests, and of SER's leads under the cpu protocol.

As text they are printed in parts that fit a terminal; in other formats each is one table.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from strongreplay.cli.tables import Entry, Format, Table, TableCell, as_cell, is_terminal, print_table
from strongreplay.cli.text import print_text

if TYPE_CHECKING:
    from strongreplay.report.paired import PairedTest
    from strongreplay.report.protocols import Lead
    from strongreplay.report.summary import Spread, Summary
    from strongreplay.report.verdicts import Cell

Row = Sequence[Entry]
T = TypeVar("T")


def print_verdicts(cells: "Sequence[Cell]", spread: "Spread" = "interval", form: Format = "text") -> None:
    """The cells of each table and stream; columns in which no cell has anything are left out."""
    from strongreplay.report.reproduction import COLUMNS, table_title, texts

    def row(cell: "Cell") -> Row:
        summaries = {"published": cell.published, "ours": cell.ours, "cpu": cell.cpu}
        values: dict[str, Any] = {name: numbers_of(score) for name, score in summaries.items()}
        values["difference"] = cell.difference
        return cells_of(COLUMNS, texts(cell), values)

    title = table_title(cells[0].margin if cells else None)
    table = add_deviations(Table(COLUMNS, [row(cell) for cell in cells], title), spread, form)
    if form != "text":
        print_table(table, form)
        return
    print_text(table.title)
    both = zip(cells, table.rows, strict=True)
    for (target, stream), own in parts(both, lambda one: (one[0].item.target, one[0].item.stream)):
        rows = [line for _, line in own]
        only_cpu = any(cell.cpu for cell, _ in own) and not any(cell.ours for cell, _ in own)
        shown = [
            place
            for place, name in enumerate(table.columns)
            if any(text_of(line[place]) not in ("", "-") for line in rows)
            and not (only_cpu and name == "verdict")
        ]
        if is_terminal():
            rows = [[text_of(line[0]).removeprefix(f"{target}/{stream}/"), *line[1:]] for line in rows]
        names = [table.columns[place] for place in shown]
        optional = [name for name in names if name == "note"]
        rows = [[line[place] for place in shown] for line in rows]
        print_table(Table(names, rows, f"{target}/{stream}/", ["cell", "verdict", "note"], optional))


def print_leads(leads: "Sequence[Lead]") -> None:
    """Whether SER leads as in the paper under the cpu protocol: a table for each column of the paper."""
    from strongreplay.report.protocols import LEADS_TITLE, MARGIN_COLUMNS, lead_texts

    if leads:
        print_text(LEADS_TITLE)
    print_parts(MARGIN_COLUMNS, [lead_texts(lead) for lead in leads], 3)


def print_paired(tests: "Sequence[PairedTest]", method: str, form: Format, spread: "Spread") -> None:
    """One method against the others: a table for each configuration of it, memory size and scenario."""
    from strongreplay.methods.table import method_label
    from strongreplay.report.reproduction import PAIRED_COLUMNS, PAIRED_TITLE, paired_texts

    rows = [
        cells_of(
            PAIRED_COLUMNS,
            paired_texts(test),
            {
                "memory": test.place.memory_size,
                "ahead by": numbers_of(test.gap),
                "seeds": test.count,
                "p": test.p,
            },
        )
        for test in tests
    ]
    title = f"{method_label(method)} against the others over common seeds; {PAIRED_TITLE}"
    table = add_deviations(Table(PAIRED_COLUMNS, rows, title), spread, form)
    if form != "text":
        print_table(table, form)
        return
    print_text(table.title)
    print_parts(table.columns, table.rows, 4)


def print_parts(columns: Sequence[str], rows: Sequence[Row], num_common: int) -> None:
    """A table for each combination of the first columns, which its title has instead."""
    for common, own in parts(rows, lambda row: tuple(map(text_of, row[:num_common]))):
        title = ", ".join(
            f"{name} {text}" if name == "memory" else text
            for name, text in zip(columns, common, strict=False)
            if text != "-"
        )
        print_table(
            Table(columns[num_common:], [row[num_common:] for row in own], title, columns[num_common:][:1])
        )


def parts(entries: Iterable[T], key: Callable[[T], Hashable]) -> Iterable[tuple[Any, list[T]]]:
    """The entries of each key, in the order of their first ones."""
    found: dict[Hashable, list[T]] = {}
    for entry in entries:
        found.setdefault(key(entry), []).append(entry)
    return found.items()


def cells_of(columns: Sequence[str], texts: Sequence[str], values: dict[str, Any]) -> Row:
    return [TableCell(text, values.get(name)) for name, text in zip(columns, texts, strict=True)]


def text_of(entry: Entry) -> str:
    return as_cell(entry).text


def numbers_of(score: "Summary | None") -> dict[str, float | None]:
    """A summary for programs."""
    return {
        "mean": score.mean if score else None,
        "interval": score.half_width if score else None,
        "sd": score.deviation if score else None,
        "n": score.count if score else None,
    }


def add_deviations(table: Table, spread: "Spread", form: Format = "text") -> Table:
    """If asked for, a column sd after each column of means; programs have the deviations anyway."""
    if spread != "sd" or form in ("csv", "json"):
        return table
    columns: list[str] = []
    rows: list[list[Entry]] = [[] for _ in table.rows]
    for place, name in enumerate(table.columns):
        values = [as_cell(row[place]).value for row in table.rows]
        columns.append(name)
        for row, old in zip(rows, table.rows, strict=True):
            row.append(old[place])
        if any(isinstance(value, Mapping) for value in values):
            columns.append(f"{name} sd")
            for row, value in zip(rows, values, strict=True):
                sd = value.get("sd") if isinstance(value, Mapping) else None
                row.append(TableCell("-" if sd is None else f"{sd:.2f}", sd))
    return replace(table, columns=columns, rows=rows, title=f"{table.title}; sd: sample deviation")
