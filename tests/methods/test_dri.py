"""DRI, a reconstruction: its terms by hand, a balanced memory, and when its loss is DER++'s."""

from math import exp, log
from typing import Any

import pytest
import torch
from support.steps import final_weights, first_batch, first_task, learn, optimizer_of, state_bytes
from support.tiny_stream import make_net, make_problem, train_phase, weights
from torch.nn.functional import cross_entropy, mse_loss, normalize

from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError
from strongreplay.methods import METHODS
from strongreplay.methods.base import MAIN
from strongreplay.methods.dri import DRI, DRIConfig, divergence
from strongreplay.methods.dri_parts import multi_similarity
from strongreplay.protocol import Split
from strongreplay.sampling import herd
from strongreplay.testing import METHOD_CHECKS, MethodCase


def make(stream: Stream, **settings: Any) -> DRI:
    return DRI(make_net(), make_problem(stream), DRIConfig(**{"memory_size": 24} | settings))


def test_herding_of_unit_features_by_hand() -> None:
    rows = normalize(torch.tensor([[1.0, 0], [0, 1], [0.7, 0.7]]), dim=1)
    assert herd(rows, 1).tolist() == [2]


def test_multi_similarity_of_identical_features_by_hand() -> None:
    same = multi_similarity(torch.tensor([[1.0, 0]] * 5), torch.zeros(5, dtype=torch.int64))
    assert same.item() == pytest.approx(log(1 + 4 * exp(-2 * 0.5)) / 2, abs=1e-6)


def test_multi_similarity_counts_hard_pairs_alone() -> None:
    features = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    assert multi_similarity(features, torch.tensor([0, 0, 1, 1])).item() == 0  # nothing is hard
    mixed = multi_similarity(features, torch.tensor([0, 1, 0, 1])).item()
    assert mixed == pytest.approx(log(1 + exp(1)) / 2 + log(1 + exp(5)) / 10, abs=1e-5)


@pytest.mark.parametrize("num_classes", [1, 3, 12])
def test_multi_similarity_and_its_slope_are_those_of_the_definition(num_classes: int) -> None:
    generator = torch.Generator().manual_seed(num_classes)
    labels = torch.randint(num_classes, (12,), generator=generator)
    given, plain = torch.randn(12, 3, dtype=torch.float64, generator=generator).repeat(2, 1, 1).unbind()
    given.requires_grad_(), plain.requires_grad_()
    unit, total = normalize(plain, dim=1), torch.zeros((), dtype=torch.float64)
    for row in range(12):
        cosines, same = unit @ unit[row], labels == labels[row]
        near, far = cosines[same & (torch.arange(12) != row)], cosines[~same]
        hard_near = near[near < far.max() + 0.1] if len(far) else near
        hard_far = far[far > near.min() - 0.1] if len(near) else far
        total = total + torch.log(1 + (-2 * (hard_near - 0.5)).exp().sum()) / 2
        total = total + torch.log(1 + (10 * (hard_far - 0.5)).exp().sum()) / 10
    found = multi_similarity(normalize(given, dim=1), labels)
    assert found.item() == pytest.approx(total.item() / 12, rel=1e-12)
    found.backward(), (total / 12).backward()
    assert given.grad is not None
    assert plain.grad is not None
    assert torch.allclose(given.grad, plain.grad, rtol=1e-10, atol=1e-14)


def test_without_metric_and_imagination_it_is_the_loss_of_derpp_on_a_balanced_memory(stream: Stream) -> None:
    method = make(stream, generator="none", metric=0.0, alpha=0.3, beta=0.7)
    learn(method, first_task(stream), epochs=1)
    assert not method.old_net.exists
    batch, state = first_batch(stream, 1), method.memory.generator.get_state()
    (rows,) = method.draw(16, 1)
    method.memory.generator.set_state(state)
    stored = method.memory.take(rows)
    logits = method.net(stream.test_view(stored.images))
    expected = {
        "current": cross_entropy(method.net(batch.inputs), batch.labels).item(),
        "logits": 0.3 * mse_loss(logits, stored.logits).item(),
        "replay": 0.7 * cross_entropy(logits, stored.labels).item(),
    }
    found = method.observe(batch, optimizer_of(method))
    assert {name: term.item() for name, term in found.items()} == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_the_memory_and_what_is_drawn_from_it_are_balanced(stream: Stream) -> None:
    method = make(stream)
    learn(method, stream, epochs=1)
    assert method.memory.rows.labels.bincount().tolist() == [4] * 6 == method.counts
    drawn = method.memory.rows.labels[method.draw(6000, 1)[0]]
    assert drawn.bincount().tolist() == pytest.approx([1000] * 6, rel=0.1)
    first, second = method.draw(50, 2)
    assert torch.equal(method.memory.rows.labels[first], method.memory.rows.labels[second])
    assert not torch.equal(first, second)


