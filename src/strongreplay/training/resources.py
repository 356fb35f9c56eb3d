"""Seconds and peak memory of each phase of a run. Without an accelerator, torch is not imported."""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak() -> bool:
    """Reset the peak; False if the system has only one for the whole process."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """The largest resident size since the last reset, or since the process began."""
    try:
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Meter:
    """Total time and maximum memory of each phase."""

    def __init__(self) -> None:
        self.phases: dict[str, dict[str, Any]] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        entry = self.phases.setdefault(phase, {"seconds": 0.0, "peak_memory_bytes": 0})
        own_peak = reset_peak()
        start = time.perf_counter()
        try:
            yield
        finally:
            entry["seconds"] += time.perf_counter() - start
            entry["peak_memory_bytes"] = max(entry["peak_memory_bytes"], peak_bytes())
            entry["peak_is_of_phase"] = own_peak
