"""ser: the only place that parses arguments, prints or exits. Only commands that need torch import it."""

import sys
from typing import Annotated

import typer

from strongreplay import __version__
from strongreplay.cli import (
    answer,
    data,
    diff,
    evaluate,
    export,
    learn,
    listing,
    memory,
    report,
    reproduce,
    show,
    state,
    status,
    told,
    train,
    versions,
)
from strongreplay.errors import ConfigError, SerError

app = typer.Typer(
    help="Continual learning with Strong Experience Replay.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("learn")(learn.learn_command)
app.command("predict")(answer.predict_command)
app.command("evaluate")(evaluate.evaluate_command)
app.command("status")(status.status_command)
app.command("history")(versions.history_command)
app.command("diff")(diff.diff_command)
app.command("rollback")(versions.rollback_command)
app.add_typer(memory.app, name="memory")
app.command("export")(export.export_command)
app.command("run")(train.run_command)
app.command("resume")(train.resume_command)
app.command("compare")(show.compare_command)
app.command("show")(show.show_command)
app.command("report")(report.report_command)
app.add_typer(reproduce.app, name="reproduce")
app.add_typer(listing.app, name="list")
app.add_typer(data.app, name="data")
app.add_typer(state.app, name="state")


def show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ser {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and leave."),
    ] = False,
) -> None:
    """Continual learning with Strong Experience Replay."""


def main() -> None:
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except SerError as error:
        # One line a fault: a ConfigError may carry several.
        for line in str(error).splitlines():
            typer.secho(f"error: {told.printable(line)}", fg="red", err=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
