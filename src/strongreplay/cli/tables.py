"""Tables that commands print: as text that fits the terminal, or as CSV, JSON, LaTeX or Markdown.

If a terminal is too narrow, columns in `wraps` take several lines, then optional columns are left out, then
the table is split into blocks of columns, or each row into lines. No cell is ever cut off.
In a pipe or a file, a row is always one line, and a long cell shifts what follows it in that line alone.
"""

import csv
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import typer

from strongreplay.cli.text import print_json, print_line, print_text, printable
from strongreplay.report.text_tables import escape_latex, latex_table, markdown_table

Format = Literal["text", "csv", "json", "latex", "markdown"]
NUM_ROWS = 20  # shown without --all
WRAPPED, WIDEST = 14, 26  # a column that wraps gets no narrower than its longest part, between these
PADDED = 60  # a column that wraps is filled up to this in a pipe
GAP = "  "
NUMBER = re.compile(
    r"(-|new|[<+-]?[0-9][0-9,.e+-]*%?( [±→] [0-9][0-9.]*)?( (%|bytes?|[kMG]B|\*|\(v?[0-9]+\)))*)?"
)
WORD = re.compile(r"\S+\s*")
PART = re.compile(
    r"[^/,=]*[/,=]|[^/,=]+"
)  # names and settings that are too long are broken after these signs


@dataclass(frozen=True, slots=True)
class TableCell:
    """The text for people, and the value for programs: a number, or several by name.

    In rows of a table, a text or a whole number may stand for a cell; None is a dash.
    """

    text: str
    value: Any = None  # None: use the text
    is_best: bool = False
    is_bad: bool = False


Entry = str | int | None | TableCell


@dataclass(frozen=True, slots=True)
class Table:
    columns: Sequence[str]  # headings, which may contain line breaks
    rows: Sequence[Sequence[Entry]]
    title: str = ""
    wraps: Sequence[str] = ()  # columns whose cells may take several lines
    optional: Sequence[str] = ()  # columns that may be left out, the last first
    num_keys: int = 1  # the first columns, which name a row: each block of a split table, each stacked row

    def layout(self, width: int | None = None, styled: bool = False) -> list[str]:
        """The lines of the text; a line is wider than `width` only if a cell that must not wrap is."""
        return Layout(self, width, styled).lines()

    @property
    def names(self) -> list[str]:
        """The headings in one line each."""
        return [column.replace("\n", " ") for column in self.columns]

    def records(self) -> list[dict[str, Any]]:
        """The rows for programs."""
        return [dict(zip(self.names, map(value_of, row), strict=True)) for row in self.rows]


