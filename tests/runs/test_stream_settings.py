"""The data.* settings: what they do to a run, what they contradict; none of them renames a record."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strongreplay.data.streams import StreamOptions, build_stream
from strongreplay.errors import ConfigError
from strongreplay.methods import METHODS
from strongreplay.protocol import derive_generator
from strongreplay.runs.config import DataConfig, config_of, parse_settings, resolve
from strongreplay.runs.estimate import num_steps
from strongreplay.runs.run import run
from strongreplay.storage.records import RunRecord, fingerprint


def settings(*pairs: str) -> dict[str, Any]:
    return dict(parse_settings(list(pairs)))


def quick(method: str, *pairs: str, stream: str = "split-digits") -> RunRecord:
    size = 50 if METHODS[method].has_memory else None
    return run(resolve(stream, method, size, 0, settings(*pairs)))


def test_settings_that_are_off_leave_the_name_of_a_record() -> None:
    config = resolve("seq-cifar10", "ser", 200).to_dict()
    before = {**config, "data": {"tasks": None, "validation": 0.0}}
    assert fingerprint(config) == fingerprint(before)
    assert all(value is None for key, value in DataConfig().model_dump().items() if key != "validation")


@pytest.mark.slow
def test_a_large_first_task_and_another_order_go_through_a_run() -> None:
    record = quick("er", "data.first=4", "data.step=3", "data.order=shuffled", "train.epochs=3")
    assert len(record.matrix("class-il")) == 3
    other = quick("er", "data.first=4", "data.step=3", "train.epochs=3")
    assert record.results != other.results
    again = config_of(json.loads(record.to_json())["config"], "")
    assert again.data.order == ("shuffled",)
    assert json.dumps(run(again).results) == json.dumps(record.results)


@pytest.mark.slow
def test_a_given_order_is_read_from_the_command_line() -> None:
    config = resolve("split-digits", "er", 50, 0, settings("data.order=9,8,7,6,5,4,3,2,1,0"))
    assert config.data.order == (9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
    natural = quick("sgd", "data.num_tasks=2").score("class-il", "average_accuracy")
    assert natural != quick("sgd", "data.num_tasks=2", "data.order=9,8,7,6,5,4,3,2,1,0").score(
        "class-il", "average_accuracy"
    )


def test_online_is_one_pass_in_batches_of_ten() -> None:
    config = resolve("seq-cifar10", "er", 200, 0, settings("data.online=true"))
    assert (config.train.epochs, config.train.batch_size, config.train.milestones) == (1, 10, ())
    assert config.train.lr == resolve("seq-cifar10", "er", 200).train.lr
    own = resolve("seq-cifar10", "er", 200, 0, settings("data.online=true", "train.batch_size=32"))
    assert own.train.batch_size == 32
    assert config_of(config.to_dict(), config.source) == config
    message = r"data\.online=true reads the data once, got train\.epochs=5; leave train\.epochs out"
    with pytest.raises(ConfigError, match=message):
        resolve("seq-cifar10", "er", 200, 0, settings("data.online=true", "train.epochs=5"))
    assert num_steps(config) == 5 * 1000


@pytest.mark.slow
def test_every_method_that_allows_it_learns_a_stream_without_boundaries() -> None:
    free = [name for name, row in METHODS.items() if not row.needs]
    assert set(free) >= {"sgd", "er", "der", "derpp", "gss", "clser"}
    for name in free:
        record = quick(name, "data.boundaries=false", "data.blurry=0.1")
        assert len(record.matrix("class-il")) == 5
        assert record.config["train"]["epochs"] == 1


@pytest.mark.slow
def test_a_method_is_refused_where_it_lacks_what_it_needs() -> None:
    with pytest.raises(ConfigError, match=r"ser needs to know where a task ends; data\.boundaries=false"):
        quick("ser", "data.boundaries=false")
    with pytest.raises(ConfigError, match=r"icarl needs tasks with classes of their own; with data\.blurry"):
        quick("icarl", "data.blurry=0.1")
    blurry = quick("ser", "data.blurry=0.1", "train.epochs=2")
    assert blurry.results != quick("ser", "train.epochs=2").results


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["data.first=4"], r"data\.first needs data\.step"),
        (["data.step=2", "data.num_tasks=5"], r"data\.step and data\.num_tasks exclude each other"),
        (["data.num_tasks=11"], "10 classes cannot be divided into 11 tasks"),
        (["data.order=1,2"], r"data\.order must be 'shuffled' or the numbers of all 10 classes"),
        (["data.order=natural"], r"data\.order must be 'shuffled' or the numbers of all 10 classes"),
        (["data.blurry=1"], r"data\.blurry must be < 1"),
        (["data.online=perhaps"], r"data\.online must be true or false"),
        (["data.mean=0.5"], r"data\.mean and data\.std belong together"),
        (
            ["data.mean=0.5,0.5", "data.std=1,1"],
            r"must have a value for each channel, 1, got 2 and 2",
        ),
        (["data.mean=0.5", "data.std=0"], r"data\.std.*must be > 0"),
        (["data.tasks=6"], r"data\.tasks must be 1 to 5 for this stream, got 6"),
    ],
)
def test_contradictions_are_told_before_anything_is_read(pairs: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("split-digits", "er", 50, 0, settings(*pairs))


def test_class_order_means_nothing_in_domain_il() -> None:
    with pytest.raises(ConfigError, match=r"data\.order can be set for streams that are divided by class"):
        resolve("permuted-digits", "er", 50, 0, settings("data.order=shuffled"))


@pytest.mark.parametrize("name", ["split-digits", "rotated-digits"])
def test_a_given_mean_and_deviation_replace_those_of_the_dataset(name: str) -> None:
    config = resolve(name, "er", 50, 0, settings("data.mean=0.5", "data.std=0.25"))
    assert config_of(json.loads(json.dumps(config.to_dict())), config.source) == config
    assert fingerprint(config.to_dict()) != fingerprint(resolve(name, "er", 50).to_dict())
    stream = build_stream(name, options=config.data.options)
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1)
    for view in (stream.test_view, stream.train_view(derive_generator(0, "views"))):
        assert view(images).flatten().tolist() == pytest.approx([-2, -1.2, 2])


def test_a_given_mean_and_deviation_replace_those_of_ones_own_data(tmp_path: Path) -> None:
    rows = np.arange(80, dtype=np.float32).reshape(40, 2)
    np.savez(tmp_path / "rows.npz", inputs=rows, labels=np.arange(40) % 4)
    options = StreamOptions(mean=(1.0, 2.0), std=(2.0, 4.0))
    stream = build_stream(f"npz:{tmp_path}/rows.npz", options=options)
    assert stream.test_view(torch.tensor([[3.0, 4.0]])).tolist() == [[1.0, 0.5]]


def test_a_stream_from_code_has_views_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def make(seed, folder):\n    raise AssertionError\n")
    with pytest.raises(ConfigError, match=r"have no effect here: .*mine\.py:make makes its own views"):
        build_stream(f"{file}:make", options=StreamOptions(mean=(0.0,), std=(1.0,)))
