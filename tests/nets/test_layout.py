"""No net writes outside its own memory, whatever its width, the image size and the batch size.

A wrong write ends the process, so the nets are trained in a child process, with the heap checks of the C
library where it has them. `python tests/nets/test_layout.py` trains every width from 4 to 64, with
larger maps.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strongreplay.nets import NETS

HEAP_CHECKS = Path("/lib/x86_64-linux-gnu/libc_malloc_debug.so.0")
WIDTHS: dict[str, tuple[int, ...]] = {"mlp": (64,), "cnn": (4, 9, 16), "lvt": (16,), "vit": (8,)}
OF_RESNET = (4, 8, 9, 15, 16, 20)
MOST_NUMBERS = 2**17  # in the first maps of a batch; larger ones take minutes and use the same kernels

CHILD = """
import sys
import torch
from strongreplay.nets import build_net
torch.set_num_threads(1)
most = int(sys.argv[1])
for name, width in (case.split() for case in sys.argv[2:]):
    print(name, width, flush=True)
    for side in (8, 16, 28, 32, 64, 128):
        net = build_net(name, (3, side, side), 10, torch.Generator().manual_seed(0), width=int(width))
        for batch_size in (1 if side > 8 else 2, 7, 32, 128):  # batch norm needs two values a channel
            if batch_size > 2 and batch_size * side * side * int(width) > most:
                break
            for _ in range(2):
                net.zero_grad()
                net(torch.rand(batch_size, 3, side, side)).square().sum().backward()
print("finished")
"""


def train_nets(cases: list[str], most: int) -> None:
    checks = {"LD_PRELOAD": str(HEAP_CHECKS), "MALLOC_CHECK_": "3"} if HEAP_CHECKS.exists() else {}
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, str(most), *cases],
        env=dict(os.environ) | checks,
        capture_output=True,
        text=True,
    )
    told = ended.stdout.split("\n")[-2:-1]
    assert told == ["finished"], f"{told}: exit code {ended.returncode}: {ended.stderr[-500:]}"


@pytest.mark.slow
def test_training_stays_within_its_memory() -> None:
    nets = [name for name, row in NETS.items() if "width" in row.options]
    train_nets([f"{name} {width}" for name in nets for width in WIDTHS.get(name, OF_RESNET)], MOST_NUMBERS)


if __name__ == "__main__":
    for net in NETS:
        for width in range(4, 65):
            train_nets([f"{net} {width}"], 2**21)
            print(f"{net}, width {width}: no fault", flush=True)
