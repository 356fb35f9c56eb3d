"""GSS: scores from gradients, who is replaced and how often, and when it is ER."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.steps import count_passes, first_batch, learn, one_by_one, optimizer_of
from support.tiny_stream import make_net, make_problem, weights
from torch import Tensor

from strongreplay.data.streams import Stream
from strongreplay.methods import gss
from strongreplay.methods.er import ER, ERConfig
from strongreplay.methods.gss import GSS, GSSConfig, diversity_scores
from strongreplay.nets import build_net
from strongreplay.protocol import Batch, Problem, derive_generator


def choose_slots(
    taken: NDArray[np.float64], new: NDArray[np.float64], draws: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The slot each new sample gets, or -1; `taken` changes too."""
    slots, won = gss.choose_slots(*map(torch.from_numpy, (taken, new, draws)))
    return np.where(won.numpy(), slots.numpy(), -1)


def make(stream: Stream, **settings: Any) -> GSS:
    return GSS(make_net(), make_problem(stream), GSSConfig(**({"memory_size": 24} | settings)))


def scores_of(batch: list[list[float]], remembered: list[list[float]]) -> list[float]:
    gradients = torch.tensor(batch + remembered)
    found: list[float] = diversity_scores(gradients @ gradients.T, len(batch)).tolist()
    return found


def test_scores_by_hand() -> None:
    assert scores_of([[3.0, 0.0]], [[5.0, 0.0]]) == pytest.approx([2, 2])  # identical directions
    assert scores_of([[3.0, 0.0]], [[0.0, 5.0]]) == pytest.approx([1, 1])  # orthogonal
    assert scores_of([[3.0, 0.0]], [[-5.0, 0.0]]) == pytest.approx([0, 0], abs=1e-5)  # opposite
    assert scores_of([[3.0, 0.0]], [[-5.0, 0.0], [1.0, 1.0]]) == pytest.approx([1 + 0.5**0.5] * 2)
    # The batch counts by its mean gradient, (0, 2), and each sample by its own.
    assert scores_of([[2.0, 2.0], [-2.0, 2.0]], [[1.0, 0.0]]) == pytest.approx(
        [1, 1 + 0.5**0.5, 1 - 0.5**0.5]
    )


def test_scores_stay_above_zero_and_a_vanished_gradient_counts_as_orthogonal() -> None:
    opposite = scores_of([[3.0, 0.1]], [[-3.0, -0.1]])
    assert all(0 < score < 1e-5 for score in opposite)
    assert scores_of([[0.0, 0.0]], [[1.0, 0.0]]) == [1, 1]
    assert scores_of([[1.0, 0.0]], [[0.0, 0.0]]) == [1, 1]
    slots = choose_slots(np.full(3, gss.LEAST_SCORE), np.full(4, gss.LEAST_SCORE), np.full((2, 4), 0.4))
    assert (slots == 1).all()  # no 0 / 0


def test_scores_in_training_are_those_of_gradients_taken_one_by_one(stream: Stream) -> None:
    method = make(stream, gss_size=10)
    method.observe(first_batch(stream), optimizer_of(method))
    batch, state = first_batch(stream, 1), method.memory.generator.get_state()
    scores = method.score(batch)
    method.memory.generator.set_state(state)
    drawn = method.memory.sample(10)
    own = one_by_one(method.net, stream.test_view(batch.images), batch.labels)
    others = one_by_one(method.net, stream.test_view(drawn.images), drawn.labels)
    for score, single in zip(scores, [own.mean(0), *own], strict=True):
        expected = 1 + torch.cosine_similarity(single[None], others).max()
        assert score.item() == pytest.approx(expected.item(), abs=1e-4)


def draws_for(count: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).random((2, count))


def test_a_score_of_three_halves_gives_way_to_one_half_in_three_of_four_draws() -> None:
    draws = draws_for(4000)
    won = [choose_slots(np.array([1.5]), np.array([0.5]), draws[:, i : i + 1])[0] == 0 for i in range(4000)]
    assert abs(np.mean(won) - 0.75) < 4 * (0.75 * 0.25 / 4000) ** 0.5


def test_slots_are_drawn_in_proportion_to_their_scores() -> None:
    draws = draws_for(6000)
    draws[1] = 0  # always accepted
    taken = np.array([0.5, 1.5, 1.0, 0.0])
    slots = [choose_slots(taken.copy(), np.array([0.5]), draws[:, i : i + 1])[0] for i in range(6000)]
    shares = np.bincount(slots, minlength=4) / 6000
    assert shares == pytest.approx([1 / 6, 1 / 2, 1 / 3, 0], abs=0.03)
    assert choose_slots(np.ones(3), np.ones(1), np.array([[1.0], [0.0]]))[0] == 2  # never past the end


