"""Command: the name, function and place in the help of a command; each command file defines one."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from strongreplay.cli.text import print_note

KEEP, STUDY, DATA = "Keep a classifier up to date", "Compare methods", "Data and lists"


class OnceCommand(TyperCommand):
    """A command that refuses an option with one value if it is given twice; click would drop the first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for name, count in self.repeated(ctx, args).items():
            ctx.fail(f"{name} is given {count} times, and it takes one value; give it once.")
        return super().parse_args(ctx, args)

    def repeated(self, ctx: Any, args: list[str]) -> dict[str, int]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        given = Counter(param.opts[0] for param in order if takes_one_value(param))
        return {name: count for name, count in given.items() if count > 1}


class LastCommand(OnceCommand):
    """A command in which the last value of an option counts, and says so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for name, count in self.repeated(ctx, args).items():
            print_note(f"{name} is given {count} times; the last one counts")
        return TyperCommand.parse_args(self, ctx, args)


def takes_one_value(param: Any) -> bool:
    return param.param_type_name == "option" and not (param.multiple or param.is_flag or param.count)


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    run: Callable[..., None] | typer.Typer  # a Typer has subcommands
    panel: str  # KEEP, STUDY or DATA: the heading in the help
    place: int  # the order under the heading

    @property
    def kind(self) -> type[TyperCommand]:
        return OnceCommand if self.panel == STUDY else LastCommand

    def add_to(self, app: typer.Typer) -> None:
        if isinstance(self.run, typer.Typer):
            for command in self.run.registered_commands:
                command.cls = self.kind
            app.add_typer(self.run, name=self.name, rich_help_panel=self.panel)
        else:
            app.command(self.name, cls=self.kind, rich_help_panel=self.panel)(self.run)


def find_commands(package: str, folder: Path) -> list[Command]:
    """The COMMAND of every file that defines one, in the order of the help.

    Other files are not imported: they may need torch, which takes seconds.
    """
    names = [path.stem for path in folder.glob("*.py") if "\nCOMMAND = " in path.read_text(encoding="utf-8")]
    commands: list[Command] = [import_module(f"{package}.{name}").COMMAND for name in names]
    panels = [KEEP, STUDY, DATA]
    return sorted(commands, key=lambda one: (panels.index(one.panel), one.place))
