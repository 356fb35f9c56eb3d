"""oEWC: its penalty, its Fisher information by hand, and when it is plain training."""

from typing import Any

import pytest
import torch
from support.steps import (
    build,
    captured_gradient,
    final_weights,
    first_batch,
    first_task,
    gradient,
    learn,
    optimizer_of,
)
from support.tiny_stream import make_net, make_problem, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream
from strongreplay.methods import gradients
from strongreplay.methods.base import evaluation_mode
from strongreplay.methods.oewc import OEWC, OEWCConfig
from strongreplay.nets import build_net
from strongreplay.protocol import Problem, Split, Task, derive_generator

KINDS = ("mammoth", "empirical", "true")


def after_task_one(stream: Stream, net: nn.Module | None = None, **settings: Any) -> OEWC:
    method = OEWC(net or make_net(), make_problem(stream), OEWCConfig(**settings))
    learn(method, first_task(stream), epochs=2)
    return method


def small_resnet() -> nn.Module:
    return build_net("resnet18", (1, 6, 6), 6, derive_generator(0, "net"), width=8)


def few(stream: Stream, task: int, count: int) -> Task:
    return stream[task].with_train(stream[task].train.take(torch.arange(count)))


def test_without_weight_it_is_sgd_to_the_bit(stream: Stream) -> None:
    assert torch.equal(final_weights("oewc", stream, penalty=0), final_weights("sgd", stream))
    assert not torch.equal(final_weights("oewc", stream, penalty=0.7), final_weights("sgd", stream))


def test_task_one_is_sgd_to_the_bit(stream: Stream) -> None:
    method, sgd = build("oewc", make_problem(stream)), build("sgd", make_problem(stream))
    learn(method, first_task(stream)), learn(sgd, first_task(stream))
    assert torch.equal(weights(method.net), weights(sgd.net))


def test_the_penalty_and_its_gradient_are_zero_at_the_anchor(stream: Stream) -> None:
    method, batch = after_task_one(stream, penalty=100), first_batch(stream, 1)
    assert torch.equal(method.anchor, weights(method.net))
    plain = gradient(method.net, cross_entropy(method.net(batch.inputs), batch.labels))
    before = weights(method.net)
    terms = method.observe(batch, optimizer_of(method, lr=1.0))
    assert terms["penalty"] == 0
    assert torch.equal(weights(method.net), before - plain)


def test_away_from_the_anchor_the_step_is_down_both_terms_by_autograd(stream: Stream) -> None:
    method, batch = after_task_one(stream, penalty=3.0), first_batch(stream, 1)
    for _ in range(3):
        terms = method.observe(batch, optimizer_of(method))
    assert terms["penalty"] > 0
    theta = torch.cat([parameter.flatten() for parameter in method.net.parameters()])
    penalty = 3.0 * (method.fisher * (theta - method.anchor).square()).sum()  # lambda has no 1/2
    loss = cross_entropy(method.net(batch.inputs), batch.labels) + penalty
    expected = gradient(method.net, loss)
    assert torch.allclose(captured_gradient(method, batch), expected, rtol=1e-4, atol=1e-6)


def test_two_identical_tasks_double_the_importance_and_gamma_zero_keeps_the_last(stream: Stream) -> None:
    method = after_task_one(stream)
    once = method.fisher.clone()
    assert (once >= 0).all()
    assert once.sum() > 0
    method.end_task(stream[0])
    assert torch.equal(method.fisher, 2 * once)
    forgetful = after_task_one(stream, gamma=0)
    forgetful.end_task(stream[1])
    of_second = forgetful.fisher.clone()
    forgetful.end_task(stream[0])
    assert torch.equal(forgetful.fisher, once)
    assert not torch.equal(of_second, once)
    decaying = after_task_one(stream, gamma=0.5)
    decaying.end_task(stream[1])
    assert torch.allclose(decaying.fisher, 0.5 * once + of_second)


