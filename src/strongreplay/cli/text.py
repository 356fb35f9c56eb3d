"""Text for people: names that are safe to print, counts, sizes and times, and lines to stdout and stderr."""

import json
import shutil
import sys
from collections.abc import Sequence
from textwrap import fill
from typing import Any

import typer

from strongreplay.errors import printable as printable

NAMED = 5  # names in a sentence


def print_line(text: str, *, err: bool = False, **style: Any) -> None:
    """Print plain text; characters that cannot be printed are replaced."""
    lines = "\n".join(map(printable, text.split("\n")))
    is_terminal = (sys.stderr if err else sys.stdout).isatty()
    styled = typer.style(lines, **style) if style else lines
    typer.echo(styled, err=err, color=None if is_terminal else False)  # no escape codes in a notebook


def print_text(text: str, **style: Any) -> None:
    """Print long lines; on a terminal they are broken between words, elsewhere they stay as they are."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        lines = text.split("\n")
        text = "\n".join(fill(line, width, break_long_words=False, break_on_hyphens=False) for line in lines)
    print_line(text, **style)


def print_note(text: str) -> None:
    print_line(f"note: {text}", err=True)


def print_problems(problems: Sequence[str]) -> None:
    """Print what was left out, and why."""
    for problem in problems:
        print_line(f"passed over {problem}", err=True)


def print_error(text: str) -> None:
    """Print one line for each fault in the text."""
    for line in text.splitlines():
        print_line(f"error: {line}", err=True, fg="red")


def print_json(content: Any, indent: int | None = 1) -> None:
    typer.echo(json.dumps(content, indent=indent))


def join_names(names: Sequence[object]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(printable(str(name)) for name in names[:NAMED]) + more


def count_of(count: int, one: str, several: str = "") -> str:
    """Such as 1 sample, 2 classes."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def format_bytes(count: int) -> str:
    from rich.filesize import decimal

    return decimal(count)


def format_per_cent(value: float | None, form: str = ".1f") -> str:
    return "-" if value is None else format(value, form)


def format_time(written: str) -> str:
    """Convert the stored ISO time to the form 2026-03-01 09:30, in UTC."""
    return written.replace("T", " ")[:16]
