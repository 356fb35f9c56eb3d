"""Budget, gate and codec, and an update of a kept model: gated, resumed, repeated."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same
from torch import Tensor

from strongreplay import build_stream
from strongreplay.data import images as codec
from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError, DataError, RunError
from strongreplay.models.budget import Budget
from strongreplay.models.gate import GUARD, HELD_OUT, Change, Verdict, compare, count_right
from strongreplay.models.learn import LearnRequest, Stopped, Watcher, learn, verdict_of
from strongreplay.models.store import Store

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


@pytest.mark.parametrize(
    ("text", "samples", "size"),
    [
        (500, 500, None),
        ("500", 500, None),
        ("20MB", None, 20_000_000),
        ("1.5 KiB", None, 1536),
        ("7b", None, 7),
    ],
)
def test_a_budget_is_read(text: int | str, samples: int | None, size: int | None) -> None:
    assert Budget.parse(text) == Budget(samples, size)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "MB", "5 TB", "5 MBs", "nan"])
def test_what_is_no_budget_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 500 or 20MB"):
        Budget.parse(text)


def test_a_fifth_of_a_budget_is_for_samples_to_judge_by() -> None:
    assert Budget(500).rooms(True, 100, 50) == (400, 100)
    assert Budget(500).rooms(False, 100, 50) == (500, 0)
    assert Budget(bytes=1000).rooms(True, 100, 50) == (8, 4)


def test_the_gate_lets_through_what_equals_the_limit_and_nothing_more() -> None:
    labels = ["a"] * 10 + ["b"] * 10 + ["c"] * 10
    before = count_right(["a"] * 10 + ["b"] * 10 + ["a"] * 10, labels)
    after = count_right(["a"] * 9 + ["c"] + ["b"] * 9 + ["c"] * 11, labels)
    changes = tuple(compare(before, after, ["a", "b"], "guard"))
    assert [(change.label, change.before, change.after) for change in changes] == [
        ("a", 100, 90), ("b", 100, 90), ("c", None, 100)
    ]  # fmt: skip
    assert Verdict(changes, 10).passed
    assert [change.label for change in Verdict(changes, 9.9).fallen] == ["a", "b"]


def test_a_guard_set_decides_where_it_has_as_many_samples_as_were_held_out() -> None:
    def fallen(held: tuple[int, float], guard: tuple[int, float]) -> list[str]:
        changes = (Change("a", HELD_OUT, held[0], 100, held[1]), Change("a", GUARD, guard[0], 100, guard[1]))
        return [change.where for change in Verdict(changes, 10).fallen]

    assert fallen((25, 80), (100, 95)) == []
    assert fallen((25, 80), (10, 95)) == [HELD_OUT]
    assert fallen((25, 100), (10, 80)) == [GUARD]
    assert fallen((25, 80), (10, 70)) == [GUARD, HELD_OUT]


@pytest.mark.parametrize("channels", [1, 3])
def test_png_gives_back_every_pixel_and_jpeg_nearly(channels: int) -> None:
    grid = torch.arange(32)
    images = (grid[:, None] * 4 + grid * 3).to(torch.uint8).expand(5, channels, 32, 32).clone()
    images[1:] = images[1:].flip(-1)
    for how in ("png", "jpeg"):
        files = codec.part(*codec.join(codec.encode(images, how)))
        decoded = codec.decode(files, (channels, 32, 32))
        difference = (decoded.int() - images.int()).abs().max()
        assert difference == 0 if how == "png" else 0 <= difference < 20
    with pytest.raises(DataError, match="stored image 0"):
        codec.decode([b"no image"], (channels, 32, 32))
    with pytest.raises(DataError, match="stored image 0"):
        codec.decode(files[:1], (channels, 16, 16))
    assert codec.part(*codec.join([])) == []


def test_an_update_that_was_stopped_goes_on_to_the_same_bit(digits: Stream, tmp_path: Path) -> None:
    for name in ("whole", "stopped"):
        learn(tmp_path / name, order(digits, 0), CPU)
    learn(tmp_path / "whole", order(digits, 1), CPU)
    for number in range(1, 3):  # the first call is stopped after 7 steps, the second after 7 more
        left = [True, *[False] * 6]
        with pytest.raises(Stopped, match=f"after step {7 * number} of"):
            learn(tmp_path / "stopped", order(digits, 1), CPU, Watcher(wants_stop=left.pop))
        assert Store(tmp_path / "stopped").current == "v1"
    with pytest.raises(RunError, match="--restart"):
        learn(tmp_path / "stopped", order(digits, 2), CPU)
    told: list[str] = []
    learn(tmp_path / "stopped", order(digits, 1), CPU, Watcher(told=told.append))
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
    again = learn(
        tmp_path,
        order(digits, 1, settings=settings, max_drop=5.0),
        CPU,
        Watcher(begin=lambda done, total: steps.append(total)),
    )
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
    with pytest.raises(ConfigError, match="side was fixed as 8"):
        learn(tmp_path, LearnRequest((images, labels), side=16), CPU)


def test_a_chunk_that_cannot_be_learnt_leaves_no_trace(digits: Stream, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="labels"):
        learn(tmp_path / "new", LearnRequest((chunk_of(digits, 0)[0], [1])), CPU)
    assert not (tmp_path / "new").exists()
