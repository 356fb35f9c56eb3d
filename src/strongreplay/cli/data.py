"""ser data: get, list and check the published datasets. Torch is imported only once a command runs."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from strongreplay.data.datasets import Location, OnProgress

app = typer.Typer(help="Get, list and check the published datasets.", no_args_is_help=True)

DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="Data folder.", show_default="$STRONGREPLAY_DATA, else the cache folder"),
]


def data_folder(option: Path | None) -> Path:
    """Where data lies: the option, else STRONGREPLAY_DATA, else the user's cache folder."""
    if option is not None:
        return option.expanduser()
    if named := os.environ.get("STRONGREPLAY_DATA"):
        return Path(named).expanduser()
    from strongreplay.data.datasets import default_folder

    return default_folder()


@app.command("get")
def get_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Datasets; see: ser data list")],
    data: DataOption = None,
) -> None:
    """Download datasets; what is already there and right is left alone."""
    from strongreplay.data import datasets

    folder = data_folder(data)
    for name in known(names):
        if not datasets.DATASETS[name].archives:
            typer.echo(f"{name} is embedded in scikit-learn; nothing to download")
            continue
        with bars() as progress:
            paths = datasets.fetch(name, folder, progress)
        for path in paths:
            typer.echo(f"{name}: downloaded {path}")
        if not paths:
            typer.echo(f"{name} is already in {folder}")


@app.command("list")
def list_command(data: DataOption = None) -> None:
    """Every dataset: what it is, whether it is there, where, and its size on disk."""
    from rich.filesize import decimal

    from strongreplay.data import datasets

    folder = data_folder(data)
    rows = []
    for name, dataset in datasets.DATASETS.items():
        location = datasets.locate(name, folder)
        size = decimal(location.size) if location.paths else ""
        rows.append((name, dataset.description, *describe(location, folder), size))
    print_table(("dataset", "what it is", "state", "where", "size"), rows)
    typer.echo(f"data folder: {folder}")


@app.command("check")
def check_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME...]", help="Datasets.", show_default="all that are there"),
    ] = None,
    data: DataOption = None,
) -> None:
    """Verify checksums and structure of every file that is there."""
    from strongreplay.data import datasets

    folder = data_folder(data)
    rows = []
    for name in known(names or list(datasets.DATASETS)):
        if not names and not is_found(datasets.locate(name, folder)):
            continue
        with bars() as progress:
            findings = datasets.check(name, folder, progress)
        for finding in findings:
            where = "all files" if finding.path == folder else str(finding.path.relative_to(folder))
            rows.append((name, "right" if finding.is_right else "WRONG", where, finding.note))
    print_table(("dataset", "state", "where", "what was found"), rows)
    typer.echo(f"data folder: {folder}")
    if any(state == "WRONG" for _, state, _, _ in rows):
        raise typer.Exit(1)


def known(names: list[str]) -> list[str]:
    """The names once each, all of them in the table."""
    from strongreplay.data.datasets import DATASETS
    from strongreplay.errors import unknown

    for name in names:
        if name not in DATASETS:
            raise unknown("dataset", name, DATASETS, "See: ser data list")
    return list(dict.fromkeys(names))


def is_found(location: "Location") -> bool:
    return location.is_present or bool(location.paths)


def describe(location: "Location", folder: Path) -> tuple[str, str]:
    """The state of a dataset and, within the data folder, the top of every place where it lies."""
    if not is_found(location):
        return "absent", ""
    tops = dict.fromkeys(path.relative_to(folder).parts[0] for path in location.paths)
    return "present" if location.is_present else "incomplete", "\n".join(tops) or "embedded in scikit-learn"


def print_table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == "where")  # so that paths can be copied
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # not markup: a path may hold brackets
    Console().print(table)


@contextmanager
def bars() -> "Iterator[OnProgress]":
    """A callback that draws one bar for each thing it hears of, on a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as drawn:

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = drawn.add_task(what)
            drawn.update(tasks[what], completed=done, total=total or None)

        yield progress
