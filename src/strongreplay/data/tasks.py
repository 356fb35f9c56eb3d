"""Stream: a sequence of tasks, and functions that make one from a train and a test split.

Protocol of the SER paper and of the code for its tables: natural class order, the whole training set, one
transform per task for both of its splits, no identity task. A stream makes the data of a task only on
request, so transformed copies do not accumulate.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate as cumulate
from typing import Literal

import torch

from strongreplay.data.mapped import concatenate
from strongreplay.data.views import scale
from strongreplay.errors import ConfigError, DataError
from strongreplay.protocol import Split, Task, View, derive_generator

Scenario = Literal["class-il", "domain-il"]
Part = Literal["train", "test"]
ViewMaker = Callable[[torch.Generator], View]
ClassOrder = tuple[int | str, ...]
SHUFFLED: ClassOrder = ("shuffled",)


@dataclass(frozen=True, slots=True)
class Stream:
    """A sequence of tasks, built one at a time."""

    scenario: Scenario
    task_classes: tuple[tuple[int, ...], ...]  # used to evaluate each task
    input_shape: tuple[int, ...]
    make: Callable[[int, Part], Split]
    train_view: ViewMaker = lambda generator: scale
    test_view: View = scale
    head_size: int | None = None  # if a net needs more outputs than the tasks have classes
    train_classes: tuple[tuple[int, ...], ...] | None = None  # of the training data, if tasks overlap
    in_order: bool = False  # training data are read in their order, not shuffled
    label_names: tuple[str, ...] | None = None  # of class 0, 1, ..., if the data have names

    def __repr__(self) -> str:
        num_classes = len({label for classes in self.task_classes for label in classes})
        tasks = f"{len(self.task_classes)} tasks, {num_classes} classes"
        return f"Stream({self.scenario}, {tasks}, inputs {self.input_shape})"

    @property
    def num_classes(self) -> int:
        return self.head_size or 1 + max(max(classes) for classes in self.task_classes)

    def __len__(self) -> int:
        return len(self.task_classes)

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(f"task {index} of a stream of {len(self)} tasks")
        classes = (self.train_classes or self.task_classes)[index]
        return Task(index, classes, self.make(index, "train"), self.make(index, "test"), self.in_order)

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))

    def test(self, index: int) -> Split:
        """The test split of one task, without building its training split."""
        return self.make(index, "test")


def check_labels(split: Split, num_classes: int, where: str) -> None:
    """Raise a DataError unless all labels are columns of the head."""
    if len(split) == 0:
        raise DataError(f"{where}: the split is empty; give at least one sample")
    low, high = int(split.labels.min()), int(split.labels.max())
    if low < 0 or high >= num_classes:
        raise DataError(
            f"{where}: labels must lie in 0..{num_classes - 1}, got {low}..{high}; "
            "renumber them or raise num_classes"
        )


def split_by_class(train: Split, test: Split, num_classes: int, num_tasks: int) -> Stream:
    """Class-IL: the classes in natural order, in tasks of equal size."""
    if num_tasks < 1 or num_classes % num_tasks:
        fitting = [str(n) for n in range(1, num_classes + 1) if num_classes % n == 0]
        allowed = ", ".join(fitting[:-1]) + " or " + fitting[-1]
        raise ConfigError(
            f"split_by_class: {num_classes} classes do not divide into {num_tasks} tasks; use {allowed}"
        )
    return split_by_sizes(train, test, (num_classes // num_tasks,) * num_tasks)


def split_by_sizes(
    train: Split, test: Split, sizes: tuple[int, ...], order: tuple[int, ...] | None = None
) -> Stream:
    """Class-IL: tasks with the given numbers of classes, in natural or the given order.

    With an order, label k means the k-th class of it, so the first task always has the labels 0, 1, ...
    """
    num_classes = sum(sizes)
    splits = {"train": train, "test": test}
    for part, split in splits.items():
        check_labels(split, num_classes, f"split_by_class: {part}")
    if order is not None:
        place = torch.tensor(order).argsort()  # position of each class in the order
        splits = {part: replace(split, labels=place[split.labels]) for part, split in splits.items()}
    task_of = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))

    def make(index: int, part: Part) -> Split:
        split = splits[part]
        return split.take(torch.nonzero(task_of[split.labels] == index).flatten())

    ends = list(cumulate(sizes))
    classes = tuple(tuple(range(end - size, end)) for end, size in zip(ends, sizes, strict=True))
    return Stream("class-il", classes, tuple(train.inputs.shape[1:]), make)


def divide(num_classes: int, num_tasks: int | None, first: int | None, step: int | None) -> tuple[int, ...]:
    """How many classes each task has.

    With `first` and `step` (B50-inc10: 50 and 10), the last task has the remaining classes. Otherwise there
    are `num_tasks` tasks of nearly equal size; earlier ones are larger.
    """
    if step is not None:
        begin = step if first is None else first
        if begin > num_classes:
            name = "data.step" if first is None else "data.first"
            raise ConfigError(f"{name} must be at most the {num_classes} classes of the stream, got {begin}")
        rest = num_classes - begin
        return (begin, *(min(step, rest - done) for done in range(0, rest, step)))
    assert num_tasks is not None
    if not 1 <= num_tasks <= num_classes:
        raise ConfigError(
            f"{num_classes} classes cannot be divided into {num_tasks} tasks; use 1 to {num_classes} tasks"
        )
    share, larger = divmod(num_classes, num_tasks)
    return tuple(share + (index < larger) for index in range(num_tasks))


def class_order(
    order: ClassOrder | None, num_classes: int, seed: int, names: tuple[str, ...] | None = None
) -> tuple[int, ...] | None:
    """The class order: None (natural), shuffled by the seed, or as given."""
    if order is None:
        return None
    if order == SHUFFLED:
        drawn = torch.randperm(num_classes, generator=derive_generator(seed, "class order"))
        return tuple(drawn.tolist())
    known = {name: number for number, name in enumerate(names or ())}
    numbers = [entry if isinstance(entry, int) else known.get(entry, -1) for entry in order]
    if sorted(numbers) != list(range(num_classes)):
        what = "names or numbers" if names else "numbers"
        shown = ",".join(map(str, order))
        raise ConfigError(
            f"data.order must be 'shuffled' or the {what} of all {num_classes} classes (0 to "
            f"{num_classes - 1}), each once, got {shown:.80}"
        )
    return tuple(numbers)


def accumulate(stream: Stream) -> Stream:
    """Joint training: one task with the training data of all tasks, and the test data of all."""

    def make(index: int, part: Part) -> Split:
        return join([stream.make(task, part) for task in range(len(stream))])

    classes = tuple(sorted({label for classes in stream.task_classes for label in classes}))
    return replace(stream, task_classes=(classes,), train_classes=None, in_order=False, make=make)


def join(splits: list[Split]) -> Split:
    return Split(concatenate([s.inputs for s in splits]), torch.cat([s.labels for s in splits]))


def first_tasks(stream: Stream, count: int) -> Stream:
    """The first tasks of a stream; the head keeps all classes."""
    check_num_tasks(count, len(stream))
    return replace(stream, task_classes=stream.task_classes[:count], head_size=stream.num_classes)


def check_num_tasks(count: int, num_tasks: int) -> None:
    if not 1 <= count <= num_tasks:
        raise ConfigError(f"data.tasks must be 1 to {num_tasks} for this stream, got {count}")


def check_hold_out(fraction: float, num_samples: int, num_classes: int) -> int:
    """How many samples of a task are held out; an error if that or the rest is fewer than its classes."""
    cut = round(fraction * num_samples)
    if not num_classes <= cut <= num_samples - num_classes:
        raise ConfigError(
            f"data.validation={fraction:g} holds out {cut:,} of the {num_samples:,} samples of a task with "
            f"{num_classes} classes, expected as many as classes, and as many left to learn; try 0.1"
        )
    return cut


def hold_out(stream: Stream, fraction: float, seed: int = 0) -> Stream:
    """For tuning: a random part of each training split replaces the test split."""

    def make(index: int, part: Part) -> Split:
        train = stream.make(index, "train")
        order = torch.randperm(len(train), generator=derive_generator(seed, f"hold-out {index}"))
        cut = check_hold_out(fraction, len(train), len(train.labels.unique()))
        return train.take(order[:cut] if part == "test" else order[cut:].sort().values)

    return replace(stream, make=make)
