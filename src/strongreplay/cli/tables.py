"""Tables that commands print: as text that fits the terminal, or as CSV, JSON, LaTeX or Markdown.

If a terminal is too narrow, columns in `wraps` take several lines, then optional columns are left out, then
the table is split into blocks of columns, or each row into lines. No cell is ever cut off.
In a pipe or a file, a row is always one line.
"""

import csv
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import typer

from strongreplay.cli.text import print_json, print_line, print_text, printable

Format = Literal["text", "csv", "json", "latex", "markdown"]
NUM_ROWS = 20  # shown without --all
WRAPPED, WIDEST = 14, 26  # a column that wraps gets no narrower than its longest word, between these
GAP = "  "
NUMBER = re.compile(
    r"(-|new|[<+-]?[0-9][0-9,.e+-]*( [±→] [0-9][0-9.]*)?( (%|bytes?|[kMG]B|\*|\(v?[0-9]+\)))*)?"
)
WORD = re.compile(r"[^\s/,=]*[/,=]|[^\s/,=]+|\s+")  # names and settings are broken after these signs too
LATEX = {"%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "$": r"\$", "±": r"$\pm$", "→": r"$\to$"}


@dataclass(frozen=True, slots=True)
class TableCell:
    """The text for people, and the value for programs: a number, or several by name."""

    text: str
    value: Any = None  # None: use the text
    is_best: bool = False
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    columns: Sequence[str]  # headings, which may contain line breaks
    rows: Sequence[Sequence[str | TableCell]]
    title: str = ""
    wraps: Sequence[str] = ()  # columns whose cells may take several lines
    optional: Sequence[str] = ()  # columns that may be left out, the last first
    num_keys: int = 1  # the first columns, which name a row: every block of a split table repeats them

    def layout(self, width: int | None = None, styled: bool = False) -> list[str]:
        """The lines of the text; a line is wider than `width` only if a cell that must not wrap is."""
        return Layout(self, width, styled).lines()

    def records(self) -> list[dict[str, Any]]:
        """The rows for programs."""
        names = [column.replace("\n", " ") for column in self.columns]
        return [dict(zip(names, map(value_of, row), strict=True)) for row in self.rows]


class Layout:
    """A table of texts within a width."""

    def __init__(self, table: Table, width: int | None, styled: bool) -> None:
        from rich.cells import cell_len

        self.table, self.width, self.styled, self.length = table, width, styled, cell_len
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
                name.replace("\n", " ")
                for place, name in enumerate(names)
                if place not in shown and name not in empty
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
        words = WORD.findall(" ".join(row[place] for row in self.texts))
        longest = max((self.length(word.strip()) for word in words), default=0)
        least = max(WRAPPED, min(WIDEST, longest), *map(self.length, self.heads[place]))
        return min(self.natural[place], least)

    def widths(self, places: Sequence[int]) -> dict[int, int]:
        """The widths of the texts; if they are too wide together, the widest wrapping columns shrink."""
        found = {place: self.natural[place] for place in places}
        while sum(found.values()) + len(GAP) * (len(found) - 1) > self.limit:
            place = max(
                (place for place in found if found[place] > self.smallest[place]),
                key=lambda place: found[place],
            )
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
            wrapped = {
                place: [part for line in row[place].split("\n") for part in self.wrap(line, width)]
                for place, width in widths.items()
            }
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
                line.append(self.styled_cell(text, cells[place]) if cells and self.styled else text)
            yield GAP.join(line).rstrip()

    def styled_cell(self, text: str, cell: TableCell) -> str:
        return style(text, bold=cell.is_best or cell.is_bad, fg="red" if cell.is_bad else None)

    def wrap(self, text: str, width: int) -> list[str]:
        """Break text into lines at words; a word that is wider than the column is split."""
        if self.length(text) <= width:
            return [text]
        lines = [""]
        for word in WORD.findall(text):
            if self.length(lines[-1] + word.rstrip()) > width and lines[-1].strip():
                lines[-1:] = [lines[-1].rstrip(), ""]
            lines[-1] += word if lines[-1] else word.lstrip()
            while self.length(lines[-1].rstrip()) > width:
                lines[-1:] = [lines[-1][:width], lines[-1][width:]]
        return [line.rstrip() for line in lines if line.strip()]

    def split(self, keys: list[int], others: list[int]) -> list[str]:
        """Blocks of columns below each other, of about the same number of columns."""
        num_blocks = 1
        while any(self.least([*keys, *part]) > self.limit for part in divide(others, num_blocks)):
            num_blocks += 1
        blocks = [self.block([*keys, *part]) for part in divide(others, num_blocks)]
        return [line for block in blocks for line in ["", *block]][1:]

    def stack(self) -> list[str]:
        """Each row as its name, followed by a line for each further column that is not empty."""
        heads = [" ".join(head) for head in self.heads]
        indent = max(map(self.length, heads)) + 4
        lines = []
        for row in self.texts:
            lines += [style(part, bold=self.styled) for part in self.wrap(row[0], self.limit)]
            for head, text in zip(heads[1:], row[1:], strict=True):
                parts = [
                    part
                    for line in text.split("\n")
                    for part in self.wrap(line, max(20, self.limit - indent))
                ]
                lines += [
                    f"  {'' if number else head}".ljust(indent) + part
                    for number, part in enumerate(parts)
                    if part
                ]
        return lines


def divide(places: list[int], count: int) -> list[list[int]]:
    size = -(-len(places) // count)
    return [places[start : start + size] for start in range(0, len(places), size)]


def style(text: str, **how: Any) -> str:
    return typer.style(text, **how) if any(how.values()) else text


def as_cell(cell: str | TableCell) -> TableCell:
    return cell if isinstance(cell, TableCell) else TableCell(cell)


def value_of(cell: str | TableCell) -> Any:
    """The value for programs; a dash stands for none."""
    cell = as_cell(cell)
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
    head = [column.replace("\n", " ") for column in table.columns]
    if table.title:
        typer.echo(f"{table.title}\n")
    rows = [[mark(as_cell(cell), "**", "**").replace("|", "\\|") for cell in row] for row in table.rows]
    for line in (head, ["---"] * len(head), *rows):
        typer.echo(f"| {' | '.join(line)} |")


def print_latex(table: Table) -> None:
    head = [escape_latex(column) for column in table.columns]
    rows = [[mark(as_cell(cell), r"\textbf{", "}", escape_latex) for cell in row] for row in table.rows]
    if table.title:
        typer.echo(f"% {table.title}")
    typer.echo(rf"\begin{{tabular}}{{{'l' * table.num_keys}{'r' * (len(head) - table.num_keys)}}}")
    for line in (r"\hline", head, r"\hline", *rows, r"\hline"):
        typer.echo(line if isinstance(line, str) else " & ".join(line) + r" \\")
    typer.echo(r"\end{tabular}")


def escape_latex(text: str) -> str:
    return "".join(LATEX.get(sign, sign) for sign in text.replace("\n", " "))


def mark(cell: TableCell, before: str, after: str, escape: Callable[[str], str] = str) -> str:
    text = escape(printable(cell.text.replace("\n", " ")))
    return f"{before}{text}{after}" if cell.is_best else text


WRITERS: dict[str, Callable[[Table], None]] = {
    "csv": print_csv,
    "json": lambda table: print_json(table.records()),
    "latex": print_latex,
    "markdown": print_markdown,
}
