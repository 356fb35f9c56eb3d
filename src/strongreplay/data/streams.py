"""Streams: how a dataset becomes a sequence of tasks. A new stream is one row of STREAMS.

Protocol of the SER paper and of the code behind its tables: natural class order, the whole training set,
one transform a task for both of its splits, no identity task. All transforms are drawn when the stream is
built, from the run's seed; the images themselves are made when a task is asked for, so transformed copies
never pile up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from strongreplay.data import datasets
from strongreplay.data.views import crop_flip, normalise, scale
from strongreplay.errors import ConfigError, DataError, unknown
from strongreplay.protocol import Split, Task, View, derive_generator

Scenario = Literal["class-il", "domain-il"]
Part = Literal["train", "test"]
ViewMaker = Callable[[torch.Generator], View]


@dataclass(frozen=True, slots=True)
class Stream:
    """A sequence of tasks, built one at a time."""

    scenario: Scenario
    task_classes: tuple[tuple[int, ...], ...]
    input_shape: tuple[int, ...]
    make: Callable[[int, Part], Split]
    train_view: ViewMaker = lambda generator: scale
    test_view: View = scale
    head_size: int | None = None  # where a net needs more outputs than the tasks have classes

    @property
    def num_classes(self) -> int:
        return self.head_size or 1 + max(max(classes) for classes in self.task_classes)

    def __len__(self) -> int:
        return len(self.task_classes)

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(f"task {index} of a stream of {len(self)} tasks")
        return Task(index, self.task_classes[index], self.make(index, "train"), self.make(index, "test"))

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))

    def test(self, index: int) -> Split:
        """The test split of one task, without building its training split."""
        return self.make(index, "test")


def check_labels(split: Split, num_classes: int, where: str) -> None:
    """Labels must be columns of the head."""
    if len(split) == 0:
        raise DataError(f"{where}: the split is empty; give at least one sample")
    low, high = int(split.labels.min()), int(split.labels.max())
    if low < 0 or high >= num_classes:
        raise DataError(
            f"{where}: labels must lie in 0..{num_classes - 1}, got {low}..{high}; "
            "renumber them or raise num_classes"
        )


def split_by_class(train: Split, test: Split, num_classes: int, num_tasks: int) -> Stream:
    """Class-IL: task t holds the t-th run of equally many classes, in their natural order."""
    if num_tasks < 1 or num_classes % num_tasks:
        fitting = [str(n) for n in range(1, num_classes + 1) if num_classes % n == 0]
        allowed = ", ".join(fitting[:-1]) + " or " + fitting[-1]
        raise ConfigError(
            f"split_by_class: {num_classes} classes do not divide into {num_tasks} tasks; use {allowed}"
        )
    share = num_classes // num_tasks
    splits = {"train": train, "test": test}
    for part, split in splits.items():
        check_labels(split, num_classes, f"split_by_class: {part}")

    def make(index: int, part: Part) -> Split:
        split = splits[part]
        rows = torch.nonzero(split.labels.div(share, rounding_mode="floor") == index).flatten()
        return split.take(rows)

    classes = tuple(tuple(range(t * share, (t + 1) * share)) for t in range(num_tasks))
    return Stream("class-il", classes, tuple(train.inputs.shape[1:]), make)


def remap_pixels(train: Split, test: Split, num_classes: int, maps: Tensor) -> Stream:
    """Domain-IL: task t shows every image through row t of a table of pixel sources, (T, P); -1 is black."""
    for part, split in (("train", train), ("test", test)):
        check_labels(split, num_classes, f"remap_pixels: {part}")
    by_pixel = test.inputs.flatten(1).t().contiguous()  # (P, N)

    def make(index: int, part: Part) -> Split:
        sources = maps[index]
        if part == "test":
            # Test images are read whole, in order and often; gathering rows is 30 times quicker than columns.
            pixels = by_pixel.index_select(0, sources.clamp(min=0))
            pixels[sources < 0] = 0
            return Split(pixels.t().view(test.inputs.shape), test.labels)
        # numpy's take along rows is 3 times quicker than index_select for single bytes.
        taken = np.take(train.inputs.flatten(1).numpy(), sources.clamp(min=0).numpy(), axis=1)
        taken[:, (sources < 0).numpy()] = 0
        return Split(torch.from_numpy(taken).view(train.inputs.shape), train.labels)

    classes = tuple(range(num_classes))
    return Stream("domain-il", (classes,) * len(maps), tuple(train.inputs.shape[1:]), make)


def permutation_maps(height: int, width: int, num_tasks: int, generator: torch.Generator) -> Tensor:
    """One uniform permutation of all pixels a task."""
    return torch.stack([torch.randperm(height * width, generator=generator) for _ in range(num_tasks)])


def rotation_map(height: int, width: int, angle: float) -> Tensor:
    """Where each pixel comes from when Pillow rotates by `angle` degrees with nearest-neighbour sampling."""
    from PIL import Image

    numbered = np.arange(1, height * width + 1, dtype=np.int32).reshape(height, width)
    # Rotating the numbers themselves makes Pillow answer, once, for every image of the split.
    rotated = Image.fromarray(numbered).rotate(angle, resample=Image.Resampling.NEAREST)
    return torch.from_numpy(np.array(rotated, dtype=np.int64)).flatten() - 1


def rotation_angles(num_tasks: int, generator: torch.Generator) -> list[float]:
    """One angle a task, uniform in [0, 180) degrees."""
    angles: list[float] = (180 * torch.rand(num_tasks, dtype=torch.float64, generator=generator)).tolist()
    return angles


def rotation_maps(height: int, width: int, num_tasks: int, generator: torch.Generator) -> Tensor:
    return torch.stack(
        [rotation_map(height, width, angle) for angle in rotation_angles(num_tasks, generator)]
    )


def accumulate(stream: Stream) -> Stream:
    """Joint training: one task that holds the training data of all; its test split is the union too."""

    def make(index: int, part: Part) -> Split:
        splits = [stream.make(task, part) for task in range(len(stream))]
        inputs, labels = [s.inputs for s in splits], [s.labels for s in splits]
        return Split(torch.cat(inputs), torch.cat(labels))

    classes = tuple(sorted({label for classes in stream.task_classes for label in classes}))
    return replace(stream, task_classes=(classes,), make=make)


def first_tasks(stream: Stream, count: int) -> Stream:
    """The stream's beginning, for a head that has all of its classes."""
    if not 1 <= count <= len(stream):
        raise ConfigError(f"data.tasks must be 1 to {len(stream)} for this stream, got {count}")
    return replace(stream, task_classes=stream.task_classes[:count], head_size=stream.num_classes)


