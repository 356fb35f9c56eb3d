"""ser: the only package that parses arguments, prints or exits.

Every file in here that defines COMMAND is a command. Torch is imported only by the commands that need it.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from strongreplay import __version__
from strongreplay.cli.commands import find_commands
from strongreplay.cli.text import print_error
from strongreplay.errors import ConfigError, SerError

app = typer.Typer(
    help="Continual learning with Strong Experience Replay.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in find_commands(__name__, Path(__file__).parent):
    command.add_to(app)


def show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ser {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Continual learning with Strong Experience Replay."""
    keep_compiled_code()


def keep_compiled_code() -> None:
    """Keep what PyTorch compiles in the user's cache folder: a grid of runs then compiles a net once."""
    from platformdirs import user_cache_path

    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(user_cache_path("strongreplay") / "compiled"))


def main() -> None:
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except SerError as error:
        print_error(str(error))
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except OSError as error:  # such as a full disk
        print_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        sys.exit(1)
