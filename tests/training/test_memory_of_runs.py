"""Runs one after another in a process leave nothing behind, and a record's peak memory is its own run's."""

import json
import subprocess
import sys

import pytest

SEEDS = """
import gc, json, os
import torch
from strongreplay.runs.config import resolve
from strongreplay.runs.run import run

gc.disable()  # so that only what no cycle holds is freed
torch.set_num_threads(1)
settings = {"train.epochs": 1, "data.tasks": 2, "net.width": 1500, "train.batch_size": 200}
resident, peaks = [], []
for seed in range(6):
    record = run(resolve("split-digits", "ser", 200, seed, settings))
    with open("/proc/self/statm") as file:
        resident.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    peaks.append(record.measured["phases"]["train"]["peak_memory_bytes"])
print(json.dumps([resident, peaks]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident size from /proc")
def test_six_seeds_in_one_process_take_no_more_memory_than_the_second() -> None:
    done = subprocess.run([sys.executable, "-c", SEEDS], capture_output=True, text=True, check=True)
    resident, peaks = json.loads(done.stdout)
    assert max(resident[2:]) <= 1.05 * resident[1], resident  # the first one loads libraries
    assert max(peaks[2:]) <= 1.05 * peaks[1], peaks
