"""Class order, unequal tasks and another number of tasks."""

import pytest
import torch

from strongreplay.data import datasets
from strongreplay.data.streams import StreamOptions, build_stream, describe_stream
from strongreplay.data.tasks import class_order, divide, split_by_sizes
from strongreplay.errors import ConfigError
from strongreplay.protocol import Split


@pytest.mark.parametrize(
    ("num_tasks", "first", "step", "sizes"),
    [
        (None, 50, 10, (50, 10, 10, 10, 10, 10)),  # B50-inc10
        (None, None, 40, (40, 40, 20)),  # the last task takes the rest
        (None, 100, 5, (100,)),
        (7, None, None, (15, 15, 14, 14, 14, 14, 14)),
        (4, None, None, (25, 25, 25, 25)),
    ],
)
def test_a_hundred_classes_divide(
    num_tasks: int | None, first: int | None, step: int | None, sizes: tuple[int, ...]
) -> None:
    assert divide(100, num_tasks, first, step) == sizes


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ConfigError, match="10 classes cannot be divided into 11 tasks; use 1 to 10 tasks"):
        divide(10, 11, None, None)
    with pytest.raises(
        ConfigError, match=r"data\.first must be at most the 10 classes of the stream, got 20"
    ):
        divide(10, None, 20, 5)
    with pytest.raises(ConfigError, match=r"data\.step must be at most the 10 classes"):
        divide(10, None, None, 11)


def test_labels_follow_the_class_order() -> None:
    split = Split(torch.arange(6.0)[:, None], torch.tensor([0, 1, 2, 0, 1, 2]))
    stream = split_by_sizes(split, split, (1, 2), order=(2, 0, 1))
    assert stream[0].train.inputs.flatten().tolist() == [2, 5]  # class 2 comes first, as label 0
    assert stream[0].train.labels.tolist() == [0, 0]
    assert stream[1].train.inputs.flatten().tolist() == [0, 1, 3, 4]
    assert stream[1].train.labels.tolist() == [1, 2, 1, 2]
    assert stream.task_classes == ((0,), (1, 2))


def test_a_shuffled_order_is_the_seed_s_and_a_given_one_is_kept() -> None:
    assert class_order(("shuffled",), 10, 1) == class_order(("shuffled",), 10, 1)
    assert class_order(("shuffled",), 10, 1) != class_order(("shuffled",), 10, 2)
    assert class_order((2, 0, 1), 3, 0) == (2, 0, 1)
    assert class_order(("cat", "dog", "ant"), 3, 0, ("ant", "cat", "dog")) == (1, 2, 0)
    assert class_order(None, 10, 0) is None


@pytest.mark.parametrize("order", [(0, 1), (0, 1, 1), (0, 1, 3), ("a", "b", "c")])
def test_an_order_without_all_classes_is_refused(order: tuple[int | str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"data\.order must be 'shuffled' or the numbers of all 3 classes"):
        class_order(order, 3, 0)


def test_a_shuffled_stream_has_every_sample_of_the_dataset_under_its_class() -> None:
    train, _ = datasets.load("digits", datasets.default_folder())
    order = class_order(("shuffled",), 10, 5)
    assert order is not None
    stream = build_stream("split-digits", 5, options=StreamOptions(order=("shuffled",), first=4, step=3))
    assert [len(task.classes) for task in stream] == [4, 3, 3]
    for task in stream:
        for label in task.classes:
            held = task.train.inputs[task.train.labels == label]
            assert torch.equal(held, train.inputs[train.labels == order[label]])


def test_a_description_matches_what_is_built() -> None:
    for options in (
        StreamOptions(),
        StreamOptions(num_tasks=3, tasks=2),
        StreamOptions(first=4, step=2, validation=0.25),
    ):
        for name in ("split-digits", "permuted-digits"):
            if options.step and name == "permuted-digits":
                with pytest.raises(
                    ConfigError,
                    match=r"data\.first and data\.step can be set for streams that are divided by class",
                ):
                    describe_stream(name, options)
                continue
            info, stream = describe_stream(name, options), build_stream(name, options=options)
            assert (info.scenario, info.input_shape) == (stream.scenario, stream.input_shape)
            assert info.num_classes == stream.num_classes
            assert len(info.num_train) == len(stream)
            for about, task in zip(info.num_train, stream, strict=True):
                assert about == pytest.approx(len(task.train), rel=0.1)  # the digits are not quite balanced
