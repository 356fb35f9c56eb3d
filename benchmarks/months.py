"""Photos that arrive month by month: CIFAR-100 as folders of JPEG files, enlarged, a few new classes a month.

    python benchmarks/months.py DATA_FOLDER --months 5 --classes 4 --kinds slda,ncm,ser,er,sgd --out FILE.json

Every month is learnt by `ser learn` in a process of its own, as a user does it, and the state is tested on
test images of all classes so far. A class has 200 to 400 training images, drawn from the seed; `slda` is the
default on photos. Prints a line a month: accuracy, seconds with reading and features, bytes of the state,
peak memory of the process.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from strongreplay.data.datasets import load
from strongreplay.protocol import Split
from strongreplay.runs.machine import describe_machine

KINDS: dict[str, list[str]] = {
    "slda": [],
    "ncm": ["--method", "ncm"],
    "ser": ["--method", "ser"],
    "er": ["--method", "er"],
    "sgd": ["--method", "sgd"],
}


def write_photos(split: Split, folder: Path, label: int, name: str, count: int, side: int) -> None:
    (folder / name).mkdir(parents=True)
    for row in (split.labels == label).nonzero().flatten()[:count].tolist():
        picture = Image.fromarray(split.inputs[row].numpy().transpose(1, 2, 0))
        picture.resize((side, side), Image.Resampling.BICUBIC).save(
            folder / name / f"{row:05d}.jpg", quality=92
        )


def run_ser(*arguments: object) -> tuple[str, int]:
    """Standard output of the command, and its peak memory in bytes."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "strongreplay", *map(str, arguments)]
    process = os.posix_spawn(
        command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, writing, 1)]
    )
    os.close(writing)
    with open(reading) as file:
        text = file.read()
    _, status, usage = os.wait4(process, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(command)} ended with {code}\n{text}")
    return text, usage.ru_maxrss * 1024


def keep(kind: str, folder: Path, months: int, threads: int) -> list[dict[str, Any]]:
    state, rows = folder / f"state-{kind}", []
    for month in range(months):
        chosen = KINDS[kind] if month == 0 else []
        began = time.perf_counter()
        data = folder / f"month-{month}"
        _, memory = run_ser("learn", state, "--data", data, "--accept", "--threads", threads, *chosen)
        seconds = time.perf_counter() - began
        tests = folder / f"test-{month}"
        told, _ = run_ser(
            "evaluate", state, "--data", tests, "--against", "none", "--json", "--threads", threads
        )
        size = sum(path.stat().st_size for path in state.rglob("*") if path.is_file())
        rows.append(
            {
                "kind": kind,
                "month": month + 1,
                "accuracy": json.loads(told)["accuracy"],
                "seconds": seconds,
                "state_bytes": size,
                "peak_bytes": memory,
            }
        )
        sys.stdout.write(
            f"{kind:5} month {month + 1}: {rows[-1]['accuracy']:.1f} %, {seconds:.0f} s, "
            f"state {size / 1e6:.0f} MB, peak {memory / 2**20:.0f} MiB\n"
        )
        sys.stdout.flush()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    for name, usual in (("months", 5), ("classes", 4), ("side", 160), ("tests", 100), ("first", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    train, test = load("cifar100", given.data)
    draws = np.random.default_rng(given.seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for month in range(given.months):
            classes = range(given.first + month * given.classes, given.first + (month + 1) * given.classes)
            for label in classes:
                count = int(draws.integers(200, 401))
                write_photos(train, folder / f"month-{month}", label, f"class-{label}", count, given.side)
                for later in range(month, given.months):
                    write_photos(
                        test, folder / f"test-{later}", label, f"class-{label}", given.tests, given.side
                    )
        rows = [
            row for kind in given.kinds.split(",") for row in keep(kind, folder, given.months, given.threads)
        ]
    if given.out:
        given.out.write_text(
            json.dumps({"machine": describe_machine(torch.device("cpu")), "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
