"""ser list: what there is, one line each."""

from collections.abc import Sequence

import typer

app = typer.Typer(help="List methods, streams, nets or recipes.", no_args_is_help=True)


def print_table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """One line a row, however wide: lists are read by programs too."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@app.command("methods")
def list_methods() -> None:
    """Every method: what it does, keeps and needs, where it applies."""
    from strongreplay.methods import METHODS

    rows = [(k, m.about, m.keeps, m.needs, " ".join(m.scenarios), m.paper) for k, m in METHODS.items()]
    print_table(("method", "idea", "keeps", "needs", "applies to", "paper"), rows)


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
