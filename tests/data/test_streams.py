"""Every row of STREAMS follows the protocol; each scenario equals its per-image definition."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from strongreplay.data import datasets
from strongreplay.data.streams import (
    STREAMS,
    Stream,
    accumulate,
    build_stream,
    hold_out,
    permutation_maps,
    remap_pixels,
    rotation_angles,
    rotation_maps,
    split_by_class,
)
from strongreplay.errors import ConfigError, DataError
from strongreplay.protocol import Split, derive_generator

EMBEDDED = ("split-digits", "permuted-digits", "rotated-digits")


def images(count: int, shape: tuple[int, ...] = (1, 28, 28), seed: int = 0) -> torch.Tensor:
    return torch.randint(
        0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def labelled(count: int, num_classes: int = 10) -> Split:
    return Split(images(count), torch.arange(count) % num_classes)


@pytest.mark.parametrize("name", EMBEDDED)
def test_an_embedded_stream_follows_the_protocol(name: str) -> None:
    stream = build_stream(name, seed=3)
    again, other = build_stream(name, seed=3), build_stream(name, seed=4)
    seen: set[int] = set()
    for task, same in zip(stream, again, strict=True):
        for split in (task.train, task.test):
            assert split.inputs.dtype == torch.uint8
            assert split.labels.dtype == torch.int64
            assert set(split.labels.tolist()) == set(task.classes)
        assert torch.equal(task.train.inputs, same.train.inputs)
        assert torch.equal(task.test.inputs, same.test.inputs)
        if stream.scenario == "class-il":
            assert not seen & set(task.classes)
        else:
            assert task.classes == tuple(range(10))
            assert not torch.equal(task.train.inputs, other[task.index].train.inputs)
        seen |= set(task.classes)
    assert seen == set(range(10))
    assert stream.num_classes == 10


def test_streams_and_tasks_are_readable_in_a_notebook() -> None:
    stream = build_stream("split-digits", seed=0)
    assert repr(stream) == f"Stream(class-il, 5 tasks, 10 classes, inputs {stream.input_shape})"
    task = next(iter(stream))
    assert repr(task).startswith("Task(0, classes [0, 1], train Split(")
    assert len(repr(task)) < 160


def test_the_table_has_the_paper_s_streams_with_their_sizes() -> None:
    sizes = {name: (row.dataset, row.num_tasks, row.scenario, row.net) for name, row in STREAMS.items()}
    assert sizes["p-mnist"] == ("mnist", 20, "domain-il", "mlp")
    assert sizes["r-mnist"] == ("mnist", 20, "domain-il", "mlp")
    assert sizes["seq-mnist"] == ("mnist", 5, "class-il", "mlp")
    assert sizes["seq-fashion-mnist"] == ("fashion-mnist", 5, "class-il", "mlp")
    assert sizes["seq-cifar10"] == ("cifar10", 5, "class-il", "resnet18")
    for count in (5, 10, 20):
        assert sizes[f"seq-cifar100-{count}"] == ("cifar100", count, "class-il", "resnet18")
    assert sizes["seq-tinyimagenet"] == ("tinyimagenet", 10, "class-il", "resnet18")
    for row in STREAMS.values():
        if row.scenario == "class-il":
            assert datasets.DATASETS[row.dataset].num_classes % row.num_tasks == 0
        assert row.dataset in row.about


def test_classes_keep_their_natural_order_and_every_sample_is_in_one_task() -> None:
    train, test = labelled(200), labelled(50)
    stream = split_by_class(train, test, 10, 5)
    assert stream.task_classes == ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
    assert sum(len(task.train) for task in stream) == 200
    third = stream[2].train
    assert torch.equal(third.inputs, train.inputs[(train.labels == 4) | (train.labels == 5)])


def test_rotation_equals_pillow_to_the_byte() -> None:
    train, test = labelled(40), labelled(20)
    source = derive_generator(7, "transforms")
    stream = remap_pixels(train, test, 10, rotation_maps(28, 28, 20, source))
    angles = rotation_angles(20, derive_generator(7, "transforms"))
    assert all(0 <= angle < 180 for angle in angles)
    assert angles != sorted(angles)
    for task, angle in zip(stream, angles, strict=True):
        for split, raw in ((task.train, train), (task.test, test)):
            for number in (0, 7, 19):
                picture = Image.fromarray(raw.inputs[number, 0].numpy())
                expected = np.asarray(picture.rotate(angle, resample=Image.Resampling.NEAREST))
                assert np.array_equal(split.inputs[number, 0].numpy(), expected)


@pytest.mark.parametrize("angle", [0.0, 45.0, 90.0, 180.0])
def test_rotation_equals_pillow_at_angles_it_treats_apart(angle: float) -> None:
    from strongreplay.data.streams import rotation_map

    raw = labelled(3)
    stream = remap_pixels(raw, raw, 10, rotation_map(28, 28, angle)[None])
    for part in (stream[0].train, stream.test(0)):
        for number in range(3):
            picture = Image.fromarray(raw.inputs[number, 0].numpy())
            expected = np.asarray(picture.rotate(angle, resample=Image.Resampling.NEAREST))
            assert np.array_equal(part.inputs[number, 0].numpy(), expected)


def test_permutation_moves_each_pixel_alike_in_train_and_test_and_never_not_at_all() -> None:
    train, test = labelled(30), labelled(20)
    maps = permutation_maps(28, 28, 3, derive_generator(0, "transforms"))
    stream = remap_pixels(train, test, 10, maps)
    for task in stream:
        order = maps[task.index]
        assert sorted(order.tolist()) == list(range(784))
        assert not torch.equal(order, torch.arange(784))
        for split, raw in ((task.train, train), (task.test, test)):
            assert torch.equal(split.inputs.flatten(1), raw.inputs.flatten(1)[:, order])
            assert torch.equal(split.labels, raw.labels)
    assert torch.equal(train.inputs, images(30))  # the originals were not written to


def test_transforms_depend_on_the_seed_and_class_order_does_not() -> None:
    first, second = (permutation_maps(4, 4, 2, derive_generator(seed, "transforms")) for seed in (0, 1))
    assert not torch.equal(first, second)
    assert build_stream("split-digits", 0).task_classes == build_stream("split-digits", 1).task_classes


def test_transformed_copies_do_not_pile_up() -> None:
    """A task is made when asked for and let go with its last reference."""
    import gc
    import weakref

    stream = remap_pixels(labelled(30), labelled(20), 10, permutation_maps(28, 28, 20, torch.Generator()))
    made = [weakref.ref(task.train.inputs) for task in stream]
    gc.collect()
    assert sum(reference() is not None for reference in made) == 0


def test_the_union_has_every_sample_once() -> None:
    stream = split_by_class(labelled(200), labelled(50), 10, 5)
    union = accumulate(stream)
    assert len(union) == 1
    assert union.task_classes == (tuple(range(10)),)
    assert len(union[0].train) == 200
    assert len(union[0].test) == 50


def test_held_out_data_comes_from_training_and_does_not_overlap() -> None:
    stream = split_by_class(labelled(400), labelled(50), 10, 5)
    tuning = hold_out(stream, 0.25, seed=1)
    for index in range(5):
        whole, train, test = stream[index].train, tuning[index].train, tuning.test(index)
        assert (len(train), len(test)) == (60, 20)
        rows = {bytes(image.numpy().tobytes()) for image in torch.cat([train.inputs, test.inputs])}
        assert rows == {bytes(image.numpy().tobytes()) for image in whole.inputs}
    assert torch.equal(hold_out(stream, 0.25, 1).test(0).inputs, tuning.test(0).inputs)


def test_tasks_that_do_not_divide_the_classes_are_refused() -> None:
    message = "split_by_class: 10 classes do not divide into 3 tasks; use 1, 2, 5 or 10"
    with pytest.raises(ConfigError, match=message):
        split_by_class(labelled(20), labelled(20), 10, 3)


@pytest.mark.parametrize("scenario", ["split", "remap"])
def test_labels_out_of_range_are_refused(scenario: str) -> None:
    bad = Split(images(4), torch.tensor([0, 1, 12, 3]))
    build: Callable[[], Stream] = partial(split_by_class, bad, labelled(10), 10, 5)
    if scenario == "remap":
        build = partial(remap_pixels, bad, labelled(10), 10, torch.arange(784)[None])
    with pytest.raises(DataError, match=r"train: labels must lie in 0..9, got 0..12; renumber them or raise"):
        build()


def test_an_empty_split_and_mismatched_labels_are_refused() -> None:
    with pytest.raises(DataError, match="test: the split is empty"):
        split_by_class(labelled(20), Split(images(0), torch.zeros(0, dtype=torch.int64)), 10, 5)
    with pytest.raises(DataError, match="3 inputs but 2 labels"):
        Split(images(3), torch.tensor([1, 2]))
    with pytest.raises(DataError, match=r"labels must be \(N,\) int64, got \(3, 1\) torch.float32"):
        Split(images(3), torch.zeros(3, 1))


def test_an_unknown_stream_and_missing_data_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="unknown stream 'p-mist'; did you mean 'p-mnist'\\? See: ser list streams"
    ):
        build_stream("p-mist")
    with pytest.raises(DataError, match=r"mnist not found in .*run: ser data get mnist"):
        build_stream("p-mnist", folder=tmp_path)


def test_task_numbers_end_where_the_stream_ends() -> None:
    stream: Stream = split_by_class(labelled(20), labelled(20), 10, 5)
    assert len(list(stream)) == 5
    with pytest.raises(IndexError, match="task 5 of a stream of 5 tasks"):
        stream[5]