class Layout:
    """A table of texts within a width."""

    def __init__(self, table: Table, width: int | None, styled: bool) -> None:
        from rich.cells import cell_len, chop_cells

        self.table, self.width, self.styled = table, width, styled
        self.length, self.chop = cell_len, chop_cells
        self.cells = [[as_cell(cell) for cell in row] for row in table.rows]
        self.texts = [[self.text_of(cell, place) for place, cell in enumerate(row)] for row in self.cells]
        self.heads = [column.split("\n") for column in table.columns]
        self.is_number = [
            all(NUMBER.fullmatch(row[place].strip()) for row in self.texts)
            for place in range(len(table.columns))
        ]
        self.natural = [
            max(map(cell_len, [*head, *(line for row in self.texts for line in row[place].split("\n"))]))
            for place, head in enumerate(self.heads)
        ]
        self.smallest = [self.narrowest(place) for place in range(len(table.columns))]

    def text_of(self, cell: TableCell, place: int) -> str:
        """The text of a cell; without bold style, the best of a column gets a mark and the others a space."""
        text = "\n".join(map(printable, cell.text.split("\n")))
        if self.styled or not any(as_cell(row[place]).is_best for row in self.table.rows):
            return text
        return text + (" *" if cell.is_best else "  ")

    def lines(self) -> list[str]:
        names = self.table.columns
        empty = {name for place, name in enumerate(names) if not any(row[place] for row in self.texts)}
        left_out = [name for name in self.table.optional if name not in empty]
        shown = [p for p, name in enumerate(names) if name in left_out or name not in self.table.optional]
        while self.least(shown) > self.limit and left_out:
            shown.remove(names.index(left_out.pop()))
        if self.least(shown) <= self.limit:
            gone = [
                name for p, name in enumerate(self.table.names) if p not in shown and names[p] not in empty
            ]
            note = [f"not shown at this width: {', '.join(gone)}"] if gone else []
            return [*self.block(shown), *note]
        keys, others = shown[: self.table.num_keys], shown[self.table.num_keys :]
        if any(names[place] in self.table.wraps for place in others):
            return self.stack()
        if any(self.least([*keys, place]) > self.limit for place in others):
            return self.stack()
        return self.split(keys, others)

    @property
    def limit(self) -> int:
        return sys.maxsize if self.width is None else self.width

    def least(self, places: Sequence[int]) -> int:
        """The smallest total width of these columns."""
        widths = [self.smallest[place] for place in places]
        return sum(widths) + len(GAP) * (len(widths) - 1)

    def narrowest(self, place: int) -> int:
        """The smallest width of a column; one that wraps keeps its words whole up to a limit."""
        if self.table.columns[place] not in self.table.wraps:
            return self.natural[place]
        parts = PART.findall(" ".join(row[place] for row in self.texts))
        longest = max((self.length(word) for part in parts for word in part.split()), default=0)
        least = max(WRAPPED, min(WIDEST, longest), *map(self.length, self.heads[place]))
        return min(self.natural[place], least)

    def widths(self, places: Sequence[int]) -> dict[int, int]:
        """The widths of the texts; if they are too wide together, the widest wrapping columns shrink."""
        found = {place: self.natural[place] for place in places}
        if self.width is None:
            wraps = self.table.wraps
            return {p: min(PADDED, w) if self.table.columns[p] in wraps else w for p, w in found.items()}
        while sum(found.values()) + len(GAP) * (len(found) - 1) > self.limit:
            place = max((p for p in found if found[p] > self.smallest[p]), key=found.__getitem__)
            found[place] -= 1
        return found

    def block(self, places: Sequence[int]) -> list[str]:
        widths = self.widths(places)
        height = max(len(self.heads[place]) for place in places)
        heads = {place: [""] * (height - len(self.heads[place])) + self.heads[place] for place in places}
        lines = [style(line, bold=self.styled) for line in self.join(heads, widths)]
        if self.styled:
            lines.append("─" * (sum(widths.values()) + len(GAP) * (len(widths) - 1)))
        for row, cells in zip(self.texts, self.cells, strict=True):
            wrapped = {place: self.wrap_lines(row[place], width) for place, width in widths.items()}
            lines += self.join(wrapped, widths, cells)
        return lines

    def join(
        self, parts: Mapping[int, Sequence[str]], widths: Mapping[int, int], cells: Sequence[TableCell] = ()
    ) -> Iterator[str]:
        for number in range(max(map(len, parts.values()))):
            line = []
            for place, width in widths.items():
                text = parts[place][number] if number < len(parts[place]) else ""
                space = " " * (width - self.length(text))
                text = space + text if self.is_number[place] else text + space
                cell = cells[place] if cells and self.styled else TableCell("")
                line.append(style(text, bold=cell.is_best or cell.is_bad, fg="red" if cell.is_bad else None))
            yield GAP.join(line).rstrip()

    def wrap_lines(self, text: str, width: int) -> list[str]:
        return [part for line in text.split("\n") for part in self.wrap(line, width)]

    def wrap(self, text: str, width: int) -> list[str]:
        """Break text into lines between words; a word that is wider than the column, between its parts."""
        if self.width is None or self.length(text) <= width:
            return [text]
        lines = [""]
        for word in WORD.findall(text):
            for part in [word] if self.length(word.rstrip()) <= width else PART.findall(word):
                if self.length(lines[-1] + part.rstrip()) > width and lines[-1]:
                    lines.append("")
                lines[-1] += part
                if self.length(lines[-1].rstrip()) > width:
                    lines[-1:] = self.chop(lines[-1], width)
        return [line.rstrip() for line in lines if line.strip()]

    def split(self, keys: list[int], others: list[int]) -> list[str]:
        """Blocks of columns below each other, of about the same number of columns."""
        num_blocks = 1
        while any(self.least([*keys, *part]) > self.limit for part in divide(others, num_blocks)):
            num_blocks += 1
        blocks = [self.block([*keys, *part]) for part in divide(others, num_blocks)]
        return [line for block in blocks for line in ["", *block]][1:]

    def stack(self) -> list[str]:
        """Each row as its keys, followed by a line for each further column that is not empty."""
        heads, keys = self.table.names, self.table.num_keys
        indent = max(map(self.length, heads[keys:])) + 4
        lines = []
        for row in self.texts:
            lines += [style(part, bold=self.styled) for part in self.wrap(GAP.join(row[:keys]), self.limit)]
            for head, text in zip(heads[keys:], row[keys:], strict=True):
                parts = self.wrap_lines(text, max(20, self.limit - indent))
                lines += [
                    f"  {'' if n else head}".ljust(indent) + part for n, part in enumerate(parts) if part
                ]
        return lines


