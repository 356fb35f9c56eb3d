"""The README's Python runs as printed, and the commands it shows exist."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.repository import ROOT, in_repository

from strongreplay.report.markdown import ANY_MARK, renew
from strongreplay.report.reproduction import END
from strongreplay.storage.records import read_folder

README = in_repository("README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_python_in_the_readme_runs(
    number: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(blocks("python")[number], names)
    if "learner" in names:
        assert names["learner"].classes_.tolist() == [f"digit {digit}" for digit in range(10)]
        assert (tmp_path / "kept" / "current").read_text() == "v1\n"
    if "record" in names:
        rows = names["record"].matrix("class-il")
        assert [len(row) for row in rows] == [5] * 5
        assert sum(rows[-1]) / 5 > 60
    assert capsys.readouterr().out


@pytest.mark.slow
def test_commands_in_the_readme_and_the_walk_through_are_known() -> None:
    shown = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("ser ")]
    walk = re.findall(r"^\$ (ser .*)$", (ROOT / "docs" / "keep.md").read_text(), flags=re.MULTILINE)
    assert min(len(shown), len(walk)) >= 5
    shown += walk
    words = [line.split() for line in shown]
    groups = ("data", "list", "reproduce", "state")
    with_state = ("memory",)  # ser memory STATE list
    verbs = {tuple(word[1 : 2 + (word[1] in groups) + 2 * (word[1] in with_state)]) for word in words}
    for verb in verbs:
        result = subprocess.run(
            [sys.executable, "-m", "strongreplay", *verb, "--help"], capture_output=True, text=True
        )
        assert result.returncode == 0, (verb, result.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["README.md", "docs/results.md"])
def test_tables_are_those_of_the_records(name: str) -> None:
    records, problems = read_folder([ROOT / "results"])
    assert not problems
    text = (ROOT / name).read_text()
    assert text.count(END) == len(ANY_MARK.findall(text)) > 0
    assert "Not run yet" not in text
    assert renew(text, records) == text, "run: ser reproduce report --readme"


def test_make_targets_in_the_readme_exist() -> None:
    targets = set(re.findall(r"(?:^|`)make (\w+)", README, flags=re.MULTILINE))
    assert {"demo", "test"} <= targets
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)
