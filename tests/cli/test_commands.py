"""A command is one file: what it defines as COMMAND is in the help, without a list to add it to."""

import shutil
import subprocess
import sys
from pathlib import Path

import strongreplay
from strongreplay.cli.commands import find_commands

CLI = Path(strongreplay.__file__).parent / "cli"
HELLO = '''"""ser hello: greet."""

from strongreplay.cli.commands import DATA, Command
from strongreplay.cli.text import print_line


def hello_command(name: str) -> None:
    """Greet somebody."""
    print_line(f"hello {name}")


COMMAND = Command("hello", hello_command, DATA, 15)
'''


def test_every_command_is_in_the_file_of_its_name_and_has_a_place_of_its_own() -> None:
    commands = find_commands("strongreplay.cli", CLI)
    assert {"learn", "status", "history", "rollback", "show", "compare", "run", "resume"} <= {
        command.name for command in commands
    }
    for command in commands:
        assert (CLI / f"{command.name}.py").exists()
    places = [(command.panel, command.place) for command in commands]
    assert len(places) == len(set(places))


def test_a_new_command_is_one_file(tmp_path: Path) -> None:
    package = Path(shutil.copytree(CLI.parent, tmp_path / "strongreplay"))
    (package / "cli" / "hello.py").write_text(HELLO)

    def ser(*words: str) -> str:
        command = [sys.executable, "-m", "strongreplay", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    listed = ser("--help")
    assert listed.index("list ") < listed.index("hello") < listed.index("Get, list and check")
    assert ser("hello", "Ada") == "hello Ada\n"
