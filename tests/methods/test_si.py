"""SI: the path integral, what it becomes at a task's end, and when it is plain training."""

from typing import Any

import pytest
import torch
from support.steps import build, final_weights, first_batch, first_task, gradient, learn, optimizer_of
from support.tiny_stream import make_net, make_problem, weights
from torch import nn
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream
from strongreplay.methods import si
from strongreplay.methods.si import SI, SIConfig
from strongreplay.nets import build_net
from strongreplay.protocol import Batch, Problem, derive_generator


def make(stream: Stream, net: nn.Module | None = None, **settings: Any) -> SI:
    return SI(net or make_net(), make_problem(stream), SIConfig(**settings))


def after_task_one(stream: Stream, **settings: Any) -> SI:
    method = make(stream, **settings)
    learn(method, first_task(stream), epochs=2)
    return method


@pytest.mark.parametrize("path", ["canonical", "reference"])
def test_without_weight_and_clipping_it_is_sgd_to_the_bit(path: str, stream: Stream) -> None:
    assert torch.equal(final_weights("si", stream, c=0, clip=None, path=path), final_weights("sgd", stream))


def test_without_weight_it_is_sgd_with_clipped_gradients(stream: Stream) -> None:
    method, net = build("si", make_problem(stream), c=0, clip=0.01), make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for task in (0, 1, 2):
        batch = first_batch(stream, task)
        method.observe(batch, optimizer_of(method))
        method.end_task(stream[task])
        optimizer.zero_grad()
        cross_entropy(net(batch.inputs), batch.labels).backward()
        nn.utils.clip_grad_value_(net.parameters(), 0.01)
        optimizer.step()
    assert torch.equal(weights(method.net), weights(net))
    sgd = build("sgd", make_problem(stream))
    for task in (0, 1, 2):
        sgd.observe(first_batch(stream, task), optimizer_of(sgd))
    assert not torch.equal(weights(method.net), weights(sgd.net))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_path_integral_adds_up_to_the_fall_of_the_loss(momentum: float, stream: Stream) -> None:
    errors = []
    for lr, steps in ((0.02, 10), (0.002, 100)):
        method, batch = make(stream, c=0, clip=None), first_batch(stream, size=40)
        optimizer = torch.optim.SGD(method.net.parameters(), lr=lr, momentum=momentum)
        losses = [method.observe(batch, optimizer)["current"].item() for _ in range(steps)]
        with torch.no_grad():
            fall = losses[0] - cross_entropy(method.net(batch.inputs), batch.labels).item()
        assert fall > 0.1
        errors.append(abs(method.path.sum().item() / fall - 1))
    assert errors[0] < 0.2
    assert errors[1] < 0.25 * errors[0]  # of the order of lr


@pytest.mark.parametrize("path", ["canonical", "reference"])
def test_the_path_of_a_quadratic_in_one_dimension_in_closed_form(
    path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, lr, start, steps = 0.8, 0.1, 1.5, 7
    monkeypatch.setattr(si, "cross_entropy", lambda logits, labels: 0.5 * a * logits.square().sum())
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, start)
    method = SI(net, Problem(1, 2, lambda x: x, lambda x: x), SIConfig(clip=None, path=path, xi=0.5))
    one = torch.ones(1, 1)
    for _ in range(steps):
        method.observe(Batch(torch.zeros(1), one, one, torch.zeros(1)), optimizer_of(method, lr))
    shrink = 1 - lr * a
    path_sum = lr * a**2 * start**2 * (1 - shrink ** (2 * steps)) / (1 - shrink**2)
    assert method.path.item() == pytest.approx(path_sum, rel=1e-5)
    method.end_task(None)  # type: ignore[arg-type]
    moved = start * (1 - shrink**steps)
    assert method.importance.item() == pytest.approx(path_sum / (moved**2 + 0.5), rel=1e-5)


def test_in_task_one_both_paths_agree_and_from_task_two_the_reference_counts_the_penalty(
    stream: Stream,
) -> None:
    ours, reference = (make(stream, clip=None, path=path) for path in ("canonical", "reference"))
    for method in (ours, reference):
        for _ in range(4):
            method.observe(first_batch(stream), optimizer_of(method))
    assert torch.allclose(ours.path, reference.path, rtol=1e-3, atol=1e-6)
    assert torch.equal(weights(ours.net), weights(reference.net))
    for method in (ours, reference):
        method.end_task(stream[0])
        method.importance.fill_(2.0)
        for _ in range(3):
            method.observe(first_batch(stream, 1), optimizer_of(method))
    assert not torch.allclose(ours.path, reference.path, rtol=1e-2)


@pytest.mark.parametrize("path", ["canonical", "reference"])
def test_one_step_of_task_two_by_hand(path: str, stream: Stream) -> None:
    method, batch = after_task_one(stream, c=2.0, clip=0.05, path=path), first_batch(stream, 1)
    method.observe(batch, optimizer_of(method))
    assert (method.importance >= 0).all()
    of_task = gradient(method.net, cross_entropy(method.net(batch.inputs), batch.labels))
    before, old_path = weights(method.net), method.path.clone()
    distance = before - method.anchor
    total = (of_task + 2 * 2.0 * method.importance * distance).clamp(-0.05, 0.05)
    terms = method.observe(batch, optimizer_of(method, lr=0.3))
    assert terms["penalty"].item() == pytest.approx((2 * method.importance @ distance**2).item(), rel=1e-4)
    assert torch.allclose(weights(method.net), before - 0.3 * total, atol=1e-7)
    added = of_task * 0.3 * total if path == "canonical" else 0.3 * total.square()  # the current lr
    assert torch.allclose(method.path, old_path + added, atol=1e-7)


def test_at_a_tasks_end_the_penalty_is_zero_and_negative_paths_do_not_count(stream: Stream) -> None:
    method = make(stream, xi=0.5)
    assert torch.equal(method.anchor, weights(method.net))  # the initial weights, before task one
    method.observe(first_batch(stream), optimizer_of(method))
    method.path[:5] = -1.0
    path, moved = method.path.clone(), weights(method.net) - method.anchor
    method.end_task(stream[0])
    assert torch.equal(method.importance[:5], torch.zeros(5))
    assert torch.allclose(method.importance, path.clamp(min=0) / (moved.square() + 0.5))
    assert torch.equal(method.path, torch.zeros_like(path))
    assert method.observe(first_batch(stream, 1), optimizer_of(method))["penalty"] == 0
    first = method.importance.clone()
    method.end_task(stream[1])
    assert (method.importance >= first).all()
    assert method.importance.sum() > first.sum()  # it adds up over tasks


def test_running_statistics_are_not_weights(stream: Stream) -> None:
    net = build_net("resnet18", (1, 6, 6), 6, derive_generator(0, "net"), width=4)
    method = make(stream, net)
    assert len(method.importance) == sum(parameter.numel() for parameter in net.parameters())


def test_a_pull_keeps_important_weights_near_their_anchor(stream: Stream) -> None:
    def drift(c: float) -> float:
        method = after_task_one(stream, c=c)
        method.importance.fill_(1.0)
        for _ in range(5):
            method.observe(first_batch(stream, 1), optimizer_of(method))
        return float((weights(method.net) - method.anchor).square().sum())

    assert drift(2.0) < 0.9 * drift(0.0)