def test_within_a_batch_each_decision_sees_those_before_it() -> None:
    arriving, draws = np.random.default_rng(1).random(40) + 0.1, draws_for(40, seed=2)
    taken = np.random.default_rng(3).random(6) + 0.5
    expected, scores = [], taken.tolist()
    for new, place, chance in zip(arriving, *draws, strict=True):
        shares = np.array(scores) / sum(scores)
        slot = int((shares.cumsum() <= place).sum())
        wins = chance < scores[slot] / (scores[slot] + new)
        expected.append(slot if wins else -1)
        if wins:
            scores[slot] = new
    assert choose_slots(taken, arriving, draws).tolist() == expected
    assert taken.tolist() == scores


def test_a_slot_holds_the_last_sample_that_won_it() -> None:
    slots, won = torch.tensor([4, 1, 4, 4, 2]), torch.tensor([True, False, True, False, True])
    assert gss.last_winner(slots, won).tolist() == [2, -1, 2, 2, 4]


def test_while_there_is_room_a_batch_enters_whole_under_its_common_score(stream: Stream) -> None:
    method = make(stream, memory_size=40)
    first, second = first_batch(stream, 0), first_batch(stream, 1)
    method.observe(first, optimizer_of(method))
    assert method.memory.rows.scores.tolist() == pytest.approx([gss.FIRST_SCORE] * 16)
    found: list[Tensor] = []
    score = method.score
    method.score = lambda batch: found.append(score(batch)) or found[-1]  # type: ignore[method-assign, func-returns-value]
    method.observe(second, optimizer_of(method))
    rows = method.memory.rows
    assert torch.equal(rows.images, torch.cat([first.images, second.images]))
    assert torch.equal(rows.labels, torch.cat([first.labels, second.labels]))
    assert torch.equal(rows.scores[16:], found[0][:1].expand(16))
    assert torch.equal(rows.scores[:16], torch.full((16,), gss.FIRST_SCORE))  # not refreshed


def fixed_scores(method: GSS, batch_score: float, each: float) -> None:
    method.score = lambda batch: torch.tensor([batch_score, *[each] * len(batch)])  # type: ignore[method-assign]


def test_the_first_of_a_batch_take_what_room_is_left_and_the_rest_compete(stream: Stream) -> None:
    skipping, competing = make(stream, memory_size=20), make(stream, memory_size=20)
    for method, batch_score in ((skipping, 1.0), (competing, 0.9)):
        method.observe(first_batch(stream, 0), optimizer_of(method))
        fixed_scores(method, batch_score, 0.01)
        method.observe(first_batch(stream, 1), optimizer_of(method))
        assert len(method.memory) == 20
    batch = first_batch(stream, 1)
    assert torch.equal(skipping.memory.rows.images[16:], batch.images[:4])
    assert skipping.memory.rows.scores[16:].tolist() == [1.0] * 4
    won = competing.memory.rows.scores == 0.01
    assert won.sum() > 3
    late = batch.images[4:].flatten(1)
    assert all((row == late).all(1).any() for row in competing.memory.rows.images[won].flatten(1))
    assert set(competing.memory.rows.labels[won].tolist()) <= {2, 3}


