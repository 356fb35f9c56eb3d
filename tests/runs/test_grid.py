"""Many runs at a time: recorded ones are skipped, a failing one is alone, a stop keeps states."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes import ForkedSer

from strongreplay.runs.config import RunConfig, resolve
from strongreplay.runs.estimate import num_steps, plain_step, seconds, trial_of
from strongreplay.runs.grid import Grid, Job, RunOptions, sort_out
from strongreplay.runs.jobs import always
from strongreplay.runs.run import run, state_folder
from strongreplay.runs.workers import WorkerPool, exit_reason
from strongreplay.storage.checkpoints import folders_with_state
from strongreplay.storage.records import read_record, record_path


def config(method: str = "ser", seed: int = 0, settings: dict[str, float] | None = None) -> RunConfig:
    size = None if method == "sgd" else 50
    return resolve("split-digits", method, size, seed, {"train.epochs": 1} | (settings or {}))


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    return RunOptions(tmp_path / "out", tmp_path / "data", "cpu")


class Diary:
    """Writes down what a grid reports."""

    def __init__(self, stop_when: Callable[[list[Job]], bool] = lambda running: False) -> None:
        self.most, self.messages, self.stopping, self.stop_when = 0, list[str](), False, stop_when

    def on_tick(self, running: list[Job]) -> None:
        self.most = max(self.most, len(running))
        self.stopping = self.stopping or self.stop_when(running)

    def on_message(self, name: str, text: str) -> None:
        self.messages.append(f"{name}: {text}")

    def wants_stop(self) -> bool:
        return self.stopping


def go(configs: list[RunConfig], options: RunOptions, diary: Diary | None = None, **how: Any) -> list[Job]:
    return list(Grid([Job.of(one) for one in configs], options, **how).go(diary or Diary()))


def ends(jobs: list[Job]) -> list[str]:
    return [job.ended[0] for job in jobs if job.ended]


@pytest.mark.slow
def test_runs_in_processes_leave_the_records_of_runs_here(options: RunOptions, tmp_path: Path) -> None:
    configs, diary, here = [config(seed=seed) for seed in (0, 1)], Diary(), tmp_path / "here"
    pool = WorkerPool(options, 2, None, ("cpu",), always)
    assert ends(list(pool.go([Job.of(one) for one in configs], diary))) == ["recorded", "recorded"]
    assert [worker.process.exitcode for worker in pool.idle] == [0, 0]
    assert diary.most == 2
    assert ends(go(configs, RunOptions(here, tmp_path, "cpu"), threads=1)) == ["recorded", "recorded"]
    for one in configs:
        there = read_record(record_path(options.out, one.to_dict()))
        assert there.results == read_record(record_path(here, one.to_dict())).results
        assert there.measured["hardware"]["threads"] == max(1, (os.cpu_count() or 1) // 2)
    recorded, absent, problems = sort_out(configs, options.out)
    assert (ends(recorded), absent, problems) == (["skipped", "skipped"], [], [])


@pytest.mark.slow
@pytest.mark.parametrize("num_jobs", [1, 2])
def test_a_failing_run_is_told_and_the_rest_go_on(num_jobs: int, options: RunOptions) -> None:
    bad, good = config("sgd", settings={"train.lr": 1e30}), config("sgd")
    jobs = {id(job.config): job.ended or ("", "") for job in go([bad, good], options, num_jobs=num_jobs)}
    assert jobs[id(bad)][0] == "failed"
    assert "loss term" in jobs[id(bad)][1]
    assert jobs[id(good)][0] == "recorded"


def kill_when(done: Callable[[Job], bool], times: int) -> Callable[[list[Job]], bool]:
    """Kills the process of a job that is so far, so many times."""
    killed: list[int] = []

    def kill(running: list[Job]) -> bool:
        job = running[0] if running else None
        if job and job.worker and done(job) and len(killed) < times and job.attempts > len(killed):
            killed.append(job.worker.process.pid or 0)
            os.kill(killed[-1], signal.SIGKILL)
        return False

    return kill


@pytest.mark.slow
def test_a_run_whose_process_is_killed_is_tried_again_from_its_checkpoint(options: RunOptions) -> None:
    often = replace(options, checkpoint_every="5")
    long, diary = config(settings={"train.epochs": 15}), Diary(kill_when(lambda job: job.done > 20, 1))
    assert ends(go([long], often, diary, num_jobs=2, threads=1)) == ["recorded"]
    assert "ended by SIGKILL" in diary.messages[0]
    assert "resuming after step" in diary.messages[1]
    found = read_record(record_path(options.out, long.to_dict()))
    torch.set_num_threads(1)
    assert found.results == run(long).results


@pytest.mark.slow
def test_a_run_whose_process_is_killed_twice_has_failed(options: RunOptions) -> None:
    diary = Diary(kill_when(lambda job: job.done > 0, 2))
    jobs = go([config(settings={"train.epochs": 500})], options, diary, num_jobs=2, threads=1)
    assert ends(jobs) == ["failed"]
    assert "ended by SIGKILL" in (jobs[0].ended or ("", ""))[1]


@pytest.mark.slow
@pytest.mark.parametrize("num_jobs", [1, 2])
def test_a_stop_keeps_states_and_starts_nothing_more(num_jobs: int, options: RunOptions) -> None:
    long = [config(seed=seed, settings={"train.epochs": 500}) for seed in range(3)]
    diary = Diary(lambda running: all(job.done for job in running) and len(running) == num_jobs)
    jobs = go(long, options, diary, num_jobs=num_jobs, threads=1)
    assert ends(jobs) == ["stopped"] * num_jobs
    assert folders_with_state(options.out) == sorted(
        state_folder(options.out, one) for one in long[:num_jobs]
    )
    assert len(sort_out(long, options.out)[1]) == 3


def test_damaged_records_are_named_and_made_again(options: RunOptions) -> None:
    one = config("sgd")
    path = record_path(options.out, one.to_dict())
    path.parent.mkdir(parents=True)
    path.write_text("{")
    recorded, absent, problems = sort_out([one], options.out)
    assert (recorded, [job.config for job in absent], len(problems)) == ([], [one], 1)
    assert str(path) in problems[0]
    assert ends(go([one], options)) == ["recorded"]
    assert len(sort_out([one], options.out)[0]) == 1


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (3, "exit code 3"),
        (-9, "SIGKILL; a system that is out of memory"),
        (-11, "SIGSEGV"),
        (-90, "signal 90"),
    ],
)
def test_the_reason_of_a_death_is_told(code: int, reason: str) -> None:
    assert reason in exit_reason(code)


def test_estimates_count_the_steps_of_a_run() -> None:
    mnist = resolve("p-mnist", "er", 200)
    assert num_steps(mnist) == 20 * 469
    assert num_steps(resolve("seq-mnist", "er", 200, settings={"train.batch_size": 10})) == 5 * 1200
    assert num_steps(resolve("p-mnist", "joint")) == 9375
    assert plain_step(trial_of(mnist)) > 0
    assert seconds(mnist) == pytest.approx(2 * seconds(resolve("p-mnist", "sgd")))


@pytest.mark.slow
def test_a_trial_step_is_short_however_large_the_batch() -> None:
    whole, part = ("mlp", None, (1, 28, 28), 10, 10**9), ("mlp", None, (1, 28, 28), 10, 100)
    assert plain_step(whole) > plain_step(part)  # 3 terabytes of images, if they were made


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


SLOW = """
import os
import time
from pathlib import Path
from strongreplay.methods.er import ER
class Slow(ER):
    def observe(self, batch, optimizer):
        Path(__file__).with_name(f"{os.getpid()}.pid").touch()
        time.sleep(60)
        return super().observe(batch, optimizer)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="children are read from /proc")
