"""The data.* settings: what they do to a run, what they contradict; none of them renames a record."""

import json
from typing import Any

import pytest

from strongreplay.errors import ConfigError
from strongreplay.methods import METHODS
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
        (["data.tasks=6"], r"data\.tasks must be 1 to 5 for this stream, got 6"),
    ],
)
def test_contradictions_are_told_before_anything_is_read(pairs: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("split-digits", "er", 50, 0, settings(*pairs))


def test_class_order_means_nothing_in_domain_il() -> None:
    with pytest.raises(ConfigError, match=r"data\.order can be set for streams that are divided by class"):
        resolve("permuted-digits", "er", 50, 0, settings("data.order=shuffled"))
