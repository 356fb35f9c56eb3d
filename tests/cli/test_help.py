"""Every command's help has an example, and the command accepts it."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import typer.main

from strongreplay.cli import app

START = "import sys; sys.argv = ['ser']; from strongreplay.__main__ import ser; ser()"
SER: Any = typer.main.get_command(app)


def found_commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    inside: Mapping[str, Any] = getattr(command, "commands", {})
    if not inside:
        yield " ".join(words), command
    for word, sub in inside.items():
        yield from found_commands(sub, (*words, word))


COMMANDS = dict(found_commands(SER))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_that_is_accepted(name: str) -> None:
    example = re.search(r"^Example: ser (.+)$", COMMANDS[name].help or "", flags=re.M)
    assert example, f"ser {name} --help has no line 'Example: ser {name} ...'"
    words = shlex.split(re.split(r", or: |, then: |, for | > | \| ", example[1])[0])
    command, context = SER, SER.make_context("ser", list(words), resilient_parsing=False)
    while getattr(command, "commands", None):  # `ser memory STATE list` has an argument between the words
        rest = [*context._protected_args, *context.args]
        word, command, rest = command.resolve_command(context, rest)
        context = command.make_context(word, rest, parent=context)
    assert command is COMMANDS[name]


def test_the_shell_completes_commands_and_options() -> None:
    """What the page docs/how-to/completion.md promises, asked in the way bash asks."""
    for typed, offered in {"ser ro": ["rollback"], "ser run --m": ["--method", "--memory"]}.items():
        asked = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "_SER_COMPLETE": "complete_bash"}
        done = subprocess.run(
            [sys.executable, "-c", START], env=os.environ | asked, capture_output=True, text=True
        )
        assert done.stdout.split() == offered, done.stderr
