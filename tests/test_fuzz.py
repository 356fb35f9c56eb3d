"""A slice of `benchmarks/fuzz.py` with a fixed seed: every reader gets mutated files.

By default it is a fixed number of inputs, a few seconds; STRONGREPLAY_FUZZ_SECONDS makes it longer.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.repository import in_repository

FUZZ = in_repository("benchmarks/fuzz.py")
SECONDS = os.environ.get("STRONGREPLAY_FUZZ_SECONDS")
HOW_MANY = ["--seconds", SECONDS] if SECONDS else ["--inputs", "3000"]


@pytest.mark.slow
def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    counts = tmp_path / "counts.json"
    words = ["--seed", "17", *HOW_MANY, "--json", str(counts)]
    ended = subprocess.run([sys.executable, FUZZ, *words], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
    found = json.loads(counts.read_text())["counts"]
    assert len(found) >= 17
    for reader, ends in found.items():  # each reads some and refuses some, or its inputs are not sensible
        assert ends.get("read", 0) > 0, reader
        assert sum(ends.values()) > 10, reader


@pytest.mark.slow
def test_a_reader_that_breaks_is_found(tmp_path: Path) -> None:
    """Without this, a fuzzer that swallows everything would look like readers without faults."""
    (tmp_path / "broken.py").write_text(
        "import fuzz_readers, os, sys, fuzz\n"
        "def broken(folder, chance):\n"
        "    kind = chance.randrange(20)\n"
        "    if kind == 0: raise IndexError('ours')\n"
        "    if kind == 1: os.abort()\n"
        "    if kind == 2: bytearray(1 << 33)\n"
        "from dataclasses import replace\n"
        "fuzz.READERS['images'] = replace(fuzz.READERS['images'], read=broken)\n"
        "sys.argv[1:] = ['--reader', 'images', '--inputs', '200']\n"
        "fuzz.main()\n"
    )
    path = os.pathsep.join([str(FUZZ.parent), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, tmp_path / "broken.py"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert "200 inputs" in ended.stdout
    for reason in ("IndexError: ours", "SIGABRT", "MemoryError"):
        assert f"x images: {reason}" in ended.stdout or f"ended by {reason}" in ended.stdout