def test_stored_logits_are_those_of_the_end_of_a_sample_s_task(stream: Stream) -> None:
    method = make(stream)
    learn(method, first_task(stream), epochs=1)
    images, _, logits = method.memory.rows
    with torch.no_grad():
        assert torch.allclose(method.net(stream.test_view(images)), logits, atol=1e-6)


def test_the_divergence_on_imagined_images_is_zero_at_a_task_s_first_step(stream: Stream) -> None:
    method = make(stream)
    learn(method, first_task(stream), epochs=1)
    assert method.imagine(16).shape == (16, 1, 6, 6)
    terms = method.observe(first_batch(stream, 1), optimizer_of(method))
    assert terms["imagination"].item() == pytest.approx(0, abs=1e-6)
    terms = method.observe(first_batch(stream, 1), optimizer_of(method))
    assert terms["imagination"].item() > 1e-6
    old, now = torch.tensor([[0.0, 0]]), torch.tensor([[log(3), 0]])
    assert divergence(old, now).item() == pytest.approx(0.5 * log(2 / 3) + 0.5 * log(2), abs=1e-6)


def test_the_first_task_without_metric_loss_is_sgd_to_the_bit(stream: Stream) -> None:
    method = make(stream, metric=0.0)
    learn(method, first_task(stream))
    assert torch.equal(weights(method.net), final_weights("sgd", first_task(stream)))


# The gan


def with_gan(stream: Stream, steps: int) -> DRI:
    """At the beginning of the second task, the gan trained on the memory."""
    method = make(stream, generator="gan", gan_steps=steps)
    learn(method, first_task(stream), epochs=1)
    method.begin_task(stream[1])
    assert [phase.name for phase in method.phases(stream[1])] == ["gan", MAIN]
    train_phase(method, stream[1], "gan")
    return method


def test_the_gan_makes_images_of_a_class_like_those_in_memory(stream: Stream) -> None:
    method = with_gan(stream, 300)
    images, labels, _ = method.memory.rows
    for label in (0, 1):
        with torch.no_grad():
            made = method.gan(method.codes(50), torch.full((50,), label)).mean((0, 1))
        bright = images[labels == label].float().mean((0, 1)) > 150  # where the class has its patch
        assert made[bright].mean() > made[~bright].mean() + 0.3
    assert method.imagine(16).shape == (16, 1, 6, 6)
    assert "imagination" in method.observe(first_batch(stream, 1), optimizer_of(method))


def test_the_phase_of_the_gan_changes_nothing_else_and_its_loss_does_not_move_the_critic(
    stream: Stream,
) -> None:
    method = with_gan(stream, 1)
    before = state_bytes(method)
    train_phase(method, stream[1], "gan")
    after = state_bytes(method)
    assert {key.split(".")[0] for key in before if not torch.equal(before[key], after[key])} == {"gan"}
    images, labels, _ = method.memory.rows
    losses = method.gan.losses(images / 255, labels, method.codes(len(labels)))
    for name, other in (("generator", method.gan.critic), ("critic", method.gan.generator)):
        reached = torch.autograd.grad(losses[name], list(other.parameters()), allow_unused=True)
        assert all(part is None for part in reached)


def test_with_a_gan_it_keeps_the_contract_of_methods() -> None:
    case = MethodCase(METHODS["dri"], {"generator": "gan", "gan_steps": 2})
    for check in ("state", "device", "low_precision", "global_generators"):
        METHOD_CHECKS[check](case)


def test_a_gan_needs_images(stream: Stream) -> None:
    flat = stream[0].with_train(Split(torch.rand(4, 5), torch.zeros(4, dtype=torch.int64)))
    with pytest.raises(ConfigError, match="dri's gan makes images"):
        make(stream, generator="gan").begin_task(flat)
