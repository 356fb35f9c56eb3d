"""Tuning: what is searched, that bad trials stop early, and that no trial reads test data."""

from pathlib import Path
from typing import Any

import pytest
from support.commands import Ser
from support.grids import Quiet

from strongreplay.errors import ConfigError
from strongreplay.runs.config import RunConfig, resolve
from strongreplay.runs.grid import Grid, RunOptions
from strongreplay.runs.search_space import Range, read_space, space_of
from strongreplay.runs.tune import MethodStudy, Pruning, TrialResult, check_space, choose, write_recipe
from strongreplay.storage.records import read_folder

SMALL = {"train.epochs": 1, "net.width": 16, "data.validation": 0.2}


def config(method: str = "er", **settings: Any) -> RunConfig:
    return resolve("split-digits", method, 30, 0, SMALL | settings)


def search(study: MethodStudy) -> list[TrialResult]:
    options = RunOptions(study.folder, study.folder, "cpu")
    for job in Grid(study.jobs(), options, goes_on=study.goes_on).go(Quiet()):
        study.end(job)
    return study.tried(0, 0)


def test_fractions_of_a_method_are_searched_on_a_logarithmic_scale() -> None:
    found = space_of(config("ser", **{"train.lr": 0.2, "method.alpha": 0.5, "method.beta": 0.0}))
    assert found == {
        "train.lr": Range(0.02, 2.0, log=True),
        "method.alpha": Range(0.05, 5.0, log=True),
    }  # beta = 0 has no scale; memory and variants stay as they are
    found = space_of(config("clser", **{"method.stable_decay": 0.999, "method.plastic_rate": 0.5}))
    assert found["method.plastic_rate"] == Range(0.05, 1.0, log=True)
    decay = found["method.stable_decay"]
    assert (decay.below_one, decay.log) == (True, True)
    assert decay.ends == (pytest.approx(0.9999), pytest.approx(0.99))
    assert decay.value(decay.drawn(0.995)) == 0.995


def test_a_file_names_ranges_for_all_methods_and_for_one(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text(
        "[every]\ntrain.lr = { low = 0.01, high = 1.0, log = true }\n"
        "[er]\nmethod.loss = ['concatenated', 'sum']\ntrain.batch_size = { low = 8, high = 64 }\n"
    )
    found = read_space(file, "er")
    assert found["train.lr"] == Range(0.01, 1.0, log=True) == read_space(file, "sgd")["train.lr"]
    assert found["method.loss"].choices == ("concatenated", "sum")
    assert found["train.batch_size"].whole
    check_space(config(), found)
    file.write_text("[er]\nmethod.los = ['sum']\ntrain.lr = { low = -1.0, high = 1.0 }\ndata.test = [0.1]\n")
    with pytest.raises(ConfigError) as caught:
        check_space(config(), read_space(file, "er"))
    text = str(caught.value)
    assert "did you mean 'method.loss'" in text
    assert "train.lr must be > 0" in text
    assert "data.test cannot be searched" in text
    for wrong in (
        "[er]\ntrain.lr = 3\n",
        "[er]\ntrain.lr = { low = 2, high = 1 }\n",
        "[sgd]\n",
        "x",
        "er = 1",
    ):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match=r"--space .*space\.toml"):
            read_space(file, "er")


@pytest.mark.slow
@pytest.mark.parametrize("pruning", ["median", "halving"])
def test_the_recipe_comes_first_and_bad_trials_stop_early(pruning: Pruning, tmp_path: Path) -> None:
    space = {"train.lr": Range(1e-4, 0.5, log=True)}
    study = MethodStudy(config("er", **{"train.lr": 0.1}), space, tmp_path, 14, pruning)
    tried = search(study)
    assert tried[0].settings == {"train.lr": 0.1}
    assert len(tried) == 14
    assert "pruned" in [one.state for one in tried]
    records, _ = read_folder([tmp_path])
    complete = {one.settings["train.lr"] for one in tried if one.state == "complete"}
    assert {one.config["train"]["lr"] for one in records} == complete
    assert not list(tmp_path.rglob("*.state"))
    again = MethodStudy(study.config, space, tmp_path, 14, pruning)  # nothing is left to do
    assert list(again.jobs()) == []
    assert again.tried(0, 0) == tried
    assert len(list(MethodStudy(study.config, space, tmp_path, 16, pruning).jobs())) == 2


def test_the_best_mean_over_seeds_is_chosen_and_written(tmp_path: Path) -> None:
    one = TrialResult(0, "complete", 90.0, {"train.lr": 0.1}, [90.0, 70.0])
    two = TrialResult(1, "complete", 85.0, {"train.lr": 0.2}, [85.0, 84.0])
    assert choose([one, two, TrialResult(2, "pruned", 95.0, {})]) is two
    path = tmp_path / "mine.toml"
    write_recipe(path, [(config(), [one, two])], {"er": ["train.epochs"]}, "a search", "ser tune")
    found = resolve("split-digits", "er", 30, recipe_name=str(path))
    assert (found.train.lr, found.train.epochs) == (0.2, 1)
    assert found.source == "a search: 85.00, 84.00 %"
    assert path.read_text().count("[[trials]]") == 2
    with pytest.raises(ConfigError, match="there is one for split-digits er"):
        resolve("split-digits", "ser", 30, recipe_name=str(path))


STREAM = """
from strongreplay.data.streams import build_stream
from dataclasses import replace


def digits(seed, folder):
    stream = build_stream("split-digits", seed)

    def make(index, part):
        if part == "test":
            raise RuntimeError("the test data were read")
        return stream.make(index, part)

    return replace(stream, make=make)
"""


@pytest.mark.slow
def test_no_trial_reads_test_data(ser: Ser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(STREAM)
    words = ["mine.py:digits", "-m", "er", "--memory", 30, "--set", "net.width=16", "--set", "train.epochs=1"]
    said = ser("tune", *words, "--trials", 3, "--finalists", 2, "--seeds", 2, "--device", "cpu")
    assert said.code == 0, said.err
    (row,) = [line for line in said.out.splitlines() if line.startswith("ER")]
    assert row.split()[1] == "3"  # trials
    said = ser("run", *words, "--device", "cpu", "--recipe", "tuned/digits.toml")
    assert said.code == 1
    assert "the test data were read" in said.err
