"""Work in other processes, which may be killed.

A process that is forked from the tests has PyTorch already; a new one takes more than a second to import it.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from glob import glob  # unlike rglob, it passes over hidden folders, where checkpoints are being written
from pathlib import Path

import strongreplay.__main__ as entry
from strongreplay.cli import main

SER = [sys.executable, "-m", "strongreplay"]


def kill_at_first_checkpoint(folder: Path, out: str, *words: str) -> None:
    """`ser` with these words in a process that SIGKILL ends as soon as one of its checkpoints is written."""
    process = ForkedSer(folder, *words, "-o", out)
    deadline = time.monotonic() + 60
    while (
        not glob(f"{out}/**/manifest.json", root_dir=folder, recursive=True) and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
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


def unnamed_file() -> int:
    file, name = tempfile.mkstemp()
    os.unlink(name)
    return file


class ForkedSer:
    """`ser` in a forked process, in a folder; prints to files, so nothing waits for a reader."""

    def __init__(self, folder: Path | None, *words: str) -> None:
        self.files = [unnamed_file(), unnamed_file()]
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(self.work(folder, words))

    def work(self, folder: Path | None, words: tuple[str, ...]) -> int:
        """The exit code of the command; the same signals and streams as in a new process."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for file, number in zip((os.open(os.devnull, os.O_RDONLY), *self.files), range(3), strict=True):
            os.dup2(file, number)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.argv, sys.modules["__main__"] = ["ser", *words], entry  # what its own processes import
        code: object = 1
        try:
            if folder is not None:
                os.chdir(folder)
            main()
            code = 0
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        return code if isinstance(code, int) else int(code is not None)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self, timeout: float = 120) -> tuple[str, str]:
        """Wait for its end; what it printed on both streams."""
        deadline = time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            if self.returncode is None and time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise TimeoutError(f"ser took more than {timeout} seconds")
            time.sleep(0.005)
        out, err = (os.pread(file, os.fstat(file).st_size, 0).decode() for file in self.files)
        for file in self.files:
            os.close(file)
        return out, err


def run_ser(folder: Path | None, *words: str) -> subprocess.CompletedProcess[str]:
    """`ser` with these words to its end, in a forked process."""
    process = ForkedSer(folder, *words)
    out, err = process.communicate(300)
    assert process.returncode is not None
    return subprocess.CompletedProcess(["ser", *words], process.returncode, out, err)
