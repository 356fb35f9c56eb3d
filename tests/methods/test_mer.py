"""MER: its algorithms on one weight by hand, and when it is plain training."""

from typing import Any

import pytest
import torch
from support.steps import first_batch, first_norm, make_cnn, optimizer_of
from support.tiny_stream import make_net, make_problem, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream
from strongreplay.methods import mer
from strongreplay.methods.base import unchanged
from strongreplay.methods.mer import MER, MERConfig
from strongreplay.methods.samples import LabelledSamples
from strongreplay.protocol import Batch, Problem


class Distance(nn.Module):
    """theta - x, with theta = 0 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.theta - inputs


def after_a_sample(
    monkeypatch: pytest.MonkeyPatch, empty: bool = False, **settings: Any
) -> tuple[float, MER]:
    """theta after the sample 1: loss (theta - x)^2 / 2, rate 0.1, and 2 as the only one in memory."""
    monkeypatch.setattr(mer, "cross_entropy", lambda logits, labels: 0.5 * logits.square().sum())
    config = MERConfig(**{"memory_size": 5, "num_draws": 1} | settings)
    net, label = Distance(), torch.zeros(1, dtype=torch.int64)
    method = MER(net, Problem(1, 1, unchanged, unchanged), config)
    if not empty:
        method.memory.add(LabelledSamples(torch.full((1, 1), 2.0), label))
    one = torch.ones(1, 1)
    method.observe(Batch(torch.zeros(1), one, one, label), optimizer_of(method, 0.1))
    return net.theta.item(), method


def test_algorithm_1_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    found, method = after_a_sample(monkeypatch, algorithm="1", beta=0.5, gamma=0.5)
    assert found == pytest.approx(0.0725)
    assert len(method.memory) == 2


def test_algorithm_6_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    assert after_a_sample(monkeypatch, algorithm="6", gamma=0.5)[0] == pytest.approx(0.14)


def test_a_second_sequence_starts_from_the_interpolated_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    first = 0.145  # after one sequence and half of the way
    second = first + 0.1 * (1 - first)
    second += 0.1 * (2 - second)
    wanted = 0.5 * (first + 0.5 * (second - first))
    found = after_a_sample(monkeypatch, algorithm="1", beta=0.5, gamma=0.5, repeats=2)[0]
    assert found == pytest.approx(wanted)
    after = 0.14 + 0.1 * (2 - 0.14)
    after += 0.1 * (1 - after)
    found = after_a_sample(monkeypatch, algorithm="6", gamma=0.5, repeats=2)[0]
    assert found == pytest.approx(0.14 + 0.5 * (after - 0.14))


def test_algorithm_7_takes_a_larger_step_on_the_streams_sample_at_a_random_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, last = 0.3 + 0.1 * 1.7, 0.2 + 0.3 * 0.8  # the factor is 3
    found = set()
    real = torch.randint
    for place in (0, 1):
        monkeypatch.setattr(
            torch,
            "randint",
            lambda n, size, place=place, **o: real(n, size, **o) if size else torch.tensor(place),
        )
        found.add(round(after_a_sample(monkeypatch, algorithm="7", repeats=3, gamma=1.0)[0], 5))
    assert found == {round(first, 5), round(last, 5)}


@pytest.mark.parametrize(("algorithm", "steps"), [("1", 2), ("6", 2), ("7", 1), ("batch", 2)])
def test_with_an_empty_memory_the_sample_alone_is_learnt(
    algorithm: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"algorithm": algorithm, "gamma": 1.0, "repeats": 2}
    found = after_a_sample(monkeypatch, empty=True, **settings)[0]
    assert found == pytest.approx(0.2 if algorithm == "7" else 1 - 0.9**steps)


def make(stream: Stream, net: nn.Module | None = None, **settings: Any) -> MER:
    return MER(net or make_net(), make_problem(stream), MERConfig(**{"memory_size": 24} | settings))


@pytest.mark.parametrize("algorithm", ["1", "6"])
def test_going_the_whole_way_it_is_sgd_on_single_samples_in_that_order(
    algorithm: str, stream: Stream
) -> None:
    method = make(stream, algorithm=algorithm, beta=1, gamma=1, num_draws=2)
    net, batch, twin = make_net(), first_batch(stream), make(stream)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def learn(inputs: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad()
        cross_entropy(net(inputs), labels).backward()
        optimizer.step()

    for row in range(16):
        own = (batch.inputs[row : row + 1], batch.labels[row : row + 1])
        twin.config = method.config
        drawn = twin.draw()
        for sample in [own, *drawn] if algorithm == "1" else [*drawn, own]:
            learn(*sample)
        twin.memory.add(LabelledSamples(batch.images[row : row + 1], own[1]))
    method.observe(batch, optimizer_of(method))
    assert torch.equal(weights(method.net), weights(net))


@pytest.mark.parametrize("algorithm", ["1", "6", "7", "batch"])
def test_going_none_of_the_way_it_only_stores(algorithm: str, stream: Stream) -> None:
    method = make(stream, algorithm=algorithm, gamma=0)
    before = weights(method.net)
    method.observe(first_batch(stream), optimizer_of(method))
    assert torch.equal(weights(method.net), before)
    assert len(method.memory) == 16


def test_momentum_is_not_used_and_statistics_do_not_go_back(stream: Stream) -> None:
    plain, other = make(stream), make(stream)
    batch = first_batch(stream)
    plain.observe(batch, optimizer_of(plain))
    other.observe(batch, torch.optim.SGD(other.net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1))
    assert torch.equal(weights(plain.net), weights(other.net))
    method = make(stream, make_cnn(), algorithm="batch", gamma=0, repeats=3)
    method.train()
    method.observe(batch, optimizer_of(method))
    assert first_norm(method.net).num_batches_tracked == 3


def test_in_batches_it_is_one_step_on_the_mean_of_all(stream: Stream) -> None:
    method, net, batch = make(stream, algorithm="batch", gamma=1), make_net(), first_batch(stream)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    method.observe(batch, optimizer_of(method))
    cross_entropy(net(batch.inputs), batch.labels).backward()
    optimizer.step()
    assert torch.equal(weights(method.net), weights(net))


def test_draws_are_with_replacement(stream: Stream) -> None:
    method = make(stream, num_draws=20)
    method.memory.append(LabelledSamples(torch.arange(20).view(20, 1).to(torch.uint8), torch.arange(20)))
    labels = [int(label) for _ in range(5) for _, label in method.draw()]
    assert len(labels) == 100
    assert any(len(set(labels[i : i + 20])) < 20 for i in range(0, 100, 20))
