"""No net writes outside its own memory, whatever its width, the image size and the batch size.

A wrong write ends the process, so each net of each width is trained in a child process, with the heap checks
of the C library where it has them.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strongreplay.nets import NETS

HEAP_CHECKS = Path("/lib/x86_64-linux-gnu/libc_malloc_debug.so.0")
WIDTHS: dict[str, tuple[int, ...]] = {"mlp": (64,), "cnn": (4, 8, 16, 64), "lvt": (16,), "vit": (8,)}
OF_RESNET = (4, 8, 9, 12, 15, 16, 64)
MOST_NUMBERS = 2**18  # in the first maps of a batch; larger ones take minutes and use the same kernels

CHILD = """
import sys
import torch
from strongreplay.nets import build_net
torch.set_num_threads(1)
name, width, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for side in (8, 16, 28, 32, 64, 128):
    net = build_net(name, (3, side, side), 10, torch.Generator().manual_seed(0), width=width)
    for batch_size in (1 if side > 8 else 2, 7, 32, 128):  # batch norm needs two values a channel
        if batch_size > 2 and batch_size * side * side * width > most:
            break
        for _ in range(2):
            net.zero_grad()
            net(torch.rand(batch_size, 3, side, side)).square().sum().backward()
print("finished")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "width"),
    [
        (name, width)
        for name, row in NETS.items()
        if "width" in row.options
        for width in WIDTHS.get(name, OF_RESNET)
    ],
)
def test_training_stays_within_its_memory(name: str, width: int) -> None:
    checks = {"LD_PRELOAD": str(HEAP_CHECKS), "MALLOC_CHECK_": "3"} if HEAP_CHECKS.exists() else {}
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, name, str(width), str(MOST_NUMBERS)],
        env=dict(os.environ) | checks,
        capture_output=True,
        text=True,
    )
    assert ended.stdout == "finished\n", f"exit code {ended.returncode}: {ended.stderr[-500:]}"
