"""The description of machine and code in a record: versions, hardware, commit."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from strongreplay import __version__

CLONE = Path(__file__).resolve().parents[3]  # the git clone of this code, if there is one


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Versions and hardware, for the record."""
    packages = {"strongreplay": __version__, "python": platform.python_version(), "torch": torch.__version__}
    return {
        "versions": packages | {"numpy": np.__version__} | source_commit(),
        "hardware": {
            "system": f"{platform.system()} {platform.machine()}",
            "processor": processor_name(),
            "instructions": torch.backends.cpu.get_cpu_capability(),  # another set rounds differently
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        },
    }


def source_commit(clone: Path = CLONE) -> dict[str, str]:
    """The commit of this code, with `-dirty` if it was changed since; empty if this is not a git clone."""
    if not (clone / ".git").exists():  # an installed package may be inside another project's repository
        return {}
    try:
        commit = ask_git(clone, "rev-parse", "--short=12", "HEAD")
        # Records and README change during runs; results depend only on src.
        changed = ask_git(clone, "status", "--porcelain", "--untracked-files=no", "src")
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": f"{commit}-dirty" if changed else commit}


def ask_git(clone: Path, *words: str) -> str:
    command = ["git", "-C", str(clone), *words]
    found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return found.stdout.strip()


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or sys.platform
