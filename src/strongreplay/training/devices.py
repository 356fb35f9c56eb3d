"""Where tensors live: the device a user names, if it is there, and main memory from step to step."""

import ctypes
import sys
from functools import cache

import torch

from strongreplay.errors import ConfigError

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of <malloc.h>


def find_device(name: str) -> torch.device:
    """'auto' is the best there is; anything else must be there."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if not available.get(device.type, False):
        usable = ", ".join(kind for kind, there in available.items() if there)
        raise ConfigError(f"device '{name}' is not available; this machine has {usable}. Use --device auto")
    return device


@cache
def keep_freed_memory() -> None:
    """What a step frees serves the next one, in this process and from now on.

    The C library of Linux gives freed memory back to the system soon, and a step on the CPU then waits for
    new pages (benchmarks/contrast.py shows how long). Elsewhere nothing happens.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:  # glibc's, not musl's
        mallopt(MMAP_THRESHOLD, 32 << 20)  # the most it takes; larger blocks are got and given back alone
        mallopt(TRIM_THRESHOLD, 512 << 20)