def test_those_who_compete_do_so_with_their_own_scores(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, batch = make(stream, memory_size=20), first_batch(stream, 1)
    method.observe(first_batch(stream, 0), optimizer_of(method))
    own = torch.arange(1, 17) / 1000
    method.score = lambda batch: torch.cat([torch.tensor([0.9]), own])  # type: ignore[method-assign]
    competing: list[NDArray[np.float64]] = []
    choose = gss.choose_slots

    def spy(taken: Tensor, arriving: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        competing.append(arriving.numpy())
        return choose(taken, arriving, draws)

    monkeypatch.setattr(gss, "choose_slots", spy)
    method.remember(batch)
    assert competing[0] == pytest.approx(own[4:].numpy())  # the first four took the room that was left
    rows = method.memory.rows
    for image, label, score in zip(rows.images, rows.labels, rows.scores, strict=True):
        if score < 0.05:
            place = round(1000 * score.item()) - 1
            assert torch.equal(image, batch.images[place])
            assert label == batch.labels[place]


def test_a_full_memory_passes_over_a_batch_with_an_acute_angle(stream: Stream) -> None:
    method = make(stream, memory_size=16)
    method.observe(first_batch(stream), optimizer_of(method))
    before = [column.clone() for column in method.memory.rows]
    fixed_scores(method, 1.0, 0.001)
    state = method.memory.generator.get_state()
    method.remember(first_batch(stream, 1))
    assert all(map(torch.equal, before, method.memory.rows))
    assert torch.equal(state, method.memory.generator.get_state())
    fixed_scores(method, 0.99, 0.001)
    method.remember(first_batch(stream, 1))
    assert not torch.equal(before[0], method.memory.rows.images)
    assert len(method.memory) == 16


def test_with_all_gradients_alike_the_memory_freezes_once_full(stream: Stream) -> None:
    method, one = make(stream, memory_size=20), first_batch(stream, size=1)
    same = Batch(
        torch.zeros(16).long(), one.images.expand(16, 1, 6, 6), one.inputs.expand(16, 1, 6, 6),
        one.labels.expand(16),
    )  # fmt: skip
    stored = []
    for _ in range(5):
        method.observe(same, optimizer_of(method))
        stored.append(method.memory.rows.scores.clone())
    assert stored[-1].tolist() == pytest.approx([0.1] * 16 + [2.0] * 4, abs=1e-5)
    assert torch.equal(stored[1], stored[-1])


def test_the_memory_never_exceeds_its_size_even_below_one_batch(stream: Stream) -> None:
    for size in (1, 5, 24):
        method = make(stream, memory_size=size)
        lengths: list[int] = []
        learn(method, stream, epochs=2, on_step=lambda m=method, found=lengths: found.append(len(m.memory)))  # type: ignore[misc]
        assert max(lengths) == size
        assert ((method.memory.rows.scores > 0) & (method.memory.rows.scores <= 2)).all()


def test_until_the_memory_is_full_it_is_er_with_the_same_draws(stream: Stream) -> None:
    method = make(stream, memory_size=80, replay_size=8)
    er = ER(make_net(), make_problem(stream), ERConfig(memory_size=80, replay_size=8))
    for step in range(5):
        batch = first_batch(stream, step % 3)
        method.memory.generator.set_state(er.memory.generator.get_state())
        terms = method.observe(batch, optimizer_of(method))
        assert terms == er.observe(batch, optimizer_of(er))
        assert torch.equal(weights(method.net), weights(er.net))
        assert torch.equal(method.memory.rows.images, er.memory.rows.images)


def test_scoring_leaves_running_statistics_alone(stream: Stream) -> None:
    net = build_net("resnet18", (1, 6, 6), 6, derive_generator(0, "net"), width=4)
    method = GSS(net, make_problem(stream), GSSConfig(memory_size=24))
    for step in (1, 2, 3):
        method.observe(first_batch(stream, size=4), optimizer_of(method))
        assert net.body.norm.num_batches_tracked == step  # type: ignore[union-attr]
    assert all(module.training for module in net.modules())


@pytest.mark.parametrize("kind", ["normalised", "raw"])
def test_gradients_of_scores_are_taken_on_the_plain_view_or_on_pixels(kind: Any, stream: Stream) -> None:
    seen: list[Tensor] = []

    def plain(images: Tensor) -> Tensor:
        seen.append(images)
        return (images / 255 - 0.5) / 0.2

    problem = Problem(6, 3, stream.test_view, plain, 0)
    method = GSS(make_net(), problem, GSSConfig(memory_size=24, scored_images=kind))
    method.observe(first_batch(stream), optimizer_of(method))
    inputs: list[Tensor] = []
    handle = method.net.register_forward_hook(lambda module, given, output: inputs.append(given[0]))
    method.score(first_batch(stream, 1))
    handle.remove()
    assert len(seen) == (kind == "normalised")
    assert (inputs[0].min() >= 0) == (kind == "raw")
    assert len(inputs[0]) == 32  # the batch and the whole memory in one pass
    features = torch.randn(3, 4)
    assert torch.equal(gss.pixels(features), features)


def test_cost_of_a_step(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass down the loss on both batches, one for all scores."""
    method = make(stream)
    assert count_passes(method, monkeypatch, lambda: step(method, stream)) == (1, 1)
    assert count_passes(method, monkeypatch, lambda: step(method, stream)) == (2, 2)
    method.remember = lambda batch: None  # type: ignore[method-assign]
    assert count_passes(method, monkeypatch, lambda: step(method, stream)) == (1, 1)


def step(method: GSS, stream: Stream) -> None:
    method.observe(first_batch(stream), optimizer_of(method))
