"""ser: the only place that parses arguments, prints or exits. Only commands that need torch import it."""

import sys
from typing import Annotated

import typer

from strongreplay import __version__
from strongreplay.cli import (
    data,
    diff,
    evaluate,
    export,
    history,
    learn,
    memory,
    predict,
    report,
    reproduce,
    run,
    show,
    state,
    status,
    update_output,
)
from strongreplay.cli import list as list_group
from strongreplay.errors import ConfigError, SerError

app = typer.Typer(
    help="Continual learning with Strong Experience Replay.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
KEEP, STUDY, DATA = "Keep a classifier up to date", "Compare methods", "Data and lists"
app.command("learn", rich_help_panel=KEEP)(learn.learn_command)
app.command("predict", rich_help_panel=KEEP)(predict.predict_command)
app.command("evaluate", rich_help_panel=KEEP)(evaluate.evaluate_command)
app.command("status", rich_help_panel=KEEP)(status.status_command)
app.command("history", rich_help_panel=KEEP)(history.history_command)
app.command("diff", rich_help_panel=KEEP)(diff.diff_command)
app.command("rollback", rich_help_panel=KEEP)(history.rollback_command)
app.add_typer(memory.app, name="memory", rich_help_panel=KEEP)
app.command("export", rich_help_panel=KEEP)(export.export_command)
app.command("run", rich_help_panel=STUDY)(run.run_command)
app.command("resume", rich_help_panel=STUDY)(run.resume_command)
app.command("compare", rich_help_panel=STUDY)(show.compare_command)
app.command("show", rich_help_panel=STUDY)(show.show_command)
app.command("report", rich_help_panel=STUDY)(report.report_command)
app.add_typer(reproduce.app, name="reproduce", rich_help_panel=STUDY)
app.add_typer(state.app, name="state", rich_help_panel=STUDY)
app.add_typer(list_group.app, name="list", rich_help_panel=DATA)
app.add_typer(data.app, name="data", rich_help_panel=DATA)


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
            typer.secho(f"error: {update_output.printable(line)}", fg="red", err=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except OSError as error:  # of a file or a device: its text names which, where it is known
        typer.secho(f"error: {update_output.printable(str(error))}", fg="red", err=True)
        sys.exit(1)
