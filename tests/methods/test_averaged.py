"""AveragedNet: the warm-up by hand, the odds of a move, statistics, and what is saved."""

from typing import Any

import pytest
import torch
from support.steps import first_batch, optimizer_of
from support.tiny_stream import make_net, make_problem, weights
from torch import Tensor, nn

from strongreplay.data.streams import Stream
from strongreplay.methods import build_method
from strongreplay.methods.averaged import AveragedNet, Averaging
from strongreplay.nets import build_net
from strongreplay.protocol import derive_generator


class Scalar(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor([value]))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.value * inputs


def average(live: Any, rate: float = 1.0, decay: float = 0.999, seed: int = 0, **options: Any) -> Any:
    return AveragedNet(live, rate, decay, torch.Generator().manual_seed(seed), **options)


def put(live: Scalar, value: float) -> None:
    with torch.no_grad():
        live.value.fill_(value)


def test_warm_up_by_hand() -> None:
    live = Scalar(0.0)
    averaged = average(live)
    put(live, 1.0)
    averaged.follow()
    assert averaged.copy.value.item() == 0.5
    averaged.follow()
    assert averaged.copy.value.item() == pytest.approx(2 / 3)


def test_until_the_cap_it_is_the_mean_of_all_weights_and_then_decays_by_the_cap() -> None:
    live, values = Scalar(3.0), [3.0]
    averaged = average(live, decay=0.9)
    for number in range(9):  # 1 - 1 / (n + 1) reaches 0.9 at n = 9
        values.append(float(number**2 % 7))
        put(live, values[-1])
        averaged.follow()
        assert averaged.copy.value.item() == pytest.approx(sum(values) / len(values), rel=1e-5)
    before = averaged.copy.value.item()
    put(live, -50.0)
    averaged.follow()
    assert averaged.copy.value.item() == pytest.approx(0.9 * before + 0.1 * -50, rel=1e-5)


def test_the_warm_up_counts_steps_not_moves() -> None:
    live = Scalar(0.0)
    averaged = average(live, rate=0.0)
    put(live, 1.0)
    for _ in range(3):
        averaged.follow()
    assert averaged.copy.value.item() == 0
    averaged.rate = 1.0
    averaged.follow()
    assert averaged.copy.value.item() == pytest.approx(1 / 5)  # of the fourth step, though the first move


