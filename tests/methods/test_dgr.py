"""DGR: weights of tasks, the generator's loss by hand, what is frozen; the first task is plain training."""

from typing import Any

import pytest
import torch
from support.steps import first_batch, first_task, learn, optimizer_of, state_bytes
from support.tiny_stream import make_net, make_problem, weights
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream
from strongreplay.data.views import scale
from strongreplay.errors import ConfigError
from strongreplay.methods import build_method
from strongreplay.methods.dgr import DGR, VAE, DGRConfig, divergence
from strongreplay.protocol import Split


def make(stream: Stream, **settings: Any) -> DGR:
    config = DGRConfig(**{"hidden_size": 32, "code_size": 8} | settings)
    return DGR(make_net(), make_problem(stream), config)


def test_the_first_task_is_plain_training_to_the_bit(stream: Stream) -> None:
    one = Stream(stream.scenario, (tuple(range(6)),), stream.input_shape, stream.make)
    sgd, method = build_method("sgd", make_net(), make_problem(one)), make(one)
    learn(sgd, one), learn(method, one)
    assert torch.equal(weights(sgd.net), weights(method.net))
    fresh = make(stream)
    fresh.begin_task(stream[0])
    assert not fresh.old_generator.exists


def test_weights_of_own_and_generated_samples_by_task(stream: Stream) -> None:
    method, found = make(stream), []
    for task in stream:
        method.begin_task(task)
        found.append(method.share.item())
        method.end_task(task)
    assert found == pytest.approx([1, 1 / 2, 1 / 3])


def test_the_divergence_and_the_loss_of_the_generator_by_hand() -> None:
    zero, one = torch.zeros(1, 3), torch.ones(1, 3)
    assert divergence(zero, zero).tolist() == [[0, 0, 0]]
    assert divergence(one, zero).tolist() == [[0.5, 0.5, 0.5]]
    net = VAE((1, 2, 2), 4, 3)
    for parameter in net.parameters():
        torch.nn.init.zeros_(parameter)
    loss = net.loss(torch.full((5, 1, 2, 2), 0.3), torch.randn(5, 3))
    assert loss.item() == pytest.approx(0.693147, abs=1e-6)  # every pixel is answered 0.5; ln 2 each
    colour = VAE((3, 2, 2), 4, 3)
    for parameter in colour.parameters():
        torch.nn.init.zeros_(parameter)
    assert colour.loss(torch.ones(5, 3, 2, 2), torch.randn(5, 3)).item() == pytest.approx(0.25)


def test_copies_are_those_of_the_last_task_and_never_change_within_one(stream: Stream) -> None:
    method = make(stream)
    learn(method, first_task(stream), epochs=1)
    assert torch.equal(weights(method.old_net), weights(method.net))
    assert torch.equal(weights(method.old_generator), weights(method.generator))
    method.begin_task(stream[1])
    before = state_bytes(method)
    method.observe(first_batch(stream, 1), optimizer_of(method))
    after = state_bytes(method)
    moved = {key.split(".")[0] for key in before if not torch.equal(before[key], after[key])}
    assert moved == {"net", "generator"}


def test_generated_images_are_labelled_with_old_classes_alone(stream: Stream) -> None:
    method = make(stream)
    learn(method, first_task(stream), epochs=1)
    method.begin_task(stream[1])
    with torch.no_grad():
        method.net.head.bias[2:] += 100  # type: ignore[union-attr, operator, index]
    method.old_net.take()
    images = method.generate(50)
    assert images.shape == (50, 1, 6, 6)
    assert 0 <= images.min() <= images.max() <= 1
    inputs = stream.test_view(images.mul(255).round().to(torch.uint8))
    labels = (method.old_net(inputs) + method.only_old).argmax(1)
    assert set(labels.tolist()) <= {0, 1}
    expected = cross_entropy(method.net(inputs)[:, :4], labels)
    assert method.replay_loss(images).item() == pytest.approx(expected.item(), rel=1e-5)


def test_soft_targets_are_a_distillation_within_old_classes(stream: Stream) -> None:
    method = make(stream, targets="soft")
    learn(method, first_task(stream), epochs=1)
    method.begin_task(stream[1])
    images = method.generate(20)
    inputs = stream.test_view(images.mul(255).round().to(torch.uint8))
    wanted = (method.old_net(inputs)[:, :2] / 2).softmax(1)
    logs = (method.net(inputs)[:, :4] / 2).log_softmax(1)[:, :2]
    expected = -4 * (wanted * logs).sum(1).mean()
    assert method.replay_loss(images).item() == pytest.approx(expected.item(), rel=1e-5)


def test_generated_images_become_like_the_real_ones(stream: Stream) -> None:
    method = make(stream)
    method.begin_task(stream[0])
    images = scale(stream[0].train.inputs)
    adam = torch.optim.Adam(method.generator.parameters(), lr=3e-3)
    for _ in range(150):
        loss = method.generator_loss(images)
        adam.zero_grad(), loss.backward(), adam.step()
    method.old_generator.take()
    made, mean = method.generate(200).mean(0), images.mean(0)
    assert (made - mean).abs().mean() < 0.1 < (0.5 - mean).abs().mean()


def test_features_instead_of_images_are_refused(stream: Stream) -> None:
    flat = stream[0].with_train(Split(torch.rand(4, 5), torch.zeros(4, dtype=torch.int64)))
    with pytest.raises(ConfigError, match="dgr generates images"):
        make(stream).begin_task(flat)
