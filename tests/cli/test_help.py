"""Every command's help has an example, and the command accepts it."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from support.parsing import COMMANDS, parse_command

START = "import sys; sys.argv = ['ser']; from strongreplay.__main__ import ser; ser()"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_that_is_accepted(name: str) -> None:
    example = re.search(r"^Example: ser (.+)$", COMMANDS[name].help or "", flags=re.M)
    assert example, f"ser {name} --help has no line 'Example: ser {name} ...'"
    words = shlex.split(re.split(r", or: |, then: |, for | > | \| ", example[1])[0])
    assert parse_command(words)[0] is COMMANDS[name]


def test_the_shell_completes_commands_and_options() -> None:
    """What the page docs/how-to/completion.md promises, asked in the way bash asks."""
    for typed, offered in {"ser ro": ["rollback"], "ser run --m": ["--method", "--memory"]}.items():
        asked = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "_SER_COMPLETE": "complete_bash"}
        done = subprocess.run(
            [sys.executable, "-c", START], env=os.environ | asked, capture_output=True, text=True
        )
        assert done.stdout.split() == offered, done.stderr
