"""Command: the name, function and place in the help of a command; each command file defines one."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import typer

KEEP, STUDY, DATA = "Keep a classifier up to date", "Compare methods", "Data and lists"


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    run: Callable[..., None] | typer.Typer  # a Typer has subcommands
    panel: str  # KEEP, STUDY or DATA: the heading in the help
    place: int  # the order under the heading

    def add_to(self, app: typer.Typer) -> None:
        if isinstance(self.run, typer.Typer):
            app.add_typer(self.run, name=self.name, rich_help_panel=self.panel)
        else:
            app.command(self.name, rich_help_panel=self.panel)(self.run)


def find_commands(package: str, folder: Path) -> list[Command]:
    """The COMMAND of every file that defines one, in the order of the help.

    Other files are not imported: they may need torch, which takes seconds.
    """
    names = [path.stem for path in folder.glob("*.py") if "\nCOMMAND = " in path.read_text(encoding="utf-8")]
    commands: list[Command] = [import_module(f"{package}.{name}").COMMAND for name in names]
    panels = [KEEP, STUDY, DATA]
    return sorted(commands, key=lambda one: (panels.index(one.panel), one.place))
