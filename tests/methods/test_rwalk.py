"""RWalk: path, scores and Fisher information by hand, and when it is plain training."""

from typing import Any

import pytest
import torch
from support.steps import final_weights, first_batch, first_task, gradient, learn, optimizer_of
from support.tiny_stream import make_net, make_problem, weights
from torch import nn
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream
from strongreplay.methods import rwalk
from strongreplay.methods.base import unchanged
from strongreplay.methods.rwalk import RWalk, RWalkConfig, to_unit_range
from strongreplay.protocol import Batch, Problem


def make(stream: Stream, **settings: Any) -> RWalk:
    return RWalk(make_net(), make_problem(stream), RWalkConfig(**{"memory_size": 0} | settings))


def quadratic(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> RWalk:
    """theta = 1 with the loss theta^2 / 2, after two steps of rate 0.1."""
    monkeypatch.setattr(rwalk, "cross_entropy", lambda logits, labels: 0.5 * logits.square().sum())
    net = nn.Linear(1, 1, bias=False)
    nn.init.ones_(net.weight)
    config = RWalkConfig(memory_size=0, interval=3, **settings)
    method, one = RWalk(net, Problem(1, 2, unchanged, unchanged), config), torch.ones(1, 1)
    for _ in range(2):
        method.observe(Batch(torch.zeros(1), one, one, torch.zeros(1)), optimizer_of(method, 0.1))
    return method


def test_the_path_of_two_steps_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    method = quadratic(monkeypatch)
    assert method.path.item() == pytest.approx(0.181)  # the loss fell by 0.17195


@pytest.mark.parametrize(("distance", "score"), [("full", 4.878706), ("half", 9.501312)])
def test_the_score_and_fisher_information_of_an_interval_by_hand(
    distance: str, score: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = quadratic(monkeypatch, distance=distance)
    method.fisher.fill_(1.0)
    method.num_intervals = 1  # not the first
    method.close_interval()
    assert method.scores.item() == pytest.approx(score, rel=1e-5)
    assert method.fisher.item() == pytest.approx(0.9145)
    assert method.path.item() == method.squares.item() == 0
    assert method.start.item() == pytest.approx(0.81)


def test_fisher_information_starts_from_the_first_interval_or_at_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = quadratic(monkeypatch)
    method.close_interval()
    assert method.fisher.item() == pytest.approx(0.905)
    assert method.scores.item() == pytest.approx(0.181 / (1e-3 + 0.905 * 0.19**2), rel=1e-5)
    legacy = quadratic(monkeypatch, fisher="legacy")
    legacy.close_interval()
    assert legacy.scores.item() == pytest.approx(0.181 / 1e-3, rel=1e-5)  # divided by xi alone
    assert legacy.fisher.item() == pytest.approx(0.9 * 1.81 / 3)
    assert legacy.squares.item() == pytest.approx(1.81)  # goes on over the task


def test_an_interval_ends_before_the_step_that_completes_it(stream: Stream) -> None:
    method = make(stream, interval=3)
    for step in range(4):
        method.observe(first_batch(stream), optimizer_of(method))
        assert method.num_intervals == (step >= 2)
    assert method.num_squares == 2


def test_without_weight_or_in_the_first_task_it_is_sgd_to_the_bit(stream: Stream) -> None:
    sgd = final_weights("sgd", stream)
    assert torch.equal(final_weights("rwalk", stream, penalty=0, memory_size=0), sgd)
    assert not torch.equal(final_weights("rwalk", stream, memory_size=0), sgd)
    one = first_task(stream)
    assert torch.equal(final_weights("rwalk", one, memory_size=0), final_weights("sgd", one))


def test_with_memory_and_without_weight_it_is_er_to_the_bit(stream: Stream) -> None:
    assert torch.equal(final_weights("rwalk", stream, penalty=0), final_weights("er", stream))


def test_the_penalty_is_zero_at_the_first_step_of_a_task_and_later_its_step_is_by_hand(
    stream: Stream,
) -> None:
    method, batch = make(stream, penalty=2.0, interval=5), first_batch(stream, 1)
    learn(method, first_task(stream), epochs=2)
    assert method.observe(batch, optimizer_of(method))["penalty"] == 0
    assert method.path.abs().sum() > 0  # differences of copies, not of the same tensor
    distance = weights(method.net) - method.anchor
    of_task = gradient(method.net, cross_entropy(method.net(batch.inputs), batch.labels))
    total = of_task + 4 * method.importance * distance
    before, path = weights(method.net), method.path.clone()
    terms = method.observe(batch, optimizer_of(method, lr=0.3))
    assert terms["penalty"].item() == pytest.approx((2 * method.importance @ distance**2).item(), rel=1e-4)
    assert torch.allclose(weights(method.net), before - 0.3 * total, atol=1e-6)
    assert torch.allclose(method.path, path + of_task * 0.3 * total, atol=1e-6)


def test_the_path_with_momentum_is_the_gradient_times_the_real_step(stream: Stream) -> None:
    method, batch = make(stream), first_batch(stream)
    optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1, momentum=0.9)
    method.observe(batch, optimizer)
    of_task = gradient(method.net, cross_entropy(method.net(batch.inputs), batch.labels))
    before, path = weights(method.net), method.path.clone()
    method.observe(batch, optimizer)
    assert torch.allclose(method.path, path - of_task * (weights(method.net) - before), atol=1e-7)


@pytest.mark.parametrize("scores", ["mean", "legacy"])
def test_scores_are_averaged_over_tasks_and_scaled_to_one(scores: str, stream: Stream) -> None:
    method = make(stream, scores=scores)
    learn(method, first_task(stream), epochs=1)
    first = method.total_scores.clone()
    assert first.max() > 0
    assert method.importance.max() <= 2
    assert torch.equal(method.scores, torch.zeros_like(first))
    method.num_squares = 0  # no unfinished interval
    method.scores.fill_(3.0)
    method.end_task(stream[1])
    wanted = (first + 3) / 2 if scores == "mean" else 1.5 * first + 1.5
    assert torch.allclose(method.total_scores, wanted)
    assert torch.equal(to_unit_range(torch.tensor([2.0, 4.0, 3.0])), torch.tensor([0.0, 1.0, 0.5]))
    assert torch.equal(to_unit_range(torch.ones(2)), torch.zeros(2))


def test_new_rows_of_the_head_have_no_importance(stream: Stream) -> None:
    method = make(stream)
    learn(method, first_task(stream), epochs=1)
    old = method.importance.sum()
    method.grow(8, torch.Generator())
    assert method.importance.sum() == pytest.approx(old.item())
    assert (method.importance[-2:] == 0).all()
    assert method.observe(first_batch(stream, 1), optimizer_of(method))["penalty"] == 0
