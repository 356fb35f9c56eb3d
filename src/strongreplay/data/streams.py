"""STREAMS: the built-in streams, one row each, and `build_stream`, which makes any stream from its name.

A name is a row's name, `folder:PHOTOS`, `csv:FILE`, `npz:FILE` or `npy:FOLDER` for a user's own data, or
`mine.py:my_stream` for a user's own function.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import torch

from strongreplay.data import datasets
from strongreplay.data.custom_streams import call, is_custom, load_function
from strongreplay.data.mixing import mix
from strongreplay.data.tasks import (
    ClassOrder,
    Scenario,
    Stream,
    accumulate,
    check_hold_out,
    check_num_tasks,
    class_order,
    divide,
    first_tasks,
    hold_out,
    split_by_class,
    split_by_sizes,
)
from strongreplay.data.transforms import (
    permutation_maps,
    permuted,
    remap_pixels,
    rotated,
    rotation_angles,
    rotation_map,
    rotation_maps,
)
from strongreplay.data.user_splits import data_hash, is_user_data, open_user_splits
from strongreplay.data.views import check_moments, crop_flip, moments, normalise, normalise_as, scale
from strongreplay.errors import ConfigError, unknown
from strongreplay.extensions import installed
from strongreplay.protocol import Split, View, derive_generator

__all__ = ["STREAMS", "Stream", "StreamInfo", "StreamOptions", "StreamRow", "accumulate", "build_stream"]
__all__ += [
    "describe_stream",
    "first_tasks",
    "hold_out",
    "permutation_maps",
    "remap_pixels",
    "rotation_angles",
    "rotation_map",
]
__all__ += ["rotation_maps", "split_by_class", "split_by_sizes"]

MOMENT_SAMPLES = 10_000  # larger data are subsampled for mean and deviation
SCENARIO_LABELS = {"class-il": "Class-IL and Task-IL", "domain-il": "Domain-IL"}
TaskMaker = Callable[[Split, Split, int, int, torch.Generator], Stream]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Options of any stream; the defaults change nothing."""

    tasks: int | None = None  # only the first tasks
    validation: float = 0.0  # evaluate on this part of the training data
    order: ClassOrder | None = None
    first: int | None = None  # classes of the first task
    step: int | None = None  # classes of every other one
    num_tasks: int | None = None  # number of tasks to divide into
    blurry: float | None = None  # this share of the samples is in other tasks
    boundaries: bool | None = None  # False: tasks overlap in time
    test: float | None = None  # share held out from a user's own data without a test part
    side: int | None = None  # pixels of a user's own images
    mean: tuple[float, ...] | None = None  # of each channel or feature, with std; None: of the data
    std: tuple[float, ...] | None = None


DEFAULT = StreamOptions()


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One stream of the table: its dataset, scenario, number of tasks, and the net it is published with."""

    dataset: str
    scenario: Scenario
    num_tasks: int
    net: str
    make_tasks: TaskMaker | None = None  # None: split by class

    @property
    def about(self) -> str:
        num_classes = datasets.DATASETS[self.dataset].num_classes
        share = num_classes // self.num_tasks if self.scenario == "class-il" else num_classes
        kind = SCENARIO_LABELS[self.scenario] + (f", {self.make_tasks.__name__}" if self.make_tasks else "")
        return f"{self.dataset}, {self.num_tasks} tasks x {share} classes, {kind}, {self.net}"


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """Normalisation and augmentation of a dataset; the default scales to [0, 1] without augmentation."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    pad: int = 0


PREPROCESSING: dict[str, Preprocessing] = {
    "cifar10": Preprocessing((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615), 4),
    "cifar100": Preprocessing((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), 4),
    "tinyimagenet": Preprocessing((0.4802, 0.4480, 0.3975), (0.2770, 0.2691, 0.2821), 4),
}

