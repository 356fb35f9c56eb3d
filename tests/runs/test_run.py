"""A run end to end on embedded data: the record, its determinism, joint training and the ablation."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strongreplay import metrics
from strongreplay.data import datasets
from strongreplay.errors import ConfigError
from strongreplay.protocol import Terms
from strongreplay.runs.config import resolve
from strongreplay.runs.machine import source_commit
from strongreplay.runs.run import StoppedRun, find_device, run
from strongreplay.storage.records import RunRecord
from strongreplay.training.events import Listener, Position, RunInfo, Scores

QUICK = {"train.epochs": 2}


def quick(
    method: str = "ser", seed: int = 0, stream: str = "split-digits", settings: dict[str, Any] | None = None
) -> RunRecord:
    return run(
        resolve(stream, method, None if method in ("sgd", "joint") else 50, seed, QUICK | (settings or {}))
    )


def test_a_record_holds_everything() -> None:
    record = quick()
    assert record.scenarios == ["class-il", "task-il"]
    for setting in record.scenarios:
        held = record.results["accuracy"][setting]
        matrix = metrics.as_matrix(held["matrix"])
        assert matrix.shape == (5, 5)
        for row in range(5):  # tested up to one task ahead
            assert [value is not None for value in held["matrix"][row]] == [
                task <= row + 1 for task in range(5)
            ]
        assert held["average_accuracy"] == metrics.average_accuracy(matrix)
        assert held["forgetting"] == metrics.forgetting(matrix)
        assert held["forgetting_reference"] >= max(0, held["forgetting"])
        assert held["backward_transfer"] == metrics.backward_transfer(matrix)
        untrained = metrics.as_matrix([held["untrained"]])[0]
        assert held["forward_transfer"] == metrics.forward_transfer(matrix, untrained)
    assert len(record.results["terms"]) == 5
    assert [list(epoch) for epoch in record.results["terms"][0]] == [["current"]] * 2
    assert list(record.results["terms"][1][0]) == ["current", "replay", "backward", "forward"]
    for phase in ("data", "train", "evaluate"):
        assert record.measured["phases"][phase]["seconds"] > 0
        assert record.measured["phases"][phase]["peak_memory_bytes"] > 1e6
    assert record.measured["versions"].keys() >= {"strongreplay", "python", "torch", "numpy"}
    assert record.measured["hardware"].keys() >= {"processor", "instructions", "cores", "threads", "device"}
    assert record.config["seed"] == 0
    json.loads(record.to_json())


@pytest.mark.slow
def test_same_seed_same_results_twice_in_a_process_and_in_another_other_seed_others() -> None:
    first, again, other = quick(seed=1), quick(seed=1), quick(seed=2)
    assert json.dumps(first.results) == json.dumps(again.results)
    assert first.results != other.results
    code = (
        "import json, torch; from test_run import quick;"
        f"torch.set_num_threads({first.measured['hardware']['threads']});"
        "print(json.dumps(quick(seed=1).results))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    ).stdout
    assert printed.strip() == json.dumps(first.results)


@pytest.mark.slow
def test_a_whole_run_leaves_the_global_generators_alone() -> None:
    quick(stream="rotated-digits")  # libraries that are imported on the way may draw once
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index]
    quick(stream="rotated-digits")
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert np.array_equal(before[2], np.random.get_state()[1])  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["permuted-digits", "rotated-digits"])
def test_domain_il_has_one_setting_and_all_classes(stream: str) -> None:
    record = quick(stream=stream)
    assert record.scenarios == ["domain-il"]
    assert record.score("domain-il", "average_accuracy") is not None


@pytest.mark.slow
def test_joint_training_is_one_row_far_above_fine_tuning() -> None:
    joint, sgd = quick("joint"), quick("sgd")
    assert len(joint.matrix("class-il")) == 1
    assert joint.score("class-il", "forgetting") is None
    best, worst = (r.score("class-il", "average_accuracy") for r in (joint, sgd))
    assert best is not None
    assert worst is not None
    assert best > 85
    assert worst < 30


def test_task_il_is_never_below_class_il() -> None:
    record = quick()
    for class_row, task_row in zip(record.matrix("class-il"), record.matrix("task-il"), strict=True):
        assert all(
            c <= t for c, t in zip(class_row, task_row, strict=True) if c is not None and t is not None
        )


@pytest.mark.slow
def test_the_terms_of_ser_add_up_in_class_il() -> None:
    """CE < + replay < + backward, + forward and both, on average over seeds.

    With memory 50 each step is worth three deviations of a seed; with 20 one, which rounding may turn.
    """
    rows = [
        ("current",),
        ("current", "replay"),
        ("current", "replay", "backward"),
        ("current", "replay", "forward"),
    ]
    rows.append(("current", "replay", "backward", "forward"))
    means = []
    for terms in rows:
        scores = [
            run(resolve("split-digits", "ser", 50, seed, {"method.terms": terms})).score(
                "class-il", "average_accuracy"
            )
            for seed in range(2)
        ]
        means.append(sum(score or 0 for score in scores) / 2)
    plain, replay, backward, forward, both = means
    assert plain < replay < min(backward, forward)
    assert both >= max(backward, forward) - 1.0  # within seed noise of the better one


@pytest.mark.slow
def test_answers_among_all_classes_are_never_better_than_among_seen_ones() -> None:
    seen, everything = quick(), quick(settings={"eval.candidates": "all"})
    assert seen.matrix("class-il")[-1] == everything.matrix("class-il")[-1]
    assert all(
        a >= b
        for first, second in zip(seen.matrix("class-il"), everything.matrix("class-il"), strict=True)
        for a, b in zip(first, second, strict=True)
        if a is not None and b is not None
    )


def test_validation_never_reads_the_test_split() -> None:
    record = quick(settings={"data.validation": 0.2})
    train, _ = datasets.load("digits", datasets.default_folder())
    first_two = int((train.labels < 2).sum())
    accuracy = record.matrix("class-il")[0][0]
    assert accuracy is not None
    assert (accuracy * round(0.2 * first_two) / 100) % 1 == pytest.approx(0, abs=1e-6)


@pytest.mark.slow
def test_the_first_tasks_alone_are_the_beginning_of_the_whole() -> None:
    whole, beginning = quick(), quick(settings={"data.tasks": 2})
    assert [row[:2] for row in whole.matrix("class-il")[:2]] == beginning.matrix("class-il")
    assert beginning.score("class-il", "forgetting") is not None
    with pytest.raises(ConfigError, match=r"data.tasks must be 1 to 5 for this stream, got 9"):
        quick(settings={"data.tasks": 9})


def test_a_diverging_run_stops_and_keeps_what_it_had() -> None:
    with pytest.raises(StoppedRun, match=r"task \d, epoch \d, step \d+: the loss term '\w+' is") as caught:
        quick(settings={"train.lr": 50})
    partial = caught.value.record
    assert partial.config["train"]["lr"] == 50
    assert "phases" in partial.measured


def test_a_listener_hears_of_every_step_and_task() -> None:
    class Diary(Listener):
        def __init__(self) -> None:
            self.steps, self.total, self.rows = 0, 0, list[int]()

        def on_start(self, run: RunInfo) -> None:
            self.total = run.num_steps

        def on_step(self, position: Position, terms: Terms) -> None:
            self.steps += 1

        def on_task(self, index: int, scores: Scores) -> None:
            self.rows.append(index)

    diary = Diary()
    run(resolve("split-digits", "sgd", settings=QUICK), listeners=[diary])
    assert diary.rows == [0, 1, 2, 3, 4]
    assert (
        abs(diary.steps - diary.total) <= 5 * 2
    )  # class sizes differ a little; the estimate is of the first task


@pytest.mark.slow
def test_every_net_of_a_method_is_in_the_record() -> None:
    def of(net: str) -> RunRecord:
        return run(resolve("split-digits", "clser", 20, settings=QUICK | {"method.eval_net": net}))

    stable, working = of("stable"), of("working")
    assert list(stable.nets) == ["stable", "plastic", "working"]
    assert stable.nets == working.nets
    for record, net in ((stable, "stable"), (working, "working")):
        assert record.results["accuracy"] == record.nets[net]
    assert stable.results["accuracy"] != working.results["accuracy"]


def test_a_long_first_task_and_kept_momentum() -> None:
    made = list[int]()

    class Diary(Listener):
        def on_step(self, position: Position, terms: Terms) -> None:
            made.append(position.epoch)

    settings = QUICK | {"train.epochs": 1, "train.first_epochs": 3, "train.momentum": 0.9}
    fresh = run(resolve("split-digits", "sgd", settings=settings), listeners=[Diary()])
    assert sorted(set(made)) == [0, 1, 2]
    assert [len(terms) for terms in fresh.results["terms"]] == [3, 1, 1, 1, 1]
    kept = run(resolve("split-digits", "sgd", settings=settings | {"train.keep_momentum": True}))
    assert kept.results["terms"][0] == fresh.results["terms"][0]
    assert kept.results["terms"][1] != fresh.results["terms"][1]


def test_devices() -> None:
    assert find_device("cpu").type == "cpu"
    assert find_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(ConfigError, match=r"device 'abacus' is not available; this machine has .*cpu"):
        find_device("abacus")


def test_a_record_names_the_commit_of_the_code(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert source_commit(tmp_path) == {}, "not a clone"
    git("init", "--quiet")
    for name in ("src/code.py", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    git("tag", "v9")
    commit = git("rev-parse", "--short=12", "HEAD")
    assert source_commit(tmp_path) == {"commit": commit}
    (tmp_path / "README.md").write_text("2\n")
    assert source_commit(tmp_path) == {"commit": commit}, "what decides no result"
    (tmp_path / "src/code.py").write_text("2\n")
    assert source_commit(tmp_path) == {"commit": f"{commit}-dirty"}
