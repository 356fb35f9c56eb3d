"""ser run with several runs at a time: the same records, and failures told at the end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = ["run", "split-digits", "--set", "train.epochs=1", "--threads", "1", "--device", "cpu"]


def ser(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "strongreplay", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_two_runs_at_a_time_leave_the_records_of_one_at_a_time(tmp_path: Path) -> None:
    words = [*RUN, "-m", "sgd", "--seeds", "2"]
    for jobs in ("1", "2"):
        done = ser(tmp_path, *words, "-o", f"jobs-{jobs}", "--jobs", jobs)
        assert done.returncode == 0, done.stderr
        assert "split-digits sgd seed 1: class-il" in done.stderr
    one, two = (sorted(tmp_path.glob(f"jobs-{jobs}/**/seed-*.json")) for jobs in ("1", "2"))
    assert len(one) == len(two) == 2
    for first, second in zip(one, two, strict=True):
        assert json.loads(first.read_text())["results"] == json.loads(second.read_text())["results"]
    again = ser(tmp_path, *words, "-o", "jobs-2", "--jobs", "2")
    assert again.stderr.count("recorded already, skipped") == 2


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_the_others_are_recorded(tmp_path: Path) -> None:
    done = ser(tmp_path, *RUN, "-m", "sgd,er", "--memory", "20", "--set", "train.lr=1e30")
    assert done.returncode == 1
    assert "split-digits sgd seed 0: failed: stopped at task 1" in " ".join(done.stderr.split())
    assert "error: 2 of 2 runs failed; see above" in done.stderr
    assert "Traceback" not in done.stderr