STREAMS: dict[str, StreamRow] = {
    "split-digits": StreamRow("digits", "class-il", 5, "mlp"),
    "permuted-digits": StreamRow("digits", "domain-il", 5, "mlp", permuted),
    "rotated-digits": StreamRow("digits", "domain-il", 5, "mlp", rotated),
    "seq-mnist": StreamRow("mnist", "class-il", 5, "mlp"),
    "seq-fashion-mnist": StreamRow("fashion-mnist", "class-il", 5, "mlp"),
    "p-mnist": StreamRow("mnist", "domain-il", 20, "mlp", permuted),
    "r-mnist": StreamRow("mnist", "domain-il", 20, "mlp", rotated),
    "seq-cifar10": StreamRow("cifar10", "class-il", 5, "resnet18"),
    "seq-cifar100-5": StreamRow("cifar100", "class-il", 5, "resnet18"),
    "seq-cifar100-10": StreamRow("cifar100", "class-il", 10, "resnet18"),
    "seq-cifar100-20": StreamRow("cifar100", "class-il", 20, "resnet18"),
    "seq-tinyimagenet": StreamRow("tinyimagenet", "class-il", 10, "resnet18"),
}


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """Properties of a stream that are known before it is built."""

    scenario: Scenario
    input_shape: tuple[int, ...]
    num_classes: int
    num_train: tuple[int, ...]  # approximate number of training samples of each task
    net: str | None = None  # the published one
    hash: str | None = None  # of a user's own data, or of the code that makes the stream


def describe_stream(name: str, options: StreamOptions = DEFAULT) -> StreamInfo:
    """Describe the stream that `build_stream` will make, or raise a ConfigError for unfitting options."""
    if name not in STREAMS:
        return _describe_built(name, options, _identity(name, options))
    row = STREAMS[name]
    dataset = datasets.DATASETS[row.dataset]
    num_tasks = options.num_tasks or row.num_tasks
    given_view(options, dataset.shape)  # refuses other numbers of channels
    if row.scenario == "domain-il":
        refuse_division(options)
        sizes: tuple[int, ...] = (dataset.num_classes,) * num_tasks
        counts = [float(dataset.num_train)] * num_tasks
    else:
        class_order(options.order, dataset.num_classes, 0)
        sizes = divide(dataset.num_classes, num_tasks, options.first, options.step)
        counts = [dataset.num_train * size / dataset.num_classes for size in sizes]
    if options.tasks:
        check_num_tasks(options.tasks, len(counts))
    learnt = counts[: options.tasks]
    if options.validation:
        for count, size in zip(learnt, sizes, strict=False):
            check_hold_out(options.validation, round(count), size)
    num_train = tuple(round(count * (1 - options.validation)) for count in learnt)
    return StreamInfo(row.scenario, dataset.shape, dataset.num_classes, num_train, row.net)


def _identity(name: str, options: StreamOptions) -> str:
    """The hash of a user's own data or code."""
    if is_user_data(name):
        return data_hash(name, datasets.default_folder(), options.side)
    if not is_custom(name):
        raise unknown("stream", name, {**STREAMS, **installed("stream")}, "See: ser list streams")
    return str(load_function(name).source_hash)


@lru_cache(64)
def _describe_built(name: str, options: StreamOptions, identity: str) -> StreamInfo:
    """Describe a stream by building it, once for the same data and code."""
    stream = build_stream(name, 0, options=options)
    sizes = tuple(len(stream.make(index, "train")) for index in range(len(stream)))
    return StreamInfo(stream.scenario, stream.input_shape, stream.num_classes, sizes, hash=identity)


def build_stream(
    name: str,
    seed: int = 0,
    folder: Path | None = None,
    progress: datasets.OnProgress | None = None,
    options: StreamOptions = DEFAULT,
) -> Stream:
    """Build the named stream; all random numbers are drawn from `seed`.

    Published data are read from `folder` (default: the cache folder).
    """
    folder = folder or datasets.default_folder()
    if name in STREAMS:
        stream = _from_row(STREAMS[name], seed, folder, progress, options)
    elif is_user_data(name):
        stream = _from_user_data(name, seed, progress, options)
    else:
        _identity(name, options)
        stream = _from_function(name, seed, folder, options)
    return arrange(stream, seed, options)


def arrange(stream: Stream, seed: int, options: StreamOptions) -> Stream:
    """Apply the options for the number of tasks, validation data, and mixing of tasks."""
    if options.tasks:
        stream = first_tasks(stream, options.tasks)
    if options.validation:
        stream = hold_out(stream, options.validation, seed)
    if options.blurry or options.boundaries is False:
        stream = mix(stream, seed, options.blurry, options.boundaries is not False)
    return stream