@pytest.mark.parametrize(("rate", "low", "high"), [(0.0, 0, 0), (0.3, 510, 690), (1.0, 2000, 2000)])
def test_it_moves_with_the_odds_it_is_given(
    rate: float, low: int, high: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: list[float] = []
    monkeypatch.setattr(torch, "_foreach_lerp_", lambda own, its, share: moves.append(share))
    averaged = average(Scalar(0.0), rate=rate)
    for _ in range(2000):
        averaged.follow()
    assert low <= len(moves) <= high


def test_it_starts_as_the_live_net_shares_nothing_with_it_and_has_no_gradients() -> None:
    live = build_net("cnn", (1, 6, 6), 6, derive_generator(0, "net"), width=8)
    averaged = average(live)
    assert torch.equal(weights(live), weights(averaged))
    assert not {p.data_ptr() for p in live.parameters()} & {p.data_ptr() for p in averaged.parameters()}
    assert all(p.requires_grad for p in live.parameters())
    assert not any(p.requires_grad for p in averaged.parameters())
    assert not averaged(torch.rand(4, 1, 6, 6)).requires_grad


def test_it_changes_mode_with_its_owner_and_statistics_come_from_what_it_sees() -> None:
    live = build_net("cnn", (1, 6, 6), 6, derive_generator(0, "net"), width=8)
    averaged = average(live)
    norm: Any = averaged.copy.body.layers[0][1]
    inputs = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    averaged.train()
    averaged(inputs)
    maps = averaged.copy.body.layers[0][0](inputs)
    assert torch.allclose(norm.running_mean, 0.1 * maps.mean((0, 2, 3)), atol=1e-6)
    live(inputs)
    averaged.follow()
    assert norm.num_batches_tracked == 1  # neither counted nor averaged with the live net's
    assert torch.allclose(norm.running_mean, 0.1 * maps.mean((0, 2, 3)), atol=1e-6)
    averaged.eval()
    averaged(inputs)
    assert norm.num_batches_tracked == 1


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_statistics_of_the_working_net_by_a_switch(rate: float) -> None:
    live = build_net("cnn", (1, 6, 6), 6, derive_generator(0, "net"), width=8)
    averaged = average(live, rate=rate, statistics="working")
    for _ in range(2):
        live(torch.rand(4, 1, 6, 6)), averaged(torch.rand(4, 1, 6, 6))
        averaged.follow()
    for own, its in zip(averaged.copy.buffers(), live.buffers(), strict=True):
        assert torch.equal(own, its)


def test_saved_and_loaded_it_goes_on_to_the_bit() -> None:
    live = Scalar(0.0)
    averaged, other = average(live, rate=0.5), average(live, rate=0.5, seed=5)
    put(live, 1.0)
    for _ in range(7):
        averaged.follow()
    other.load_state_dict(averaged.state_dict())
    for value in range(20):
        put(live, float(value))
        averaged.follow(), other.follow()
        assert torch.equal(averaged.copy.value, other.copy.value)
    assert other.num_steps == 27


averaging_methods = pytest.mark.parametrize("name", ["er", "derpp", "ser"])


def start(name: str, stream: Stream, seed: int = 0, average: float | None = 0.75) -> Averaging:
    problem = make_problem(stream, seed=seed)
    method = build_method(name, make_net(seed), problem, memory_size=12, average=average)
    assert isinstance(method, Averaging)
    return method


def go(method: Averaging, stream: Stream, *tasks: int) -> Averaging:
    for index in tasks:
        optimizer = optimizer_of(method)
        for _ in range(4):
            method.observe(first_batch(stream, index), optimizer)
        method.end_task(stream[index])
    return method


@averaging_methods
def test_an_average_answers_and_the_net_learns_as_without_it(name: str, stream: Stream) -> None:
    method, plain = start(name, stream), start(name, stream, average=None)
    optimizers, mean = [optimizer_of(each) for each in (method, plain)], weights(method.net)
    for number in range(1, 8):
        for each, optimizer in zip((method, plain), optimizers, strict=True):
            each.observe(first_batch(stream), optimizer)
        # First the mean of all weights so far, then a quarter of the newest and three of what was.
        mean += max(1 / (number + 1), 0.25) * (weights(method.net) - mean)
    assert method.averaged is not None
    assert torch.allclose(weights(method.averaged.copy), mean, atol=1e-6)
    assert torch.equal(weights(method.net), weights(plain.net))
    inputs = first_batch(stream).inputs
    assert torch.equal(method.predict(inputs), method.averaged.copy(inputs))
    assert not torch.allclose(method.predict(inputs), method.net(inputs), atol=1e-3)
    assert list(method.predictors()) == ["averaged", "working"]


@averaging_methods
@pytest.mark.parametrize("num_steps", [7, 15, 60, 140, 200])
def test_a_short_training_makes_up_most_of_the_average(name: str, num_steps: int, stream: Stream) -> None:
    def move_to(value: float) -> float:
        """Train with weights that do not change, and return the average of these weights."""
        method.pace_average(num_steps)
        with torch.no_grad():
            for weight in method.net.parameters():
                weight.fill_(value)
        for _ in range(num_steps):
            method.follow()
        average = weights(method.averaged.copy)  # type: ignore[union-attr]
        assert torch.allclose(average, average[:1], atol=0.05)
        return float(average[0])

    method = start(name, stream, average=0.99)
    assert abs(move_to(1.0) - 1) < 0.05  # of the random weights, next to nothing is left
    assert move_to(0.0) <= 1 / 4  # of the training before, at most a quarter
    method.pace_average(10_000)
    assert method.averaged is not None
    assert method.averaged.decay == 0.99


@averaging_methods
def test_without_it_nothing_is_kept_for_it(name: str, stream: Stream) -> None:
    plain = start(name, stream, average=None)
    assert plain.averaged is None
    assert plain.predictors() == {}
    assert not any("averaged" in key for key in plain.state_dict())
    inputs = first_batch(stream).inputs
    assert torch.equal(plain.predict(inputs), plain.net(inputs))


@averaging_methods
def test_with_it_a_method_is_saved_and_goes_on_to_the_bit(name: str, stream: Stream) -> None:
    straight, stopped = go(start(name, stream), stream, 0, 1, 2), go(start(name, stream), stream, 0, 1)
    resumed = start(name, stream, seed=5)
    resumed.load_state_dict(stopped.state_dict())
    go(resumed, stream, 2)
    assert torch.equal(weights(resumed), weights(straight))
    inputs = first_batch(stream).inputs
    assert torch.equal(resumed.predict(inputs), straight.predict(inputs))
