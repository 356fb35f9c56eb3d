"""ser run with several runs at a time: the same records, and failures told at the end."""

import json
from pathlib import Path

import pytest
from support.commands import Ser
from support.processes import run_ser

RUN = ["run", "split-digits", "--set", "train.epochs=1", "--threads", "1", "--device", "cpu"]


@pytest.mark.slow
def test_two_runs_at_a_time_leave_the_records_of_one_at_a_time(tmp_path: Path) -> None:
    words = [*RUN, "-m", "sgd", "--seeds", "2"]
    for jobs in ("1", "2"):
        done = run_ser(tmp_path, *words, "-o", f"jobs-{jobs}", "--jobs", jobs)
        assert done.returncode == 0, done.stderr
        assert "split-digits sgd seed 1: class-il" in done.stderr
    one, two = (sorted(tmp_path.glob(f"jobs-{jobs}/**/seed-*.json")) for jobs in ("1", "2"))
    assert len(one) == len(two) == 2
    for first, second in zip(one, two, strict=True):
        assert json.loads(first.read_text())["results"] == json.loads(second.read_text())["results"]
    again = run_ser(tmp_path, *words, "-o", "jobs-2", "--jobs", "2")
    assert again.stderr.count("recorded already, skipped") == 2


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_the_others_are_recorded(tmp_path: Path) -> None:
    done = run_ser(tmp_path, *RUN, "-m", "sgd,er", "--memory", "20", "--set", "train.lr=1e30")
    assert done.returncode == 1
    assert "split-digits sgd seed 0: failed: stopped at task 1" in " ".join(done.stderr.split())
    assert "error: 2 of 2 runs failed; see above" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_sweep_from_a_file_is_found_again_by_the_file_that_show_prints(ser: Ser, tmp_path: Path) -> None:
    file, out = tmp_path / "runs.toml", tmp_path / "out"
    file.write_text(
        'stream = "split-digits"\nmethod = ["sgd", "ser"]\nmemory = 20\nthreads = 1\ndevice = "cpu"\n'
        f'out = "{out}"\n[set]\ntrain.epochs = 1\ndata.tasks = 1\nser.alpha = [0.3, 0.5]\n'
    )
    done = ser("run", "--config", file)
    assert done.code == 0, done.err
    assert "split-digits ser m20 seed 0 method.alpha=0.3:" in done.err
    records = sorted(out.glob("*/ser-*/seed-0.json"))
    assert len(records) == 2
    for record in records:
        printed = ser("show", record, "--config")
        file.write_text(printed.out)
        found = ser("run", "--config", file, "--out", out)
        assert (found.code, f"recorded already, skipped ({record})" in " ".join(found.err.split())) == (
            0,
            True,
        )
    assert "2 configurations" in ser("show", *records, "--config").err
