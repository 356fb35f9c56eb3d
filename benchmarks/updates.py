"""Update a small kept model again and again: do time and disk per update stay the same?

    python benchmarks/updates.py --updates 300

Every update learns 40 new samples of the digits. Prints CPU time and disk by blocks of updates, and fails if
the last block takes more than 1.3 times the second one, in which old versions are pruned already.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from strongreplay.data.datasets import load
from strongreplay.models.learn import LearnRequest, learn

CPU = torch.device("cpu")
SETTINGS = {"net.name": "mlp", "net.width": 16, "train.epochs": 1, "learner.memory": 100}
MOST = 1.3  # times the first block


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def update_often(state: Path, updates: int) -> list[tuple[float, int]]:
    """CPU seconds and bytes on disk after each update."""
    split, chance, measured = load("digits", Path())[0], np.random.default_rng(0), []
    for number in range(updates):
        rows = chance.integers(0, len(split.labels), 40)
        data = (split.inputs[rows, 0].numpy(), split.labels[rows].tolist())
        began = time.process_time()
        learn(state, LearnRequest(data, settings={} if number else SETTINGS, accept=True), CPU)
        measured.append((time.process_time() - began, bytes_in(state)))
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--block", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        measured = update_often(Path(folder, "model"), options.updates)
    blocks = [measured[at : at + options.block] for at in range(0, len(measured), options.block)]
    medians = [tuple(map(statistics.median, zip(*block, strict=True))) for block in blocks]
    for number, (seconds, size) in enumerate(medians):
        first, last = number * options.block + 1, min((number + 1) * options.block, len(measured))
        print(
            f"updates {first:4} to {last:4}: {1000 * seconds:6.1f} ms of CPU, {size / 1000:8.1f} kB on disk"
        )
    early, late = medians[1], medians[-1]
    ratios = [after / before for before, after in zip(early, late, strict=True)]
    print(f"last block / second block: {ratios[0]:.2f} of the time, {ratios[1]:.2f} of the disk")
    if max(ratios) > MOST:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
