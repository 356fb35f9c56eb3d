"""Data larger than memory: a stream of 1.2 GB trains with less than 1.5 GiB of resident memory."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

COUNT, SHAPE, NUM_CLASSES = 100_000, (3, 64, 64), 10
CODE = """
import sys
from pathlib import Path
from strongreplay.data import datasets
datasets.default_folder = lambda: Path(sys.argv[2])
from strongreplay.runs.config import resolve
from strongreplay.runs.run import run
settings = {"train.batch_size": 500, "net.name": "mlp", "net.width": 4, "data.num_tasks": 2}
record = run(resolve(f"npy:{sys.argv[1]}", "er", 50, 0, settings | {"data.test": 0.01}))
print(record.matrix("class-il"))
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(line.split()[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="peak memory is read from /proc")
def test_a_stream_larger_than_memory_trains_in_a_bounded_part_of_it(tmp_path: Path) -> None:
    """VmHWM, the peak of everything resident, pages of mapped files included; a whole epoch over all rows."""
    inputs = np.lib.format.open_memmap(tmp_path / "inputs.npy", "w+", np.uint8, (COUNT, *SHAPE))
    labels = np.arange(COUNT) % NUM_CLASSES
    inputs[:, 0, 0, 0] = labels * 20  # the rest of the file has holes
    inputs.flush()
    del inputs
    np.save(tmp_path / "labels.npy", labels)
    command = [sys.executable, "-c", CODE, str(tmp_path), str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    matrix, peak = done.stdout.splitlines()
    assert matrix.startswith("[[")
    assert int(peak) * 1024 < 1.5 * 2**30
