"""ser data: get, list and check the published datasets. Torch is imported only once a command runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.cli.commands import DATA, Command
from strongreplay.cli.options import DataFolder, choose_data_folder, takes_format
from strongreplay.cli.tables import Format, Table, TableCell, print_table
from strongreplay.cli.text import format_bytes, print_line
from strongreplay.progress import Bar

if TYPE_CHECKING:
    from strongreplay.data.datasets import Location

app = typer.Typer(help="Get, list and check the published datasets.", no_args_is_help=True)


@app.command("get")
def get_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Datasets; see: ser data list")],
    data: DataFolder = None,
) -> None:
    """Download datasets; files that exist and are valid are not downloaded again.

    Example: ser data get mnist
    """
    from strongreplay.data import datasets

    folder = choose_data_folder(data)
    for name in check_names(names):
        if not datasets.DATASETS[name].archives:
            print_line(f"{name} is embedded in scikit-learn; nothing to download")
            continue
        with Bar() as bar:
            paths = datasets.fetch(name, folder, bar)
        for path in paths:
            print_line(f"{name}: downloaded {path}")
        if not paths:
            print_line(f"{name} is already in {folder}")


@app.command("list")
@takes_format
def list_command(data: DataFolder = None, form: Format = "text") -> None:
    """List every dataset: description, state, files and size on disk.

    Example: ser data list
    """
    from strongreplay.data import datasets

    folder = choose_data_folder(data)
    rows = []
    for name, dataset in datasets.DATASETS.items():
        location = datasets.locate(name, folder)
        size = TableCell(format_bytes(location.size), location.size) if location.paths else ""
        rows.append((name, dataset.description, *describe_location(location, folder), size))
    columns = ("dataset", "what it is", "state", "where", "size")
    print_table(Table(columns, rows, wraps=["what it is", "where"]), form)
    print_line(f"data folder: {folder}", err=form != "text")


@app.command("check")
@takes_format
def check_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME...]", help="Datasets.", show_default="all that are there"),
    ] = None,
    data: DataFolder = None,
    form: Format = "text",
) -> None:
    """Verify checksums and structure of every file found.

    Example: ser data check mnist
    """
    from strongreplay.data import datasets

    folder = choose_data_folder(data)
    rows = []
    for name in check_names(names or list(datasets.DATASETS)):
        if not names and not is_found(datasets.locate(name, folder)):
            continue
        with Bar() as bar:
            findings = datasets.check(name, folder, bar)
        for finding in findings:
            where = "all files" if finding.path == folder else str(finding.path.relative_to(folder))
            rows.append((name, "right" if finding.is_right else "WRONG", where, finding.note))
    columns = ("dataset", "state", "where", "what was found")
    print_table(Table(columns, rows, wraps=["where", "what was found"]), form)
    print_line(f"data folder: {folder}", err=form != "text")
    if any(state == "WRONG" for _, state, _, _ in rows):
        raise typer.Exit(1)


def check_names(names: list[str]) -> list[str]:
    """The names without duplicates; an unknown dataset is an error."""
    from strongreplay.data.datasets import DATASETS
    from strongreplay.errors import unknown

    for name in names:
        if name not in DATASETS:
            raise unknown("dataset", name, DATASETS, "See: ser data list")
    return list(dict.fromkeys(names))


def is_found(location: "Location") -> bool:
    return location.is_present or bool(location.paths)


def describe_location(location: "Location", folder: Path) -> tuple[str, str]:
    """The state of a dataset, and its files and folders in the data folder."""
    if not is_found(location):
        return "absent", ""
    tops = dict.fromkeys(path.relative_to(folder).parts[0] for path in location.paths)
    return "present" if location.is_present else "incomplete", "\n".join(tops) or "embedded in scikit-learn"


COMMAND = Command("data", app, DATA, 20)
