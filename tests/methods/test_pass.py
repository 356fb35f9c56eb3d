"""PASS: turned images and labels, distances and radius by hand, and what its terms reach."""

from typing import Any

import pytest
import torch
from support.steps import (
    count_passes,
    first_batch,
    first_norm,
    first_task,
    learn,
    make_cnn,
    optimizer_of,
    tasks,
)
from support.tiny_stream import make_net, make_problem
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError
from strongreplay.methods.pass_ import PASS, PASSConfig, distance, spread, turn, turned_labels
from strongreplay.protocol import Split


def make(stream: Stream, net: Any = None, **settings: Any) -> PASS:
    return PASS(net or make_net(), make_problem(stream), PASSConfig(**settings))


def after_task_one(stream: Stream, **settings: Any) -> PASS:
    method = make(stream, **settings)
    learn(method, first_task(stream), epochs=1)
    method.begin_task(stream[1])
    return method


def test_labels_and_images_are_turned_image_by_image() -> None:
    assert turned_labels(torch.tensor([2, 0])).tolist() == [8, 9, 10, 11, 0, 1, 2, 3]
    images = torch.arange(8.0).view(2, 1, 2, 2)
    turned = turn(images)
    assert torch.equal(turned[0], images[0])
    assert torch.equal(turned[4], images[1])
    assert turned[1].flatten().tolist() == [1, 3, 0, 2]
    assert torch.equal(turned[6], images[1].flip(1, 2))


def test_the_distance_is_a_norm_and_has_a_slope_at_zero(stream: Stream) -> None:
    features = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert 10 * distance(features, torch.zeros(2, 2)).item() == pytest.approx(50)
    still = torch.zeros(2, 2, requires_grad=True)
    distance(still, torch.zeros(2, 2)).backward()
    assert still.grad is not None
    assert torch.equal(still.grad, torch.zeros(2, 2))


def test_the_radius_of_isotropic_features_is_their_deviation() -> None:
    generator = torch.Generator().manual_seed(0)
    groups = [5 * c + 0.7 * torch.randn(4000, 8, generator=generator) for c in range(3)]
    assert spread(groups).item() == pytest.approx(0.7, rel=0.02)
    small = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    assert spread([small]).item() == pytest.approx(1.0)  # variance 2 with n - 1, over two features
    assert spread([small[:1]]) == 0


def test_the_first_task_is_cross_entropy_of_all_turns_over_seen_classes(stream: Stream) -> None:
    method, batch = make(stream), first_batch(stream)
    method.begin_task(stream[0])
    logits = method.net(turn(batch.inputs))[:, :8] / 0.1
    wanted = cross_entropy(logits, turned_labels(batch.labels))
    terms = method.observe(batch, optimizer_of(method))
    assert list(terms) == ["current"]
    assert terms["current"].item() == pytest.approx(wanted.item(), rel=1e-5)


def test_noisy_prototypes_train_the_head_alone(stream: Stream) -> None:
    method = after_task_one(stream)
    noisy, labels = method.noisy_prototypes(500)
    assert set(labels.tolist()) == {0, 1}
    method.net.zero_grad()
    method.loss(method.net.head(noisy), 4 * labels).backward()
    assert method.net.head.weight.grad is not None
    assert all(p.grad is None for p in method.net.classifier.body.parameters())
    apart = (noisy - method.means[labels]) / method.radius
    assert apart.std().item() == pytest.approx(1, abs=0.05)
    terms = method.observe(first_batch(stream, 1), optimizer_of(method))
    assert set(terms) == {"current", "distillation", "prototypes"}


def test_prediction_uses_every_fourth_column(stream: Stream) -> None:
    method, inputs = make(stream), first_batch(stream).inputs
    before = method.predict(inputs)
    assert torch.allclose(before, make_net()(inputs), atol=1e-6)  # the rows start as the net's
    with torch.no_grad():
        for turned in (1, 2, 3):
            method.net.head.bias[turned::4] += 100
    assert torch.equal(method.predict(inputs), before)
    assert before.shape == (16, 6)


def test_radius_and_old_prototypes_stay_and_a_new_task_changes_no_row_by_itself(stream: Stream) -> None:
    method = make(stream)
    learn(method, first_task(stream), epochs=1)
    means, radius, rows = method.means.clone(), method.radius.clone(), method.net.head.weight.clone()
    assert method.mean_labels.tolist() == [0, 1]
    method.begin_task(stream[1])
    assert torch.equal(method.net.head.weight, rows)
    method.observe(first_batch(stream, 1), optimizer_of(method))
    method.end_task(stream[1])
    assert torch.equal(method.means[:2], means)
    assert torch.equal(method.radius, radius)
    assert method.mean_labels.tolist() == [0, 1, 2, 3]
    images = stream[1].train.inputs[stream[1].train.labels == 3]
    features = method.net.features(stream.test_view(images))
    assert torch.allclose(method.means[3], features.mean(0), atol=1e-5)


def test_rows_of_classes_to_come_are_not_trained(stream: Stream) -> None:
    method = make(stream)
    before = method.net.head.weight[16:].clone()
    learn(method, tasks(stream, 2), epochs=1)
    assert torch.equal(method.net.head.weight[16:], before)


@pytest.mark.parametrize("second", [False, True])
def test_statistics_change_once_a_step_or_twice_as_in_the_reference(second: bool, stream: Stream) -> None:
    method = make(stream, make_cnn(), second_forward=second)
    learn(method, first_task(stream), epochs=1)
    method.begin_task(stream[1])
    norm = first_norm(method.net)
    before = int(norm.num_batches_tracked)
    method.observe(first_batch(stream, 1), optimizer_of(method))
    assert norm.num_batches_tracked == before + 1 + second


def test_images_must_be_square(stream: Stream) -> None:
    flat = Split(torch.zeros(4, 1, 6, 5, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ConfigError, match=r"pass turns its images, .* got \(4, 1, 6, 5\)"):
        make(stream).begin_task(stream[0].with_train(flat))


def test_a_step_has_one_backward_pass(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    method = after_task_one(stream)
    step = lambda: method.observe(first_batch(stream, 1), optimizer_of(method))  # noqa: E731
    assert count_passes(method, monkeypatch, step)[1] == 1
