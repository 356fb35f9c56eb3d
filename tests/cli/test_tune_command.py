"""ser tune: three methods with the same budget, stopped and continued, and the recipe used."""

import signal
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.commands import Ser
from support.processes import SER

BUDGET = ["tune", "split-digits", "-m", "er,derpp,ser", "--memory", "30", "--trials", "4", "--finalists", "2"]
BUDGET += ["--seeds", "2", "--set", "train.epochs=1", "--set", "net.width=16", "--threads", "1"]
BUDGET += ["--device", "cpu"]


def recipe_in(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "split-digits.toml").read_text())


@pytest.mark.slow
def test_a_search_that_was_stopped_goes_on_to_the_same_recipe(ser: Ser, tmp_path: Path) -> None:
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    with subprocess.Popen([*SER, *BUDGET, "-o", stopped], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        for line in process.stderr:
            if "derpp m30 seed 0 trial 2:" in line:
                process.send_signal(signal.SIGTERM)
                break
        rest = process.stderr.read()
    assert process.returncode == 128 + signal.SIGTERM
    assert "4 er" in rest
    assert "Go on with the same command" in rest
    assert not (stopped / "split-digits.toml").exists()
    said = ser(*BUDGET, "-o", stopped)
    assert said.code == 0, said.err
    assert "split-digits er m30 seed 0 trial 4" not in said.err
    assert "derpp m30 seed 0 trial 4" in said.err
    said = ser(*BUDGET, "-o", whole)
    assert recipe_in(stopped) == recipe_in(whole)
    trials = recipe_in(whole)["trials"]
    assert [one["method"] for one in trials] == ["er"] * 4 + ["derpp"] * 4 + ["ser"] * 4
    assert [len(one["finals"]) for one in trials if "finals" in one] == [2] * 6  # two finalists a method
    assert "method  trials" in said.out

    recipe, used = whole / "split-digits.toml", tmp_path / "used"
    words = ["run", "split-digits", "-m", "ser", "--memory", 30, "--recipe", recipe, "-o", used]
    assert ser(*words, "--device", "cpu").code == 0
    best = recipe_in(whole)["ser"]["30"]
    (record,) = used.rglob("seed-0.json")
    assert f'"lr": {best["train"]["lr"]}' in record.read_text()
    assert best["train"]["epochs"] == 1


def test_wrong_words_are_told_in_one_line(ser: Ser, tmp_path: Path) -> None:
    for words, told in (
        (["--shard", "1/2"], "--shard does not apply"),
        (["--on", "slurm"], "--on slurm does not apply"),
        (["--validation", "0"], "--validation must be > 0 and < 1"),
        (["--space", "none.toml"], "--space none.toml: cannot be read"),
        (["--recipe", "none.toml"], "--recipe none.toml: cannot be read"),
    ):
        said = ser("tune", "split-digits", "-o", tmp_path / "out", *words)
        assert said.code == 2
        assert told in said.err
    assert not (tmp_path / "out").exists()
