"""A learner's status, history, differences and evaluation agree with what the commands print as JSON."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.kept_models import make_model, ser, some_digits, write_folder

from strongreplay.errors import DataError
from strongreplay.learner import Learner
from strongreplay.models.inspect.diff import compare_memory


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with v1, v2, a refused update and a stopped one."""
    return make_model(tmp_path_factory.mktemp("state"))


def printed(*words: str | Path) -> Any:
    return json.loads(ser(*words, "--json").out)


def as_json(content: Any) -> Any:
    return json.loads(json.dumps(content))


def test_a_learner_tells_what_the_commands_print(state: Path) -> None:
    learner = Learner.load(state, device="cpu")
    assert as_json(learner.status().to_dict()) == printed("status", state)
    assert as_json(learner.diff("v1", "v2").to_dict()) == printed("diff", state, "v1", "v2")
    assert as_json([entry.to_dict() for entry in learner.history()]) == printed("history", state)


def test_values_are_there_as_attributes(state: Path) -> None:
    learner = Learner.load(state, "v1", device="cpu")
    status = learner.status()
    assert (status.version, [one.version for one in status.versions]) == ("v1", ["v1", "v2"])
    assert [one.label for one in status.classes] == ["one", "zero"]
    assert learner.diff("v1", "v2").new_classes == ("two",)
    assert [entry.act for entry in learner.history()] == ["learn", "learn", "refuse"]
    assert learner.history()[1].details["data"] == "february"


def test_an_evaluation_is_a_mapping_and_agrees_with_the_command(state: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "checked", (0, 1, 2), 60, 15)
    learner = Learner.load(state, device="cpu")
    alone, beside = learner.evaluate(folder), learner.evaluate(folder, against="v1")
    assert alone == {label: alone[label] for label in ("one", "two", "zero")}
    assert {count for _, count in alone.values()} == {15}
    assert alone.to_dict()["against"] is None
    words = ("evaluate", state, "--data", folder, "--device", "cpu")
    assert {"state": str(state), **as_json(beside.to_dict())} == printed(*words)
    images, labels = some_digits((0, 1, 2), 60, 15)
    names = [("zero", "one", "two")[number] for number in labels]
    assert learner.score(images[:, None], names) == pytest.approx(alone.accuracy / 100)
    with pytest.raises(KeyError):
        _ = alone["seven"]


def test_a_learner_without_a_folder_says_so_and_has_one_once_it_is_saved(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    learner = Learner("mlp", epochs=1, device="cpu")
    for ask in (learner.status, learner.history, lambda: learner.diff("v1", "v2")):
        with pytest.raises(DataError, match=r"save it first with learner.save\(folder\)"):
            ask()
    learner.fit(draws.normal(size=(20, 4)).astype(np.float32), ["a", "b"] * 10)
    learner.save(tmp_path / "model")
    assert [one.label for one in learner.status().classes] == ["a", "b"]
    assert learner.save(tmp_path / "model").name == learner.status().version == "v2"
    assert learner.diff("v1", "v2").memory == ()
    learner.fit(draws.normal(size=(20, 4)).astype(np.float32), ["a", "b"] * 10)
    with pytest.raises(DataError, match="no folder"):  # another model than the one that was saved
        learner.status()


def test_two_copies_count_as_two_samples_and_two_rows_of_one_sample_as_one() -> None:
    images = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)

    def parts(*ids: int) -> dict[str, Any]:
        origins = [[number, f"{number}.png", "a", 1] for number in ids]
        samples = {"origins": origins, "images": images[: len(ids)]}
        columns = {"labels": torch.zeros(len(ids), dtype=torch.int64)}
        memory = {"samples": samples, "columns": columns, "extra": {}}
        return {"model": {"labels": ["a"], "shape": [1, 2, 2]}, "memory": memory}

    assert compare_memory(parts(1, 2), parts(1, 2, 2)) == []
    (change,) = compare_memory(parts(1, 2), parts(1, 1))
    assert (change.replay_came, change.replay_went) == (0, 1)
    assert compare_memory(parts(1), parts(7)) == []  # the same picture, learnt again after a rollback
