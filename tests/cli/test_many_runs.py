"""Options of commands that make many runs: parts of a grid, devices, what is told of a failure."""

import subprocess
from pathlib import Path

import pytest
import torch
from support.commands import Ser
from support.processes import SER

from strongreplay.cli.many_runs import GridOptions, parse_shard
from strongreplay.errors import ConfigError
from strongreplay.runs.config import resolve
from strongreplay.runs.grid import Job, explain_failure
from strongreplay.runs.jobs import free_device
from strongreplay.storage.records import read_folder


@pytest.mark.parametrize("count", [1, 3, 7, 20])
def test_parts_are_disjoint_and_make_up_the_whole(count: int) -> None:
    runs = list(range(17))
    parts = [GridOptions(shard=parse_shard(f"{k}/{count}")).part_of(runs) for k in range(1, count + 1)]
    assert sorted(number for part in parts for number in part) == runs
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/", "a/b", "-1/3", "1/2/3"])
def test_a_wrong_part_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--shard takes K/N"):
        parse_shard(text)


@pytest.mark.slow
def test_three_processes_share_a_grid_like_a_job_array(tmp_path: Path) -> None:
    """The same command in three processes, as on three nodes with a shared folder."""
    words = ["run", "split-digits", "-m", "sgd,er", "--memory", "20", "--seeds", "2", "--threads", "1"]
    words += ["--set", "train.epochs=1", "--set", "data.tasks=1", "--device", "cpu", "-o", str(tmp_path)]
    array = [
        subprocess.Popen([*SER, *words, "--shard", f"{number}/3"], stderr=subprocess.PIPE, text=True)
        for number in (1, 2, 3)
    ]
    told = [process.communicate(timeout=300)[1] for process in array]
    assert [process.returncode for process in array] == [0, 0, 0], told
    assert [text.count(": class-il ") for text in told] == [2, 1, 1]
    records, problems = read_folder([tmp_path])
    assert problems == []
    assert sorted((one.method, one.seed) for one in records) == [("er", 0), ("er", 1), ("sgd", 0), ("sgd", 1)]


def test_devices_are_dealt_out_among_the_runs_that_go_on() -> None:
    jobs = [Job.of(resolve("split-digits", "sgd", None, seed)) for seed in range(4)]
    devices, running = ("cuda:0", "cuda:1"), list[Job]()
    for job in jobs[:3]:
        job.device = free_device(devices, running)
        running.append(job)
    assert [job.device for job in running] == ["cuda:0", "cuda:1", "cuda:0"]
    running.remove(jobs[1])
    assert free_device(devices, running) == "cuda:1"


def test_a_device_that_is_not_there_is_refused_before_the_first_run(ser: Ser, tmp_path: Path) -> None:
    if torch.cuda.device_count() > 98:
        pytest.skip("there are so many devices here")
    said = ser("run", "split-digits", "--devices", "cpu,cuda:98", "-o", tmp_path / "out")
    assert said.code == 2
    assert "cuda:98" in said.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            "not enough memory (OutOfMem",
        ),
        (OSError(28, "No space left on device", "out/x"), "No space left on device: 'out/x'"),
        (MemoryError(), "not enough memory"),
    ],
)
def test_a_lack_of_memory_or_disk_is_told(error: Exception, told: str) -> None:
    assert told in (explain_failure(error) or "")