def test_processes_that_still_import_end_with_their_parent(tmp_path: Path) -> None:
    parent = ForkedSer(tmp_path, "run", "split-digits", "-m", "sgd", "--seeds", "2", "--jobs", "2")
    children, deadline = Path(f"/proc/{parent.pid}/task/{parent.pid}/children"), time.monotonic() + 120
    while len(started := children.read_text().split()) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    killed = time.monotonic()
    assert len(started) >= 2
    while any(is_running(int(pid)) for pid in started):
        assert time.monotonic() - killed < 5
        time.sleep(0.05)


@pytest.mark.slow
def test_processes_end_within_five_seconds_of_their_parent(tmp_path: Path) -> None:
    """Even in the middle of a long step, where they send nothing."""
    (tmp_path / "slow.py").write_text(SLOW)
    words = ["run", "split-digits", "-m", "slow.py:Slow", "--memory", "50", "--seeds", "2", "--jobs", "2"]
    parent = ForkedSer(tmp_path, *words, "--device", "cpu", "--threads", "1")
    deadline = time.monotonic() + 120
    while len(started := list(tmp_path.glob("*.pid"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    children, killed = [int(path.stem) for path in started], time.monotonic()
    assert len(children) == 2
    while any(map(is_running, children)):
        assert time.monotonic() - killed < 5
        time.sleep(0.05)
