"""Tables of names that are the user's own: nothing in them is taken for markup, long ones are cut short."""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from strongreplay.cli.update_output import printable

if TYPE_CHECKING:
    from rich.console import Console

MOST = 20  # rows, unless all are asked for
NUMBER = re.compile(r"([+-]?[0-9][0-9,.]*( (%|[kMG]?B))?( → [0-9.]+| \(v[0-9]+\))?|-)?")


def print_table(
    console: "Console",
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    everything: bool = True,
    folded: Sequence[str] = (),
) -> None:
    """Numbers are to the right; only `folded` columns may take several lines; a cut is told."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    shown = rows if everything else rows[:MOST]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place, name in enumerate(columns):
        folds = name in folded
        to_right = not folds and all(NUMBER.fullmatch(row[place]) for row in shown)
        table.add_column(
            name,
            justify="right" if to_right else "left",
            no_wrap=not folds,
            overflow="fold" if folds else "ellipsis",
        )
    for row in shown:
        table.add_row(*(Text(printable(cell)) for cell in row))
    say(console, title)
    console.print(table)
    if len(shown) < len(rows):
        say(console, f"{len(rows) - len(shown):,} more; --all shows them all")


def say(console: "Console", text: str) -> None:
    """One line of plain text, however long."""
    console.print("\n".join(map(printable, text.split("\n"))), markup=False, highlight=False, soft_wrap=True)


def print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=1))


def size(count: int) -> str:
    """In the unit that leaves one to three digits before the point."""
    if count < 1000:
        return f"{count} B"
    for unit in ("kB", "MB"):
        count_in = count / 1000 if unit == "kB" else count / 1e6
        if count_in < 999.95:
            return f"{count_in:.1f} {unit}"
    return f"{count / 1e9:.1f} GB"


def per_cent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def moment(written: str) -> str:
    """2026-03-01 09:30, in UTC."""
    return written.replace("T", " ")[:16]


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
