"""Devices: find the device that a user names, and keep freed main memory for the next step."""

import ctypes
import sys
from functools import cache

import torch

from strongreplay.errors import ConfigError

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of <malloc.h>


def find_device(name: str) -> torch.device:
    """The device of that name; 'auto' is the fastest one available. A missing device is a ConfigError."""
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
    """Make this process keep freed memory, so that the next step can use it again.

    The C library of Linux soon returns freed memory to the system, and a step on the CPU then waits for new
    pages (benchmarks/contrast.py measures this). On other systems this function does nothing.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:  # glibc's, not musl's
        mallopt(MMAP_THRESHOLD, 32 << 20)  # the maximum; larger blocks are always mapped separately
        mallopt(TRIM_THRESHOLD, 512 << 20)