def _from_row(
    row: StreamRow, seed: int, folder: Path, progress: datasets.OnProgress | None, options: StreamOptions
) -> Stream:
    train, test = datasets.load(row.dataset, folder, progress)
    num_classes, num_tasks = datasets.DATASETS[row.dataset].num_classes, options.num_tasks or row.num_tasks
    if row.make_tasks is None:
        stream = split_as_asked(train, test, num_classes, num_tasks, seed, options)
    else:
        refuse_division(options)
        stream = row.make_tasks(train, test, num_classes, num_tasks, derive_generator(seed, "transforms"))
    preprocessing = PREPROCESSING.get(row.dataset, Preprocessing())
    usual = normalise(preprocessing.mean, preprocessing.std) if preprocessing.mean else scale
    test_view = given_view(options, stream.input_shape) or usual
    train_view = partial(make_train_view, test_view, preprocessing.pad)
    return replace(stream, test_view=test_view, train_view=train_view)


def _from_user_data(
    name: str, seed: int, progress: datasets.OnProgress | None, options: StreamOptions
) -> Stream:
    """A stream of a user's own data, normalised with mean and deviation of the training data."""
    data = open_user_splits(name, datasets.default_folder(), options.side, options.test, progress)
    stream = split_as_asked(
        data.train,
        data.test,
        len(data.names),
        _num_tasks(len(data.names), options),
        seed,
        options,
        data.names,
    )
    view = given_view(options, stream.input_shape)
    if view is None:
        step = 1 + len(data.train) // MOMENT_SAMPLES
        sample = data.train.inputs[torch.arange(0, len(data.train), step)].clone()
        view = normalise_as(stream.input_shape, *moments(sample))
    return replace(stream, test_view=view, train_view=partial(make_train_view, view, 0))


def given_view(options: StreamOptions, shape: tuple[int, ...]) -> View | None:
    """The view with the mean and deviation of the options, if they have them."""
    if options.mean is None or options.std is None:
        return None
    check_moments("data", options.mean, options.std, shape)
    return normalise_as(shape, options.mean, options.std)


def _from_function(name: str, seed: int, folder: Path, options: StreamOptions) -> Stream:
    if options.mean is not None:
        raise ConfigError(f"data.mean and data.std have no effect here: {name} makes its own views")
    made = call(name, load_function(name).value, seed, folder)
    if isinstance(made, Stream):
        refuse_division(options, ("order", "first", "step", "num_tasks"), f"{name} makes its own tasks")
        return made
    train, test = made
    num_classes = 1 + int(train.labels.max()) if len(train) else 1
    return split_as_asked(train, test, num_classes, _num_tasks(num_classes, options), seed, options)


def _num_tasks(num_classes: int, options: StreamOptions) -> int:
    """The requested number of tasks; by default five, or fewer if there are fewer classes."""
    return options.num_tasks or min(5, num_classes)


def split_as_asked(
    train: Split,
    test: Split,
    num_classes: int,
    num_tasks: int,
    seed: int,
    options: StreamOptions,
    names: tuple[str, ...] | None = None,
) -> Stream:
    """Class-IL with the class order and the task sizes of the options."""
    sizes = divide(num_classes, num_tasks, options.first, options.step)
    order = class_order(options.order, num_classes, seed, names)
    stream = split_by_sizes(train, test, sizes, order)
    if names is None:
        return stream
    return replace(stream, label_names=tuple(names[number] for number in order or range(num_classes)))


def refuse_division(
    options: StreamOptions,
    keys: tuple[str, ...] = ("order", "first", "step"),
    reason: str = "here every task has all classes",
) -> None:
    """Refuse class order and task sizes for a stream that does not divide classes into tasks."""
    asked = [f"data.{key}" for key in keys if getattr(options, key) is not None]
    if asked:
        raise ConfigError(
            f"{' and '.join(asked)} can be set for streams that are divided by class alone; {reason}"
        )


def make_train_view(plain: View, pad: int, generator: torch.Generator) -> View:
    """A view that crops and flips raw pixels, then applies the plain view; with pad 0 only the plain view."""
    if pad == 0:
        return plain
    return lambda images: plain(crop_flip(images, pad, generator))
