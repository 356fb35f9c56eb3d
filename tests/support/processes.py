"""Work in other processes, which may be killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from glob import glob  # unlike rglob, it passes over hidden folders, where checkpoints are being written
from pathlib import Path

SER = [sys.executable, "-m", "strongreplay"]


def kill_at_first_checkpoint(folder: Path, out: str, *words: str) -> None:
    """`ser` with these words in a process that SIGKILL ends as soon as one of its checkpoints is written."""
    process = subprocess.Popen(
        [*SER, *words, "-o", out], cwd=folder, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while (
        not glob(f"{out}/**/manifest.json", root_dir=folder, recursive=True) and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert list((folder / out).rglob("*.state"))
    assert not list((folder / out).rglob("seed-*.json"))


def in_a_process(work: Callable[[], object], kill_after: float | None = None) -> int:
    """The exit code of a forked process, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
