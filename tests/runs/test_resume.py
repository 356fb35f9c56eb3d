"""Runs killed at any moment go on to the bit: real processes, real SIGKILL, every method."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.compare import assert_same
from support.processes import in_a_process
from support.steps import auxiliary_for
from torch import Tensor

from strongreplay.errors import ConfigError, RunError
from strongreplay.methods import METHODS, Method
from strongreplay.protocol import Terms
from strongreplay.runs import run as runs
from strongreplay.runs.config import RunConfig, resolve
from strongreplay.runs.run import CheckpointInterval, Interrupted, StoppedRun, run, state_folder
from strongreplay.storage import state
from strongreplay.storage.checkpoints import TENSORS, checkpoints
from strongreplay.storage.records import RunRecord, fingerprint
from strongreplay.storage.state import Tree, read_newest
from strongreplay.training.checkpoints import Checkpoints
from strongreplay.training.events import Listener, Position

SETTINGS = {"data.tasks": 3, "train.epochs": 2, "train.first_epochs": None, "train.batch_size": 64}


def config_for(method: str, **settings: Any) -> RunConfig:
    small = SETTINGS | auxiliary_for(method) | settings
    width = {"lvt": 8, "vit": 8, "mlp": 16}
    net = METHODS[method].net or "mlp"
    small |= {"net.width": width[net]}
    if METHODS[method].has_memory:
        small |= {"method.memory_size": 30}
    for key in ("probe_epochs", "bic_epochs", "anchor_steps"):
        if key in METHODS[method].config.model_fields:
            small |= {f"method.{key}": 3}
    return resolve("split-digits", method, settings=small)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DiesAt(Listener):
    """Takes its process down after a step, or while a task is being judged."""

    def __init__(self, steps: int | None = None, judging: bool = False) -> None:
        self.steps, self.judging, self.seen, self.asked = steps, judging, 0, 0

    def on_step(self, position: Position, terms: Terms) -> None:
        self.seen, self.asked = self.seen + 1, 0
        if self.seen == self.steps:
            die()

    def wants_stop(self) -> bool:
        self.asked += (
            1  # since the last step: once after it, once when the task is learnt, then at each score
        )
        if self.judging and self.asked == 3:
            die()
        return False


def go_on(config: RunConfig, out: Path, listener: Listener | None = None, every: str = "2") -> None:
    listeners = [listener] if listener else []
    record = run(config, out=out, listeners=listeners, checkpoint_every=every, resume=True, keep_state=True)
    (out / "done.json").write_text(json.dumps(record.results))


def final(config: RunConfig, out: Path) -> tuple[Any, Tree]:
    found = read_newest(state_folder(out, config))
    assert found is not None
    tree = {key: value for key, value in found.tree.items() if key not in ("started", "measured")}
    return json.loads((out / "done.json").read_text()), tree


def dies_while_writing(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The process that inherits this ends in the middle of a checkpoint file."""
    real, written = os.write, 0

    def write(handle: int, data: bytes) -> int:
        nonlocal written
        written += 1
        if written == after:
            real(handle, data[: len(data) // 2])
            die()
        return real(handle, data)

    monkeypatch.setattr(os, "write", write)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_killed_goes_on_to_the_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(name)
    go_on(config, tmp_path / "straight")
    out = tmp_path / "killed"
    kills = [DiesAt(steps=3), DiesAt(steps=5), DiesAt(judging=True)]
    if not METHODS[name].on_union:  # there judging comes last
        kills += [DiesAt(steps=3)]
    with monkeypatch.context() as patch:
        dies_while_writing(patch, 5)
        assert in_a_process(lambda: go_on(config, out)) == -signal.SIGKILL
    for listener in kills:
        code = in_a_process(lambda listener=listener: go_on(config, out, listener))  # type: ignore[misc]
        assert code == -signal.SIGKILL
    assert in_a_process(lambda: go_on(config, out)) == 0
    straight, killed = final(config, tmp_path / "straight"), final(config, out)
    assert_same(straight[0], killed[0])
    assert_same(straight[1], killed[1])


@pytest.mark.slow
def test_a_run_in_bfloat16_killed_in_its_second_task_goes_on_to_the_bit(tmp_path: Path) -> None:
    low = config_for("ser", **{"train.precision": "bf16", "data.tasks": 2, "train.epochs": 1})
    out, straight = tmp_path / "killed", tmp_path / "straight"
    go_on(low, straight)
    killed = in_a_process(lambda: go_on(low, out, DiesAt(steps=8)))
    assert killed == -signal.SIGKILL
    go_on(low, out)
    assert_same(final(low, straight), final(low, out))
    exact = run(config_for("ser", **{"data.tasks": 2, "train.epochs": 1}))
    assert exact.results["terms"] != final(low, out)[0]["terms"]


@pytest.mark.slow
def test_ser_survives_25_kills_at_random_moments(tmp_path: Path) -> None:
    config, chance = config_for("ser", **{"train.epochs": 10}), random.Random(0)
    start = time.perf_counter()
    go_on(config, tmp_path / "straight", every="7")
    whole = time.perf_counter() - start
    straight, kills, finished = final(config, tmp_path / "straight"), 0, 0
    while kills < 25 or finished == 0:
        out = tmp_path / f"killed-{finished}"
        last_chance = whole / 4 if kills < 25 else None
        wait = None if last_chance is None else chance.uniform(0.01, last_chance)
        code = in_a_process(lambda out=out: go_on(config, out, every="7"), kill_after=wait)  # type: ignore[misc]
        kills += code == -signal.SIGKILL
        if code == 0:
            killed = final(config, out)
            assert_same(straight[0], killed[0])
            assert_same(straight[1]["method"], killed[1]["method"])
            finished += 1


def test_asked_to_stop_while_the_untrained_net_is_judged_it_does(tmp_path: Path) -> None:
    class Hurried(Listener):
        def wants_stop(self) -> bool:
            return True

    config = config_for("ser")
    with pytest.raises(Interrupted, match="stopped before the first step; its state is kept"):
        run(config, out=tmp_path, listeners=[Hurried()])
    assert run(config, out=tmp_path, resume=True).results == run(config).results


def test_asked_to_stop_it_keeps_its_state_and_says_where(tmp_path: Path) -> None:
    class Impatient(Listener):
        steps = 0

        def on_step(self, position: Position, terms: Terms) -> None:
            self.steps += 1

        def wants_stop(self) -> bool:
            return self.steps == 8

    config = config_for("ser")
    with pytest.raises(
        Interrupted, match=r"stopped after step 8 of \d+; its state is kept in .*seed-0.state"
    ):
        run(config, out=tmp_path / "stopped", listeners=[Impatient()])  # no interval: it is kept all the same
    told = list[str]()

    class Told(Listener):
        def on_message(self, text: str) -> None:
            told.append(text)

    resumed = run(config, out=tmp_path / "stopped", listeners=[Told()], resume=True)
    assert told[0].startswith("resuming after step 8, task 1")
    assert resumed.results == run(config).results


def test_resume_alone_means_the_folder_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_for("sgd")
    assert in_a_process(lambda: go_on(config, Path("runs"), DiesAt(steps=5))) == -signal.SIGKILL
    found = read_newest(state_folder(Path("runs"), config))
    assert found is not None
    assert run(config, resume=True).measured["started"] == found.tree["started"]  # it is the same run


def test_a_run_without_a_folder_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(config_for("sgd"))
    assert not list(tmp_path.iterdir())


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path) -> None:
    config = config_for("derpp")
    assert in_a_process(lambda: go_on(config, tmp_path, DiesAt(steps=9))) == -signal.SIGKILL
    newest, before = checkpoints(state_folder(tmp_path, config))
    file = newest / TENSORS
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    told = list[str]()

    class Told(Listener):
        def on_message(self, text: str) -> None:
            told.append(text)

    record = run(config, out=tmp_path, resume=True, listeners=[Told()])
    assert "SHA-256 does not fit" in told[0]
    assert str(before) in told[1]
    assert record.results == run(config).results


def test_numbers_that_are_none_stop_a_run_and_the_last_finite_state_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, make = list[Method](), runs.make_method

    def make_and_show(*arguments: Any) -> Method:
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(runs, "make_method", make_and_show)

    class Poison(Listener):
        """Stands for a broken chip: weights turn into not-a-number in the middle of an epoch."""

        steps = 0

        def on_step(self, position: Position, terms: Terms) -> None:
            self.steps += 1
            if self.steps == 7:
                with torch.no_grad():
                    next(made[0].net.parameters()).fill_(float("nan"))

    config = config_for("er", **{"train.epochs": 4})
    with pytest.raises(StoppedRun, match=r"finite.*The last checkpoint with finite numbers: .*state-0"):
        run(config, out=tmp_path, checkpoint_every="2", listeners=[Poison()])
    found = read_newest(state_folder(tmp_path, config))
    assert found is not None
    assert found.manifest["step"] == 6
    assert all(torch.isfinite(v).all() for v in found.tree["method"].values() if isinstance(v, Tensor))


def test_the_same_run_twice_at_a_time_is_refused_with_the_owner_named(tmp_path: Path) -> None:
    config = config_for("sgd")
    from strongreplay.storage.lock import locked

    with (
        locked(state_folder(tmp_path, config)),
        pytest.raises(RunError, match=rf"process {os.getpid()} on \S+, since .* is at work here"),
    ):
        run(config, out=tmp_path)
    assert isinstance(run(config, out=tmp_path), RunRecord)  # and free again


@pytest.mark.slow
def test_a_dead_owner_holds_no_lock(tmp_path: Path) -> None:
    config = config_for("sgd")
    assert in_a_process(lambda: go_on(config, tmp_path, DiesAt(steps=2))) == -signal.SIGKILL
    assert (state_folder(tmp_path, config) / "lock").exists()
    assert in_a_process(lambda: go_on(config, tmp_path)) == 0


def test_a_state_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    config = config_for("sgd")
    place, own = state_folder(tmp_path, config), {"config_hash": fingerprint(config.to_dict()), "step": 1}
    state.write_checkpoint(place, {"method": {}}, {"config_hash": "another"})
    with pytest.raises(RunError, match=r"state-000001: belongs to another configuration than"):
        run(config, out=tmp_path, resume=True)
    shutil.rmtree(place)
    state.write_checkpoint(place, {"method": {"net.body.1.weight": torch.ones(3)}}, own)
    with pytest.raises(RunError, match=r"state-000001: does not fit this run .*; remove .*seed-0.state"):
        run(config, out=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("text", "every"),
    [
        ("5m", CheckpointInterval(seconds=300)),
        ("90s", CheckpointInterval(seconds=90)),
        ("0.5h", CheckpointInterval(seconds=1800)),
        ("20", CheckpointInterval(steps=20)),
    ],
)
def test_intervals(text: str, every: CheckpointInterval) -> None:
    assert CheckpointInterval.parse(text) == every


@pytest.mark.parametrize("text", ["", "m", "-5m", "0", "1.5", "soon", "infs", "nanm"])
def test_intervals_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--checkpoint-every takes 5m, 90s, 2h or a number of steps"):
        CheckpointInterval.parse(text)


@pytest.mark.parametrize(
    ("steps_total", "kept_at"),
    [(1000, [300, 600, 900]), (500, [])],  # at a second a step
)
def test_long_runs_are_kept_every_five_minutes_without_being_told(
    steps_total: int, kept_at: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, written = [0.0], list[int]()
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    checkpoints = Checkpoints(tmp_path)
    for step in range(1, steps_total):
        clock[0] = float(step)
        if checkpoints.is_due(step, steps_total):
            checkpoints.write({}, {"step": step})
            written.append(step)
    assert written == kept_at
