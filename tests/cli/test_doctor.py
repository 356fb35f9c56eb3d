"""ser doctor: what it prints, with everything installed and with an extra missing."""

import json
import sys
from pathlib import Path

import pytest
from support.kept_models import ser

from strongreplay import __version__


def test_it_names_versions_device_and_data(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    said = ser("doctor", "--data", tmp_path)
    assert said.code == 0
    assert f"strongreplay: {__version__}" in said.out
    assert "chosen by auto: " in said.out
    assert "contents: mnist" in said.out
    found = json.loads(ser("doctor", "--json", "--quick", "--data", tmp_path / "nowhere").out)
    assert found["data"]["exists"] is False
    assert found["packages"]["torch"]


def test_a_missing_extra_comes_with_its_purpose_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strongreplay.cli.doctor.find_spec", lambda name: None if name == "optuna" else sys)
    line = next(line for line in ser("doctor", "--quick").out.splitlines() if line.strip().startswith("tune"))
    assert line.strip() == "tune: optuna missing, for ser tune: pip install 'strongreplay[tune]'"
