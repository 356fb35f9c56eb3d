"""Tables of verdicts on the paper, of paired tests, and of SER's leads under the cpu protocol.

As text they are printed in parts that fit a terminal; in other formats each is one table.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
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
        values: dict[str, Any] = {name: numbers_of(score, spread) for name, score in summaries.items()}
        values["difference"] = cell.difference
        return cells_of(COLUMNS, texts(cell, spread), values)

    title = table_title(spread, cells[0].margin if cells else None)
    if form != "text":
        print_table(Table(COLUMNS, [row(cell) for cell in cells], title), form)
        return
    print_text(title)
    for (target, stream), own in parts(cells, lambda cell: (cell.item.target, cell.item.stream)):
        only_cpu = any(cell.cpu for cell in own) and not any(cell.ours for cell in own)
        rows = [row(cell) for cell in own]
        shown = [
            place
            for place, name in enumerate(COLUMNS)
            if any(text_of(line[place]) not in ("", "-") for line in rows)
            and not (only_cpu and name == "verdict")
        ]
        if is_terminal():
            rows = [[text_of(line[0]).removeprefix(f"{target}/{stream}/"), *line[1:]] for line in rows]
        names = [COLUMNS[place] for place in shown]
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
    from strongreplay.report.reproduction import PAIRED_COLUMNS, paired_texts, paired_title

    rows = [
        cells_of(
            PAIRED_COLUMNS,
            paired_texts(test, spread),
            {
                "memory": test.place.memory_size,
                "ahead by": numbers_of(test.gap, spread),
                "seeds": test.count,
                "p": test.p,
            },
        )
        for test in tests
    ]
    title = f"{method_label(method)} against the others over common seeds; {paired_title(spread)}"
    if form != "text":
        print_table(Table(PAIRED_COLUMNS, rows, title), form)
        return
    print_text(title)
    print_parts(PAIRED_COLUMNS, rows, 4)


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


def numbers_of(score: "Summary | None", spread: "Spread") -> dict[str, float | None]:
    """A summary for programs."""
    return {
        "mean": score.mean if score else None,
        spread: score.spread(spread) if score else None,
        "n": score.count if score else None,
    }
