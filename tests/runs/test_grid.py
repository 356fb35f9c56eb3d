"""Many runs at a time: recorded ones are skipped, a failing one is alone, a stop keeps states."""

import os
import signal
import time
from pathlib import Path

import pytest

from strongreplay.runs.config import RunConfig, resolve
from strongreplay.runs.estimate import num_steps, plain_step, seconds, trial_of
from strongreplay.runs.grid import Grid, Job, RunOptions, missing, name_of, run_recorded
from strongreplay.runs.run import Watcher, state_folder
from strongreplay.storage.checkpoints import folders_with_state
from strongreplay.storage.records import read_record, record_path


def config(method: str = "ser", seed: int = 0, settings: dict[str, float] | None = None) -> RunConfig:
    size = None if method == "sgd" else 50
    return resolve("split-digits", method, size, seed, {"train.epochs": 1} | (settings or {}))


@pytest.fixture
def session(tmp_path: Path) -> RunOptions:
    return RunOptions(tmp_path / "out", tmp_path / "data", "cpu")


def go(grid: Grid) -> list[Job]:
    return list(grid.go(lambda: False, lambda running: None))


def test_runs_in_processes_leave_the_records_of_runs_here(session: RunOptions, tmp_path: Path) -> None:
    configs = [config(seed=seed) for seed in (0, 1)]
    most: list[int] = []
    jobs = list(
        Grid(configs, session, num_jobs=2).go(lambda: False, lambda running: most.append(len(running)))
    )
    assert [job.ended and job.ended[0] for job in jobs] == ["recorded", "recorded"]
    assert max(most) == 2
    here = run_recorded(configs[0], RunOptions(tmp_path / "here", tmp_path, "cpu"), Watcher())
    there = read_record(record_path(session.out, configs[0].to_dict()))
    assert there.results == here.results
    assert there.measured["hardware"]["threads"] == max(1, (os.cpu_count() or 1) // 2)
    assert missing(configs, session.out) == ([], [])


def test_a_failing_run_is_told_and_the_rest_go_on(session: RunOptions) -> None:
    bad, good = config("sgd", settings={"train.lr": 1e30}), config("sgd")
    jobs = go(Grid([bad, good], session, threads=1))
    ends = {name_of(job.config) if job.config is good else "bad": job.ended for job in jobs}
    assert ends["bad"] is not None
    assert ends["bad"][0] == "failed"
    assert "loss term" in ends["bad"][1]
    assert (ends[name_of(good)] or ("", ""))[0] == "recorded"


def test_a_killed_process_is_a_failed_run(session: RunOptions) -> None:
    grid = Grid([config(settings={"train.epochs": 500})], session, threads=1)
    killed: list[int] = []

    def kill(running: list[Job]) -> None:
        if running and running[0].done and not killed:
            killed.append(running[0].worker.process.pid or 0)
            os.kill(killed[0], signal.SIGKILL)

    jobs = list(grid.go(lambda: False, kill))
    assert killed
    assert [job.ended for job in jobs] == [("failed", "its process ended with code -9 and said nothing")]


def test_a_stop_keeps_states_and_starts_nothing_more(session: RunOptions) -> None:
    long = [config(seed=seed, settings={"train.epochs": 500}) for seed in range(3)]
    seen: list[Job] = []
    began = time.monotonic()

    def wants_stop() -> bool:
        assert time.monotonic() - began < 120
        return any(job.done for job in seen)

    grid = Grid(long, session, threads=1)
    jobs = list(grid.go(wants_stop, lambda running: seen.extend(running)))
    assert [job.ended and job.ended[0] for job in jobs] == ["stopped"]
    assert folders_with_state(session.out) == [state_folder(session.out, long[0])]
    assert len(missing(long, session.out)[0]) == 3


def test_damaged_records_are_named_and_made_again(session: RunOptions) -> None:
    one = config("sgd")
    path = record_path(session.out, one.to_dict())
    path.parent.mkdir(parents=True)
    path.write_text("{")
    absent, problems = missing([one], session.out)
    assert absent == [one]
    assert len(problems) == 1
    assert str(path) in problems[0]
    assert (go(Grid(absent, session, threads=1))[0].ended or ("", ""))[0] == "recorded"
    assert missing([one], session.out) == ([], [])


def test_estimates_count_the_steps_of_a_run() -> None:
    mnist = resolve("p-mnist", "er", 200)
    assert num_steps(mnist) == 20 * 469
    assert num_steps(resolve("seq-mnist", "er", 200, settings={"train.batch_size": 10})) == 5 * 1200
    assert num_steps(resolve("p-mnist", "joint")) == 9375
    assert plain_step(trial_of(mnist)) > 0
    assert seconds(mnist) == pytest.approx(2 * seconds(resolve("p-mnist", "sgd")))


def test_a_trial_step_is_short_however_large_the_batch() -> None:
    whole, part = ("mlp", None, (1, 28, 28), 10, 10**9), ("mlp", None, (1, 28, 28), 10, 100)
    assert plain_step(whole) > plain_step(part)  # 3 terabytes of images, if they were made