def divide(places: list[int], count: int) -> list[list[int]]:
    ends = [len(places) * number // count for number in range(count + 1)]
    return [places[start:end] for start, end in pairwise(ends)]


def style(text: str, **how: Any) -> str:
    return typer.style(text, **how) if any(how.values()) else text


def as_cell(entry: Entry) -> TableCell:
    if isinstance(entry, TableCell):
        return entry
    return TableCell("-" if entry is None else str(entry), None if isinstance(entry, str) else entry)


def value_of(entry: Entry) -> Any:
    """The value for programs; a dash stands for none."""
    cell = as_cell(entry)
    return (None if cell.text == "-" else cell.text) if cell.value is None else cell.value


def is_terminal() -> bool:
    return sys.stdout.isatty()


def print_table(table: Table, form: Format = "text", *, everything: bool = True) -> None:
    """Without `everything`, print only the first rows and the number of further ones."""
    if form != "text":
        WRITERS[form](table)
        return
    shown = table if everything else replace(table, rows=table.rows[:NUM_ROWS])
    width = shutil.get_terminal_size().columns if is_terminal() else None
    if table.title:
        print_text(table.title)
    space = "\n" if is_terminal() else ""
    typer.echo(space + "\n".join(shown.layout(width, is_terminal())) + space)
    if more := len(table.rows) - len(shown.rows):
        print_line(f"{more:,} more; --all shows them all")


def print_csv(table: Table) -> None:
    """Several numbers by name get a column each; texts are escaped so that none is read as a formula."""
    from strongreplay.storage.files import csv_cell

    rows = [
        {
            f"{name} {key}".strip(): csv_cell(each)
            for name, value in record.items()
            for key, each in (value.items() if isinstance(value, Mapping) else [("", value)])
        }
        for record in table.records()
    ]
    names = dict.fromkeys(name for row in rows for name in row) or dict.fromkeys(table.columns)
    writer = csv.DictWriter(sys.stdout, list(names), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def print_markdown(table: Table) -> None:
    if table.title:
        typer.echo(f"{table.title}\n")
    rows = [[mark(entry, "**", "**") for entry in row] for row in table.rows]
    typer.echo("\n".join(markdown_table(table.names, rows)))


def print_latex(table: Table) -> None:
    """Columns of numbers are aligned to the right."""
    rows = [[mark(entry, r"\textbf{", "}", escape_latex) for entry in row] for row in table.rows]
    align = "".join("r" if is_number else "l" for is_number in Layout(table, None, True).is_number)
    typer.echo("\n".join(latex_table(table.names, rows, align, table.title)))


def mark(entry: Entry, before: str, after: str, escape: Callable[[str], str] = str) -> str:
    cell = as_cell(entry)
    text = escape(printable(cell.text.replace("\n", " ")))
    return f"{before}{text}{after}" if cell.is_best else text


WRITERS: dict[str, Callable[[Table], None]] = {
    "csv": print_csv,
    "json": lambda table: print_json(table.records()),
    "latex": print_latex,
    "markdown": print_markdown,
}
