"""ser list: methods, streams, nets and recipes, one line each."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import typer

from strongreplay.cli.commands import DATA, Command
from strongreplay.cli.options import takes_format
from strongreplay.cli.tables import Format, Table, print_table
from strongreplay.cli.text import print_line
from strongreplay.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Row = TypeVar("Row")

app = typer.Typer(help="List methods, streams, nets or recipes.", no_args_is_help=True)


@app.command("methods")
@takes_format
def list_methods(form: Format = "text") -> None:
    """List every method: what it does, what it stores, what it needs, and its scenarios.

    Example: ser list methods --markdown
    """
    from strongreplay.extensions import installed
    from strongreplay.methods import METHODS, method_row

    rows = [
        (m.name, m.label, m.about, m.family, m.keeps, ", ".join(m.needs) or "nothing", " ".join(m.scenarios),
         m.paper)
        for m in [*METHODS.values(), *load_installed(installed("method"), method_row)]
    ]  # fmt: skip
    columns = ("method", "printed as", "idea", "family", "keeps", "needs", "applies to", "paper")
    print_table(Table(columns, rows, wraps=columns[2:]), form)


def load_installed(points: Iterable[str], find: "Callable[[str], Row]") -> "list[Row]":
    """The rows of installed packages; one that cannot be loaded is reported and skipped."""
    rows = []
    for name in points:
        try:
            rows.append(find(name))
        except ConfigError as error:
            print_line(f"passed over: {error}", err=True)
    return rows


@app.command("streams")
@takes_format
def list_streams(form: Format = "text") -> None:
    """List every stream: dataset, tasks, scenario and net.

    Example: ser list streams
    """
    from strongreplay.data.streams import STREAMS
    from strongreplay.extensions import installed

    rows = [(name, row.about) for name, row in STREAMS.items()]
    rows += [(name, f"of {package_of(point)}") for name, point in installed("stream").items()]
    print_table(Table(("stream", "what it is"), rows, wraps=["what it is"]), form)


def package_of(point: "EntryPoint") -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


@app.command("nets")
@takes_format
def list_nets(form: Format = "text") -> None:
    """List every net.

    Example: ser list nets
    """
    from strongreplay.extensions import installed
    from strongreplay.nets import NETS, net_row

    rows = [(name, row.width, row.about) for name, row in NETS.items()]
    rows += [
        (name, None, row.about)
        for name in installed("net")
        for row in load_installed([name], net_row)  # empty if it cannot be loaded
    ]
    print_table(Table(("net", "width", "what it is"), rows, wraps=["what it is"]), form)


@app.command("recipes")
@takes_format
def list_recipes(form: Format = "text") -> None:
    """List published settings by stream, method and memory size.

    Example: ser list recipes --csv
    """
    from strongreplay.runs.recipes import all_recipes
    from strongreplay.storage.records import format_settings

    rows = [
        (r.stream, r.method, r.memory_size or "any", r.name, format_settings(r.settings), r.source)
        for r in all_recipes()
    ]
    columns = ("stream", "method", "memory", "recipe", "settings", "source")
    print_table(Table(columns, rows, wraps=["settings", "source"], num_keys=2), form)


COMMAND = Command("list", app, DATA, 10)