def linear_case(kind: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fisher of (W, b), inputs, answers and labels of a linear softmax model with two samples."""
    net = nn.Linear(2, 3)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.5, -1.0], [1.0, 0.25], [-0.5, 0.75]]))
        net.bias.copy_(torch.tensor([0.1, -0.2, 0.3]))
    inputs, labels = torch.tensor([[1.0, 2.0], [-3.0, 0.5]]), torch.tensor([2, 0])
    method = OEWC(net, Problem(3, 2, lambda x: x, lambda x: x), OEWCConfig(fisher=kind))
    split = Split(inputs, labels)
    method.end_task(Task(0, (0, 1, 2), split, split))
    return method.fisher, inputs, net(inputs).softmax(1).detach(), labels


@pytest.mark.parametrize("kind", ["mammoth", "empirical"])
def test_the_fisher_of_a_linear_softmax_model_by_hand(kind: str) -> None:
    fisher, inputs, answers, labels = linear_case(kind)
    of_weights, of_biases = torch.zeros(3, 2), torch.zeros(3)
    for x, p, y in zip(inputs, answers, labels, strict=True):
        errors = nn.functional.one_hot(y, 3) - p  # d log p_y / d logits
        counts = p[y] if kind == "mammoth" else 1.0
        of_weights += counts * torch.outer(errors, x) ** 2 / 2
        of_biases += counts * errors**2 / 2
    assert torch.allclose(fisher, torch.cat([of_weights.flatten(), of_biases]), rtol=1e-5)
    assert not torch.allclose(fisher, linear_case("true")[0], rtol=1e-2)


def test_the_true_fisher_of_a_linear_softmax_model_is_the_variance_of_its_answers() -> None:
    fisher, inputs, answers, _ = linear_case("true")
    variance = answers * (1 - answers)  # E[(1{c} - p_c)^2] over labels drawn from p
    expected = (variance[:, :, None] * inputs.square()[:, None, :]).mean(0)
    assert torch.allclose(fisher, torch.cat([expected.flatten(), variance.mean(0)]), rtol=1e-5)


def test_gradients_are_squared_before_they_are_averaged(stream: Stream) -> None:
    method = after_task_one(stream, fisher="empirical", gamma=0)
    train = stream[0].train
    with evaluation_mode(method.net):
        mean = gradient(method.net, cross_entropy(method.net(stream.test_view(train.inputs)), train.labels))
    assert method.fisher.sum() > 2 * mean.square().sum()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_importance_does_not_depend_on_how_images_are_grouped(
    kind: str, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = OEWC(small_resnet(), make_problem(stream), OEWCConfig(fisher=kind, gamma=0))
    found = []
    for size in (10, 3, 1):
        monkeypatch.setattr(gradients, "FISHER_CHUNK", size)
        method.end_task(few(stream, 0, 10))
        found.append(method.fisher.clone())
    assert torch.allclose(found[0], found[1], rtol=1e-3, atol=1e-7)
    assert torch.allclose(found[0], found[2], rtol=1e-3, atol=1e-7)


def test_batch_norm_weights_count_and_its_statistics_stay(stream: Stream) -> None:
    method = OEWC(small_resnet(), make_problem(stream))
    assert len(method.fisher) == sum(parameter.numel() for parameter in method.net.parameters())
    before = {name: value.clone() for name, value in method.net.named_buffers()}
    method.end_task(few(stream, 0, 4))
    assert all(torch.equal(before[name], value) for name, value in method.net.named_buffers())
    assert all(module.training for module in method.net.modules())
    positions = torch.cat(
        [torch.full((p.numel(),), name.endswith("norm1.weight")) for name, p in method.net.named_parameters()]
    )
    assert method.fisher[positions].sum() > 0


class Normed(nn.Module):
    """Batch norm over maps of 4 x 4, so that a single image has statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(32, 6)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.stem(inputs)).relu().flatten(1))
        return logits


def test_in_the_reference_mode_every_image_moves_the_statistics(stream: Stream) -> None:
    with torch.random.fork_rng():
        net = Normed()
    method = OEWC(net, make_problem(stream), OEWCConfig(fisher_mode="train"))
    method.end_task(few(stream, 0, 4))
    assert net.norm.num_batches_tracked == 4
    in_train = method.fisher.clone()
    method = OEWC(net, make_problem(stream))
    method.end_task(few(stream, 0, 4))
    assert not torch.allclose(in_train, method.fisher, rtol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_without_batch_norm_both_modes_agree(kind: str, stream: Stream) -> None:
    found = []
    for mode in ("eval", "train"):
        config = OEWCConfig(fisher=kind, fisher_mode=mode)
        method = OEWC(make_net(), make_problem(stream), config)
        method.end_task(few(stream, 0, 6))
        found.append(method.fisher)
    assert torch.allclose(found[0], found[1], rtol=1e-4, atol=1e-8)


def test_images_go_through_the_training_view(stream: Stream) -> None:
    seen: list[int] = []

    def view(images: Tensor) -> Tensor:
        seen.append(len(images))
        return stream.test_view(images)

    method = OEWC(make_net(), Problem(6, 3, view, lambda images: pytest.fail("test view"), 0))
    method.end_task(stream[0])
    assert sum(seen) == len(stream[0].train)
