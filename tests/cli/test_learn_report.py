"""What ser learn prints after an update."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.kept_models import teach, write_folder

from strongreplay.cli.learn_report import print_outcome
from strongreplay.models.store import Store, Version


@pytest.mark.parametrize(
    ("method", "remedy"),
    [
        ("slda", "Look at their labels, or give more of them"),
        ("ser", "Look at their labels, give more of them, or more --epochs"),
    ],
)
def test_classes_that_were_not_learnt_are_told_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, remedy: str
) -> None:
    state = tmp_path / "state"
    version = teach(state, write_folder(tmp_path / "data", (0, 1), 0, 8)).version
    assert version
    fresh = {"fresh": [["zero", 0, 10], ["one", 1, 2]], "method": method}

    def outcome(version: Version, as_json: bool = False) -> str:
        print_outcome(Store(state), version, [], (10.0, 0.05), False, as_json)
        return capsys.readouterr().out

    lines = outcome(replace(version, about=version.about | fresh)).splitlines()
    assert (
        f"WARNING: not learnt: zero; held-out samples are recognised no better than by a guess. {remedy}"
    ) in lines
    assert (
        "note: held-out samples are too few to tell whether these were learnt: one; give more of them, or "
        "--guard LABELLED"
    ) in lines
    told = json.loads(outcome(replace(version, about=version.about | fresh), as_json=True))
    assert (told["not_learnt"], told["too_few_to_tell"]) == (["zero"], ["one"])
    fine = {"fresh": [["zero", 9, 10], ["one", 2, 2]]}
    said = outcome(replace(version, about=version.about | fine))
    assert "not learnt" not in said
    assert "too few" not in said
