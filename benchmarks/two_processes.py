"""Run a tiny stream in two processes again and again, with the heap checks of the C library on.

    python benchmarks/two_processes.py --rounds 200

Every round is a new `ser run --jobs 2` of two seeds. Prints how many did not end with exit code 0, and what
they said; a process of a run that dies is tried once more, so its message counts too.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HEAP_CHECKS = Path("/lib/x86_64-linux-gnu/libc_malloc_debug.so.0")
WORDS = ["run", "split-digits", "--method", "er", "--memory", "20", "--seeds", "2", "--jobs", "2"]
WORDS += ["--threads", "1", "--device", "cpu", "--set", "train.epochs=1", "--set", "data.tasks=2"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    checks = {"LD_PRELOAD": str(HEAP_CHECKS), "MALLOC_CHECK_": "3", "PYTHONFAULTHANDLER": "1"}
    environment = os.environ | (checks if HEAP_CHECKS.exists() else {})
    bad, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, options.rounds + 1):
            words = [sys.executable, "-m", "strongreplay", *WORDS, "--out", folder]
            ended = subprocess.run(words, env=environment, capture_output=True, text=True)
            records = len(list(Path(folder).rglob("seed-*.json")))
            if ended.returncode or records != 2 or "its process" in ended.stderr:
                bad += 1
                print(f"round {number}: exit code {ended.returncode}, {records} records\n{ended.stderr}")
            shutil.rmtree(folder)
            seconds = time.monotonic() - began
            print(f"{number} rounds, {bad} bad, {seconds / number:.1f} s each", flush=True)
    if bad:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
