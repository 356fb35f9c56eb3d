"""An update of a kept model: gated, resumed, repeated."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.compare import assert_same
from torch import Tensor

from strongreplay import build_stream
from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError, DataError, RunError
from strongreplay.models.learn import LearnRequest, learn, verdict_of
from strongreplay.models.store import Store
from strongreplay.testing.device import StopAfter
from strongreplay.training.events import Listener, RunInfo
from strongreplay.training.trainer import Interrupted

CPU = torch.device("cpu")
QUICK: dict[str, Any] = {"net.name": "mlp", "train.lr": 0.1, "train.epochs": 1, "train.batch_size": 16}


@pytest.fixture(scope="module")
def digits() -> Stream:
    return build_stream("split-digits", seed=0)


def chunk_of(digits: Stream, index: int) -> tuple[Tensor, Tensor]:
    train = digits[index].train
    return train.inputs, train.labels


def order(digits: Stream, index: int, **changes: Any) -> LearnRequest:
    settings = QUICK | changes.pop("settings", {})
    return LearnRequest(chunk_of(digits, index), settings=settings, **{"max_drop": 100.0} | changes)


def test_an_update_that_was_stopped_goes_on_to_the_same_bit(digits: Stream, tmp_path: Path) -> None:
    for name in ("whole", "stopped"):
        learn(tmp_path / name, order(digits, 0), CPU)
    learn(tmp_path / "whole", order(digits, 1), CPU)
    for number in range(1, 3):  # the first call is stopped after 7 steps, the second after 7 more
        with pytest.raises(Interrupted, match=f"after step {7 * number} of"):
            learn(tmp_path / "stopped", order(digits, 1), CPU, [StopAfter(7)])
        assert Store(tmp_path / "stopped").current == "v1"
    with pytest.raises(RunError, match="--restart"):
        learn(tmp_path / "stopped", order(digits, 2), CPU)
    told: list[str] = []

    class Told(Listener):
        def on_message(self, text: str) -> None:
            told.append(text)

    learn(tmp_path / "stopped", order(digits, 1), CPU, [Told()])
    assert any("after step 14" in text for text in told)
    whole, stopped = (Store(tmp_path / name).read("v2")[1] for name in ("whole", "stopped"))
    assert_same(whole, stopped)
    assert not (tmp_path / "stopped" / "work").exists()


def test_a_refused_update_is_kept_aside_and_can_be_accepted(digits: Stream, tmp_path: Path) -> None:
    settings = {"learner.method": "sgd"}
    learn(tmp_path, order(digits, 0, settings=settings), CPU)
    before = Store(tmp_path).read()[1]
    refused = learn(tmp_path, order(digits, 1, settings=settings, max_drop=5.0), CPU)
    assert refused.version is None
    assert refused.report is not None
    assert {change.label for change in refused.report.verdict.fallen} == {0, 1}
    assert Store(tmp_path).current == "v1"
    assert_same(Store(tmp_path).read()[1], before)
    candidate, _ = Store(tmp_path).read("candidate")
    assert verdict_of(candidate.about) == refused.report.verdict
    steps: list[int] = []

    class Started(Listener):
        def on_start(self, run: RunInfo) -> None:
            steps.append(run.num_steps)

    again = learn(tmp_path, order(digits, 1, settings=settings, max_drop=5.0), CPU, [Started()])
    assert again.version is None
    accepted = learn(tmp_path, order(digits, 1, settings=settings, max_drop=5.0, accept=True), CPU)
    assert accepted.version is not None
    assert accepted.version.name == Store(tmp_path).current == "v2"
    assert steps == []  # it was not learnt a second time
    assert "candidate" not in Store(tmp_path).names()


def test_what_was_learnt_last_is_not_learnt_again_by_mistake(digits: Stream, tmp_path: Path) -> None:
    first = learn(tmp_path, order(digits, 0), CPU)
    second = learn(tmp_path, order(digits, 0), CPU)
    assert second.report is None
    assert first.version is not None
    assert second.version is not None
    assert second.version.name == first.version.name == "v1"
    third = learn(tmp_path, order(digits, 0, again=True), CPU)
    assert third.version is not None
    assert third.version.name == "v2"


def test_versions_share_what_they_have_in_common(digits: Stream, tmp_path: Path) -> None:
    learn(tmp_path, order(digits, 0), CPU)
    parts = json.loads((tmp_path / "versions" / "v0001.json").read_text())["parts"]
    assert parts["net"]["object"] == parts["old_net"]["object"] is not None


def test_settings_the_model_was_made_with_are_kept_and_cannot_change(digits: Stream, tmp_path: Path) -> None:
    learn(tmp_path, order(digits, 0, settings={"learner.seed": 3, "learner.memory": 60}), CPU)
    images, labels = chunk_of(digits, 1)
    with pytest.raises(
        ConfigError, match=r"learner\.method was fixed as 'ser' when the model was made, got 'er'"
    ):
        learn(tmp_path, LearnRequest((images, labels), settings={"learner.method": "er"}), CPU)
    learn(tmp_path, LearnRequest((images, labels), settings={"train.epochs": 2}, max_drop=100), CPU)
    plan = Store(tmp_path).read(parts=["model"])[1]["model"]["plan"]
    assert plan["train"]["epochs"] == 2
    assert plan["train"]["batch_size"] == 16
    assert plan["learner"]["memory"] == 60
    with pytest.raises(ConfigError, match=r"train\.first_epochs was fixed as None"):
        learn(tmp_path, LearnRequest((images, labels), settings={"train.first_epochs": 9}), CPU)
    with pytest.raises(ConfigError, match=r"train\.keep_momentum has no effect here"):
        learn(tmp_path, LearnRequest((images, labels), settings={"train.keep_momentum": "true"}), CPU)
    with pytest.raises(ConfigError, match="side was fixed as 8"):
        learn(tmp_path, LearnRequest((images, labels), side=16), CPU)


def test_a_chunk_that_cannot_be_learnt_leaves_no_trace(digits: Stream, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="labels"):
        learn(tmp_path / "new", LearnRequest((chunk_of(digits, 0)[0], [1])), CPU)
    assert not (tmp_path / "new").exists()
