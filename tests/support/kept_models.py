"""Small models in folders, learnt from real digits: versions, a refused update and a stopped one."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from strongreplay.cli import main
from strongreplay.data.datasets import load
from strongreplay.models.learn import LearnOutcome, LearnRequest, learn
from strongreplay.testing.device import StopAfter
from strongreplay.training.events import Listener
from strongreplay.training.trainer import Interrupted

NAMES = ("zero", "one", "two", "three", "four", "five")
QUICK = {"net.name": "mlp", "net.width": 16, "train.epochs": 2, "train.lr": 0.03, "train.batch_size": 16}
SIDE = 20
CPU = torch.device("cpu")
Pixels = NDArray[np.uint8]


@cache
def digits() -> tuple[Pixels, NDArray[np.int64]]:
    """Enlarged, over noise: no two rows of pixels are alike."""
    train, _ = load("digits", Path())
    draws, images = np.random.default_rng(0), []
    for pixels in train.inputs[:, 0].numpy():
        large = np.asarray(Image.fromarray(pixels).resize((SIDE, SIDE)))
        images.append((large // 2 + draws.integers(0, 100, large.shape)).astype(np.uint8))
    return np.stack(images), train.labels.numpy()


def some_digits(classes: Sequence[int], start: int, count: int) -> tuple[Pixels, list[int]]:
    """`count` of each class, after the first `start` of it."""
    images, labels = digits()
    rows = [np.flatnonzero(labels == number)[start : start + count] for number in classes]
    return images[np.concatenate(rows)], [number for number in classes for _ in range(count)]


def write_folder(folder: Path, classes: Sequence[int], start: int, count: int) -> Path:
    """Class folders of PNG files, named by class and number: zero/photo-zero-0.png."""
    images, labels = some_digits(classes, start, count)
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / NAMES[label] / f"photo-{NAMES[label]}-{start + number % count}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


def teach(state: Path, data: object, listeners: Sequence[Listener] = (), **how: Any) -> LearnOutcome:
    settings = {} if (state / "current").exists() else QUICK
    return learn(
        state,
        LearnRequest(data, settings=settings | how.pop("settings", {}), **how),
        CPU,
        listeners,
    )


def stop_in_the_middle(state: Path, data: object, **how: Any) -> None:
    with pytest.raises(Interrupted):
        teach(state, data, [StopAfter(2)], **how)


def make_model(folder: Path, settings: dict[str, Any] | None = None) -> Path:
    """In `folder/model`: v1 of zero and one, v2 of two and more of one, a candidate, a stopped update."""
    given = {"learner.memory": 40, "learner.val": 0.2} | (settings or {})
    state = folder / "model"
    teach(state, write_folder(folder / "january", (0, 1), 0, 20), settings=given)
    assert teach(state, write_folder(folder / "february", (1, 2), 30, 20), max_drop=200.0).version
    refused = teach(state, write_folder(folder / "march", (3,), 0, 20), max_drop=-200.0, level=1.0)
    assert refused.version is None
    stop_in_the_middle(state, write_folder(folder / "april", (4,), 0, 20))
    return state


class Said:
    """What a command printed, and its exit code."""

    def __init__(self, out: str, err: str, code: int) -> None:
        self.out, self.err, self.code = out, err, code
        self.lines = [" ".join(line.split()) for line in out.splitlines()]


def ser(*words: object) -> Said:
    """A command as the shell would call it, in this process."""
    out, err, before = StringIO(), StringIO(), sys.argv
    sys.argv = ["ser", *map(str, words)]
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as caught:
            main()  # any other exception would be a traceback
    finally:
        sys.argv = before
    return Said(out.getvalue(), err.getvalue(), int(caught.value.code or 0))