def hold_out(stream: Stream, fraction: float, seed: int = 0) -> Stream:
    """For tuning: a random part of each training split takes the place of the test split."""

    def make(index: int, part: Part) -> Split:
        train = stream.make(index, "train")
        order = torch.randperm(len(train), generator=derive_generator(seed, f"hold-out {index}"))
        cut = round(fraction * len(train))
        return train.take(order[:cut] if part == "test" else order[cut:].sort().values)

    return replace(stream, make=make)


TaskMaker = Callable[[Split, Split, int, int, torch.Generator], Stream]


def by_class(
    train: Split, test: Split, num_classes: int, num_tasks: int, generator: torch.Generator
) -> Stream:
    return split_by_class(train, test, num_classes, num_tasks)


def permuted(
    train: Split, test: Split, num_classes: int, num_tasks: int, generator: torch.Generator
) -> Stream:
    height, width = train.inputs.shape[-2:]
    return remap_pixels(train, test, num_classes, permutation_maps(height, width, num_tasks, generator))


def rotated(
    train: Split, test: Split, num_classes: int, num_tasks: int, generator: torch.Generator
) -> Stream:
    height, width = train.inputs.shape[-2:]
    return remap_pixels(train, test, num_classes, rotation_maps(height, width, num_tasks, generator))


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One stream of the table: dataset, how it becomes tasks, and the net it is published with."""

    dataset: str
    make_tasks: TaskMaker
    num_tasks: int
    net: str

    @property
    def scenario(self) -> Scenario:
        return "class-il" if self.make_tasks is by_class else "domain-il"

    @property
    def about(self) -> str:
        num_classes = datasets.DATASETS[self.dataset].num_classes
        share = num_classes // self.num_tasks if self.scenario == "class-il" else num_classes
        kind = (
            "Class-IL and Task-IL"
            if self.scenario == "class-il"
            else f"Domain-IL, {self.make_tasks.__name__}"
        )
        return f"{self.dataset}, {self.num_tasks} tasks x {share} classes, {kind}, {self.net}"


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """How a dataset's images are shown to a net; the default leaves pixels in [0, 1] and augments nothing."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    pad: int = 0


PREPROCESSING: dict[str, Preprocessing] = {
    "cifar10": Preprocessing((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615), 4),
    "cifar100": Preprocessing((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), 4),
    "tinyimagenet": Preprocessing((0.4802, 0.4480, 0.3975), (0.2770, 0.2691, 0.2821), 4),
}

STREAMS: dict[str, StreamRow] = {
    "split-digits": StreamRow("digits", by_class, 5, "mlp"),
    "permuted-digits": StreamRow("digits", permuted, 5, "mlp"),
    "rotated-digits": StreamRow("digits", rotated, 5, "mlp"),
    "seq-mnist": StreamRow("mnist", by_class, 5, "mlp"),
    "seq-fashion-mnist": StreamRow("fashion-mnist", by_class, 5, "mlp"),
    "p-mnist": StreamRow("mnist", permuted, 20, "mlp"),
    "r-mnist": StreamRow("mnist", rotated, 20, "mlp"),
    "seq-cifar10": StreamRow("cifar10", by_class, 5, "resnet18"),
    "seq-cifar100-5": StreamRow("cifar100", by_class, 5, "resnet18"),
    "seq-cifar100-10": StreamRow("cifar100", by_class, 10, "resnet18"),
    "seq-cifar100-20": StreamRow("cifar100", by_class, 20, "resnet18"),
    "seq-tinyimagenet": StreamRow("tinyimagenet", by_class, 10, "resnet18"),
}


def build_stream(
    name: str, seed: int = 0, folder: Path | None = None, progress: datasets.OnProgress | None = None
) -> Stream:
    """The named stream, transforms drawn from `seed`, data read from `folder` (default: the cache folder)."""
    if name not in STREAMS:
        raise unknown("stream", name, STREAMS, "See: ser list streams")
    row = STREAMS[name]
    train, test = datasets.load(row.dataset, folder or datasets.default_folder(), progress)
    num_classes = datasets.DATASETS[row.dataset].num_classes
    stream = row.make_tasks(train, test, num_classes, row.num_tasks, derive_generator(seed, "transforms"))
    preprocessing = PREPROCESSING.get(row.dataset, Preprocessing())
    test_view = normalise(preprocessing.mean, preprocessing.std) if preprocessing.mean else scale
    return replace(
        stream, test_view=test_view, train_view=partial(make_train_view, test_view, preprocessing.pad)
    )


def make_train_view(plain: View, pad: int, generator: torch.Generator) -> View:
    """Crop and flip on raw pixels, then the plain view; nothing but the plain view where pad is 0."""
    if pad == 0:
        return plain
    return lambda images: plain(crop_flip(images, pad, generator))
