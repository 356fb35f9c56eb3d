import subprocess
import sys

import pytest

KEPT = """
import torch
from strongreplay.training.devices import keep_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

def kept():
    before = resident()
    block = torch.ones(30, 2**18)  # 30 megabytes
    assert resident() - before > 25
    del block
    return resident() - before

first = kept()
keep_freed_memory()
print(first, kept())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the setting is one of Linux")
def test_what_a_step_frees_stays_with_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, check=True)
    usual, kept = map(float, done.stdout.split())
    assert usual < 5
    assert kept > 25
