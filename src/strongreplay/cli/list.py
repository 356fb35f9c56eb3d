"""ser list: what there is, one line each."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import typer

from strongreplay.errors import ConfigError

Row = TypeVar("Row")

app = typer.Typer(help="List methods, streams, nets or recipes.", no_args_is_help=True)


def print_table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """One line a row, however wide: lists are read by programs too."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@app.command("methods")
def list_methods() -> None:
    """Every method: what it does, keeps and needs, where it applies."""
    from strongreplay.extensions import installed
    from strongreplay.methods import METHODS, method_row

    found = [*METHODS.values(), *offered(installed("method"), method_row)]
    rows = [
        (m.name, m.label, m.about, m.family, m.keeps, ", ".join(m.needs) or "nothing", " ".join(m.scenarios),
         m.paper)
        for m in found
    ]  # fmt: skip
    print_table(("method", "printed as", "idea", "family", "keeps", "needs", "applies to", "paper"), rows)


def offered(points: Iterable[str], find: "Callable[[str], Row]") -> "list[Row]":
    """What installed packages bring; one that cannot be loaded is named and passed over."""
    rows = []
    for name in points:
        try:
            rows.append(find(name))
        except ConfigError as error:
            typer.echo(f"passed over: {error}", err=True)
    return rows


@app.command("streams")
def list_streams() -> None:
    """Every stream: dataset, tasks, scenario and net."""
    from strongreplay.data.streams import STREAMS

    print_table(("stream", "what it is"), [(name, row.about) for name, row in STREAMS.items()])


@app.command("nets")
def list_nets() -> None:
    """Every net."""
    from strongreplay.nets import NETS

    print_table(
        ("net", "width", "what it is"), [(name, str(row.width), row.about) for name, row in NETS.items()]
    )


@app.command("recipes")
def list_recipes() -> None:
    """Published settings by stream, method and memory size."""
    from strongreplay.runs.recipes import all_recipes

    rows = [
        (
            r.stream,
            r.method,
            str(r.memory_size or "any"),
            r.name,
            " ".join(f"{k}={v}" for k, v in r.settings.items()),
            r.source,
        )
        for r in all_recipes()
    ]
    print_table(("stream", "method", "memory", "recipe", "settings", "source"), rows)
