"""The tutorial on writing a method: every block is run, and what it shows is what comes out."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.repository import in_repository

PAGE = in_repository("docs/tutorial-own-method.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, flags=re.S | re.M)


def blocks(kind: str) -> list[str]:
    return [text for found, text in BLOCKS if found == kind]


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def words(text: str) -> list[str]:
    return re.sub(r"\d+\.\d+|\*", "", text).split()


def test_the_file_in_the_page_is_the_example() -> None:
    assert blocks("python")[0] == in_repository("examples/er_ace.py").read_text()
    assert {kind for kind, _ in BLOCKS} == {"python", "text", "console", "toml"}


@pytest.mark.slow
def test_every_command_and_block_does_what_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "er_ace.py").write_text(blocks("python")[0])
    check = subprocess.run(
        [sys.executable, "-c", blocks("python")[1]], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert check.returncode == 0, check.stderr
    assert check.stdout == blocks("text")[0]
    run, *others = [line[2:] for text in blocks("console") for line in text.splitlines()]
    for command in (run, *others):
        name, *arguments = shlex.split(command)
        assert name == "ser"
        done = subprocess.run(
            [sys.executable, "-m", "strongreplay", *arguments],
            cwd=tmp_path, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        if "report" not in arguments:
            shown = blocks("text")[1]
            assert words(done.stdout) == words(shown)
            # Another processor rounds differently, which moves single images across the border.
            assert numbers(done.stdout) == pytest.approx(numbers(shown), abs=3)
    assert "ER-ACE" in (tmp_path / "report.html").read_text()
