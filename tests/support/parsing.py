"""The commands of `ser`, and their parser without what they do."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer.main

from strongreplay.cli import app

SER: Any = typer.main.get_command(app)


def found_commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    inside: Mapping[str, Any] = getattr(command, "commands", {})
    if not inside:
        yield " ".join(words), command
    for word, sub in inside.items():
        yield from found_commands(sub, (*words, word))


COMMANDS = dict(found_commands(SER))


def parse_command(words: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """The command that these words call, and its parameters; an error if it does not take them."""
    command, context = SER, SER.make_context("ser", list(words), resilient_parsing=False)
    while getattr(command, "commands", None):  # `ser memory STATE list` has an argument between the words
        rest = [*context._protected_args, *context.args]
        word, command, rest = command.resolve_command(context, rest)
        context = command.make_context(word, rest, parent=context)
    return command, context.params
