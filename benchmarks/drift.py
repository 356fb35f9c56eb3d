"""How well drift is found on CIFAR-100: a class that was kept out, and a darkened copy of known classes.

    python benchmarks/drift.py FOLDER --data DATA [--seeds 3] [--net efficientnet-lite0 --side 128 --each 60]

A model learns ten classes. Its threshold is chosen on its held-out samples for 5 % false alarms. Then test
images of the known classes, ten other classes one by one, and darkened copies of the known ones are scored.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from strongreplay.data.datasets import load
from strongreplay.models.drift import LIMIT, Collector, Kind, Reference, load_reference
from strongreplay.models.learn import LearnRequest, learn
from strongreplay.models.model import Model
from strongreplay.models.store import Store
from strongreplay.protocol import Split

CPU = torch.device("cpu")
NUM_KNOWN, NUM_OTHERS, DARK = 10, 10, (0.5, 0.25)
BAG = 50  # images that arrive together
KINDS: tuple[Kind, ...] = ("energy", "features")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--each", type=int, default=300, help="training images of a class")
    parser.add_argument("--net", default="cnn", help="cnn, or efficientnet-lite0 with slda")
    parser.add_argument("--side", type=int, default=160, help="pixels of the images for a backbone")
    parser.add_argument("--tests", type=int, default=50, help="test images of a class")
    parser.add_argument("--epochs", type=int, default=15)
    given = parser.parse_args()
    torch.set_num_threads(1)
    train, test = load("cifar100", given.data)
    side = 32 if given.net == "cnn" else given.side
    rows: dict[tuple[str, str], list[Tensor]] = {}
    for seed in range(given.seeds):
        order = np.random.default_rng(seed).permutation(100).tolist()
        known, others = order[:NUM_KNOWN], order[NUM_KNOWN : NUM_KNOWN + NUM_OTHERS]
        state = given.folder / f"seed-{seed}"
        if not (state / "current").exists():
            images, labels = pick(train, known, given.each)
            teach(state, enlarge(images, side), labels, settings_of(given.net, given.epochs, seed))
        references = [load_reference(Store(state), None, CPU, kind=kind) for kind in KINDS]
        for name, images in arrivals(test, known, others, given.tests):
            stored = references[0][1].stored(enlarge(images, side))  # a backbone is asked once
            for kind, (_, model, reference) in zip(KINDS, references, strict=True):
                rows.setdefault((kind, name), []).append(flagged(model, reference, stored))
    print(f"| score | samples | flagged (smallest to largest set) | sets of {BAG} over the limit |")
    print("|---|---|---|---|")
    for (score, name), found in sorted(rows.items(), key=lambda row: KINDS.index(row[0][0])):
        shares = [100 * float(one.double().mean()) for one in found]
        bags = [float(bag.double().mean()) > LIMIT for one in found for bag in one.split(BAG)]
        spread = f"{np.mean(shares):.1f} % ({min(shares):.0f} to {max(shares):.0f})"
        print(f"| {score} | {name} | {spread} | {sum(bags)} of {len(bags)} |")


def settings_of(net: str, epochs: int, seed: int) -> dict[str, object]:
    own: dict[str, object] = {
        "net.name": net,
        "learner.seed": seed,
        "learner.memory": 2000,
        "learner.val": 0.2,
    }
    if net != "cnn":
        return own | {"learner.method": "slda"}
    return own | {"net.width": 32, "train.epochs": epochs, "train.lr": 0.03}


def enlarge(images: Tensor, side: int) -> Tensor:
    if images.shape[-1] == side:
        return images
    return torch.nn.functional.interpolate(images.float(), (side, side), mode="bilinear").round().byte()


def teach(state: Path, images: Tensor, labels: list[int], settings: dict[str, object]) -> None:
    request = LearnRequest((images, labels), settings=settings, side=images.shape[-1], accept=True)
    outcome = learn(state, request, CPU)
    assert outcome.report is not None
    right, count = (sum(row[place] for row in outcome.report.fresh.values()) for place in (0, 1))
    share = 100 * right / count
    print(f"{state.name}: {count} held-out samples, {share:.1f} % right, {outcome.seconds:.0f} s")


def pick(split: Split, classes: Sequence[int], each: int) -> tuple[Tensor, list[int]]:
    chosen = [(split.labels == number).nonzero().flatten()[:each] for number in classes]
    rows = torch.cat(chosen)
    return split.inputs[rows], split.labels[rows].tolist()


def arrivals(test: Split, known: Sequence[int], others: Sequence[int], each: int) -> list[tuple[str, Tensor]]:
    mixed = pick(test, known, each)[0]
    mixed = mixed[torch.randperm(len(mixed), generator=torch.Generator().manual_seed(0))]
    found = [("known classes (false alarms)", mixed)]
    found += [("a class kept out", pick(test, [number], each)[0]) for number in others]
    found += [(f"known classes, darkened to {dark:.0%}", (mixed * dark).to(torch.uint8)) for dark in DARK]
    return found


def flagged(model: Model, reference: Reference, images: Tensor) -> Tensor:
    """(N,) whether each image is unlike."""
    collector = Collector(model, reference)
    collector.add([f"#{row}" for row in range(len(images))], images)
    return collector.finish().scores > reference.threshold


if __name__ == "__main__":
    main()
