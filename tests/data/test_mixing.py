"""Blurry and boundary-free streams: which samples move, how many, when they come, and what stays."""

import pytest
import torch

from strongreplay.data.mixing import mix
from strongreplay.data.streams import StreamOptions, build_stream
from strongreplay.data.tasks import Stream, split_by_class
from strongreplay.errors import ConfigError
from strongreplay.protocol import Split


def numbered(per_class: int = 100, num_classes: int = 6) -> Stream:
    """Every sample's input is its own number, so that none can be lost or doubled unseen."""
    labels = torch.arange(num_classes).repeat(per_class)
    inputs = torch.arange(len(labels), dtype=torch.float32)[:, None]
    test = Split(inputs[:num_classes], labels[:num_classes])
    return split_by_class(Split(inputs, labels), test, num_classes, 3)


def ids(split: Split) -> list[int]:
    return [int(value) for value in split.inputs[:, 0]]


def test_a_blurry_stream_moves_the_share_of_each_class_and_loses_nothing() -> None:
    plain = numbered()
    mixed = mix(plain, 0, blurry=0.1)
    assert sorted(number for task in mixed for number in ids(task.train)) == list(range(600))
    for task, before in zip(mixed, plain, strict=True):
        for label in before.classes:
            assert int((task.train.labels == label).sum()) == 90
        assert set(task.classes) == set(range(6))  # the classes of a task overlap with the others'
        assert ids(task.test) == ids(before.test)
        assert not task.in_order
    assert mixed.task_classes == plain.task_classes  # by which it is judged


def test_inputs_keep_their_labels_when_they_move() -> None:
    for task in mix(numbered(), 3, blurry=0.3, has_boundaries=False):
        assert [number % 6 for number in ids(task.train)] == task.train.labels.tolist()


def test_the_draw_is_the_seed_s() -> None:
    first, same, other = (ids(mix(numbered(), seed, blurry=0.2)[0].train) for seed in (1, 1, 2))
    assert first == same
    assert first != other


def test_tasks_without_boundaries_flow_into_each_other() -> None:
    flow = mix(numbered(1000), 0, has_boundaries=False)
    assert [len(task.train) for task in flow] == [2000, 2000, 2000]
    labels = torch.cat([task.train.labels for task in flow])
    old = (labels < 2).float()
    # Far from the boundary a task is almost pure; at it, both tasks are met about equally often.
    assert old[:1000].mean() > 0.97
    assert 0.35 < old[1900:2100].mean() < 0.65
    assert old[3500:].mean() < 0.01
    shares = old.view(-1, 500).mean(1)
    assert (shares[:8].diff() < 0).all()  # falling, without a jump back
    assert all(task.in_order for task in flow)


def test_one_task_cannot_be_mixed() -> None:
    with pytest.raises(ConfigError, match="need a stream of at least 2 tasks, got 1"):
        build_stream("split-digits", options=StreamOptions(tasks=1, blurry=0.1))


def test_domain_il_streams_mix_too() -> None:
    plain = build_stream("permuted-digits", 0)
    mixed = build_stream("permuted-digits", 0, options=StreamOptions(blurry=0.5))
    assert sum(len(task.train) for task in mixed) == sum(len(task.train) for task in plain)
    own = {image.numpy().tobytes() for image in plain[0].train.inputs}
    kept = [image.numpy().tobytes() in own for image in mixed[0].train.inputs]
    assert 0.4 < sum(kept) / len(kept) < 0.6


def test_validation_data_come_from_the_original_task() -> None:
    mixed = build_stream("split-digits", 0, options=StreamOptions(blurry=0.2, validation=0.2))
    for index, classes in enumerate(mixed.task_classes):
        assert set(mixed.test(index).labels.tolist()) == set(classes)
