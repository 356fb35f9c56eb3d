"""A kept classifier on folders of real images: five chunks of two classes each, with text labels.

    python benchmarks/keep.py mnist DATA_FOLDER --seeds 3
    python benchmarks/keep.py cifar10 DATA_FOLDER --seeds 1

Compares SER with a growing head, SER with a head fixed to all classes, and fine-tuning without replay, each
by `Learner.learn` on folders of PNG files. Prints one line per run; `--out` writes all results as JSON.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from strongreplay.data.datasets import load
from strongreplay.learner import Learner
from strongreplay.protocol import Split
from strongreplay.runs.machine import describe_machine

NAMES = {
    "mnist": ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
    "fashion-mnist": [
        "top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "boot",
    ],
    "cifar10": ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],
}
SETTINGS: dict[str, dict[str, Any]] = {
    "mnist": {"epochs": 1},
    "fashion-mnist": {"epochs": 1},
    "cifar10": {"epochs": 2},
}
KINDS: dict[str, dict[str, Any]] = {"ser": {}, "ser, fixed head": {"classes": True}, "sgd": {"method": "sgd"}}


def write_chunks(split: Split, names: list[str], folder: Path) -> list[Path]:
    """Folders of PNG files, two classes in each."""
    chunks = []
    for first in range(0, len(names), 2):
        chunk = folder / f"chunk-{first // 2 + 1}"
        for label in (first, first + 1):
            place = chunk / names[label]
            place.mkdir(parents=True)
            for row in (split.labels == label).nonzero().flatten().tolist():
                pixels = split.inputs[row].numpy()
                Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(
                    place / f"{row:05d}.png", compress_level=1
                )
        chunks.append(chunk)
    return chunks


def keep(chunks: list[Path], tests: list[Path], memory: int, **settings: Any) -> dict[str, Any]:
    """Learn chunk by chunk; the accuracy on each chunk's test folder at the end."""
    learner, began = Learner(memory=memory, device="cpu", **settings), time.perf_counter()
    for chunk in chunks:
        learner.learn(chunk)
    seconds = time.perf_counter() - began
    scores = []
    for test in tests:
        tally = learner.evaluate(test)
        scores.append(
            100 * sum(right for right, _ in tally.values()) / sum(count for _, count in tally.values())
        )
    return {"accuracies": scores, "average_accuracy": float(np.mean(scores)), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", choices=NAMES)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--memory", type=int, default=500)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    names, runs = NAMES[options.dataset], []
    train, test = load(options.dataset, options.data)
    with tempfile.TemporaryDirectory() as folder:
        chunks = write_chunks(train, names, Path(folder, "train"))
        tests = write_chunks(test, names, Path(folder, "test"))
        for kind in options.kinds:
            for seed in range(options.seeds):
                settings = SETTINGS[options.dataset] | KINDS[kind]
                if settings.pop("classes", False):
                    settings["classes"] = names
                found = keep(chunks, tests, options.memory, seed=seed, **settings)
                runs.append({"kind": kind, "seed": seed, **found})
                print(
                    f"{kind}, seed {seed}: {found['average_accuracy']:.2f} % in {found['seconds']:.0f} s",
                    flush=True,
                )
    if options.out:
        about = {"dataset": options.dataset, "memory": options.memory, "settings": SETTINGS[options.dataset]}
        record = about | {"runs": runs, "machine": describe_machine(torch.device("cpu"))}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
