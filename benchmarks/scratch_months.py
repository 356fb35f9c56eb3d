"""Months of CIFAR-100 learnt from scratch: a kept classifier compared with retraining on everything.

    python benchmarks/scratch_months.py DATA OUT.jsonl --months choose --seeds 0 1
    python benchmarks/scratch_months.py DATA OUT.jsonl --months first second --seeds 0 1 2 3 4
    python benchmarks/scratch_months.py DATA OUT.jsonl --table

Five months of four classes, of unequal size; `cifar10` has months of two. `choose` is judged by training
images that no month has, the others by test images: settings are chosen on `choose` alone. Each finished
trial is a line of OUT.jsonl; the same command goes on where it was stopped. `retrain` learns all months at
once, with the same net and epochs.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from strongreplay.data.datasets import load
from strongreplay.learner import Learner
from strongreplay.protocol import Split, derive_generator

MONTHS = {
    "choose": range(20),
    "first": range(40, 60),
    "second": range(60, 80),
    "cifar10": range(10),
}  # classes
SIZES = (1.0, 0.5, 1.0, 0.75, 0.5)  # of the months, as parts of --images
OLD: dict[str, Any] = {
    "memory": 500,
    "learner.sampling": None,
    "learner.correction": None,
    "train.schedule": None,
    "method.average": None,
}
PLAIN: dict[str, Any] = {"learner.correction": None, "train.schedule": None, "method.average": None}
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "retrain": {},
    "before": OLD,
    "balanced": PLAIN,
    "cosine": PLAIN | {"train.schedule": "cosine"},
    "correction": PLAIN | {"learner.correction": 3},
    "correction, average": PLAIN | {"learner.correction": 3, "method.average": 0.99},
    "correction 10": PLAIN | {"learner.correction": 10},
    "cosine, correction": PLAIN | {"train.schedule": "cosine", "learner.correction": 3},
    "cosine, correction, average": {
        "train.schedule": "cosine", "learner.correction": 3, "method.average": 0.99
    },
    "not averaged": {"method.average": None},
    "retrain, not averaged": {"method.average": None},
    "weaker consistency, not averaged": {
        "method.average": None, "method.alpha": 0.1, "method.beta": 0.1
    },
    "reserve 0": {"learner.reserve": 0},
    "fixed head": {"classes": True},
    "fixed head, not averaged": {"classes": True, "method.average": None},
}  # fmt: skip


def take(split: Split, label: int, first: int, count: int) -> Tensor:
    return (split.labels == label).nonzero().flatten()[first : first + count]


def make_months(train: Split, test: Split, name: str, seed: int, images: int) -> tuple[list[Split], Split]:
    """The months, and the samples that judge. The seed also shuffles the classes."""
    order = torch.randperm(len(MONTHS[name]), generator=derive_generator(seed, "months")).tolist()
    classes = [MONTHS[name][place] for place in order]
    months, each = [], len(classes) // len(SIZES)
    for number, size in enumerate(SIZES):
        of_month = classes[each * number : each * (number + 1)]
        rows = [take(train, label, 0, int(images * size)) for label in of_month]
        months.append(train.take(torch.cat(rows)))
    source, first = (train, 400) if name == "choose" else (test, 0)
    return months, source.take(torch.cat([take(source, label, first, 100) for label in classes]))


def learn_months(kind: str, months: list[Split], judge: Split, seed: int, options: Any) -> dict[str, Any]:
    settings = {"net.width": options.width} | KINDS[kind]
    given = {key: settings.pop(key) for key in ("memory", "classes") if key in settings}
    if given.get("classes"):
        given["classes"] = sorted({label for month in months for label in month.labels.tolist()})
    learner = Learner(
        options.net, epochs=options.epochs, val=0, seed=seed, device="cpu", settings=settings, **given
    )
    if kind.startswith("retrain"):
        joined = months[0]
        for month in months[1:]:
            joined = joined.joined(month)
        months = [joined]
    began, cpu = time.perf_counter(), time.process_time()
    for month in months:
        learner.learn(month.inputs, month.labels)
    spent = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
    right = torch.from_numpy(learner.predict(judge.inputs)) == judge.labels
    by_class = {
        int(label): float(right[judge.labels == label].float().mean()) for label in judge.labels.unique()
    }
    return {"accuracy": 100 * float(right.float().mean()), "by_class": by_class, **spent}


def key_of(trial: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(trial[key] for key in ("kind", "months", "seed", "net", "width", "epochs", "images"))


def print_table(trials: list[dict[str, Any]]) -> None:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for trial in trials:
        groups.setdefault((trial["months"], trial["kind"]), []).append(trial)
    print("| months | kind | seeds | accuracy | deviation | CPU seconds |\n|---|---|---|---|---|---|")
    for (months, kind), found in groups.items():
        scores = [trial["accuracy"] for trial in found]
        spread = stdev(scores) if len(scores) > 1 else 0.0
        seconds = mean(trial["cpu_seconds"] for trial in found)
        print(f"| {months} | {kind} | {len(found)} | {mean(scores):.1f} | {spread:.1f} | {seconds:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--months", nargs="+", choices=MONTHS, default=["choose"])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--images", type=int, default=80, help="of each class in the largest months")
    parser.add_argument("--net", default="cnn")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--table", action="store_true", help="only print the table of finished trials")
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    trials = [json.loads(line) for line in lines]
    if options.table:
        print_table(trials)
        return
    torch.set_num_threads(1)
    sets = {"cifar10" if name == "cifar10" else "cifar100" for name in options.months}
    loaded = {name: load(name, options.data) for name in sets}
    done = {key_of(trial) for trial in trials}
    about = {key: getattr(options, key) for key in ("net", "width", "epochs", "images")}
    for seed in options.seeds:
        for name in options.months:
            train, test = loaded.get(name) or loaded["cifar100"]
            months, judge = make_months(train, test, name, seed, options.images)
            for kind in options.kinds:
                trial = {"kind": kind, "months": name, "seed": seed, **about}
                if key_of(trial) in done:
                    continue
                trial |= learn_months(kind, months, judge, seed, options)
                with options.out.open("a") as file:
                    file.write(json.dumps(trial) + "\n")
                print(f"{name}, seed {seed}, {kind}: {trial['accuracy']:.1f} %", flush=True)


if __name__ == "__main__":
    main()
