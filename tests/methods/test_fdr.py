"""FDR: the distance of probabilities, equal shares of the memory, two steps a batch."""

from typing import Any

import pytest
import torch
from support.steps import build as build_any
from support.steps import count_passes, first_batch, learn, optimizer_of, tasks
from support.tiny_stream import NUM_CLASSES, make_net, make_problem, weights
from torch import nn
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream
from strongreplay.methods.fdr import FDR, FDRConfig, distance
from strongreplay.nets import build_net
from strongreplay.protocol import Batch, Terms, derive_generator


def build(stream: Stream, net: nn.Module | None = None, **settings: Any) -> FDR:
    return FDR(net or make_net(), make_problem(stream), FDRConfig(**({"memory_size": 24} | settings)))


def test_equal_answers_are_at_distance_zero_with_zero_gradient() -> None:
    logits = torch.randn(4, 6, requires_grad=True)
    moved = distance(logits, logits.detach())
    assert moved == 0
    (gradient,) = torch.autograd.grad(moved, logits)
    assert (gradient == 0).all()


def test_the_distance_is_a_norm_of_probabilities_and_at_most_the_root_of_two() -> None:
    logits, stored = torch.randn(9, 6), torch.randn(9, 6)
    expected = (logits.softmax(1) - stored.softmax(1)).square().sum(1).sqrt().mean()
    assert distance(logits, stored).item() == pytest.approx(expected.item(), rel=1e-6)
    opposite = distance(torch.tensor([[99.0, 0.0]]), torch.tensor([[0.0, 99.0]]))
    assert opposite.item() == pytest.approx(2**0.5, rel=1e-6)
    assert all(distance(50 * torch.randn(9, 6), stored) <= 2**0.5 + 1e-6 for _ in range(20))


def test_a_constant_added_to_stored_logits_changes_nothing() -> None:
    logits, stored = torch.randn(9, 6), torch.randn(9, 6)
    assert torch.allclose(distance(logits, stored), distance(logits, stored + 7), atol=1e-6)


def test_answers_of_a_narrower_head_are_compared_where_both_exist() -> None:
    logits = torch.randn(3, 6)
    assert distance(logits, logits[:, :4]) == 0


def test_every_task_has_the_same_share_and_shrinking_keeps_the_first(stream: Stream) -> None:
    method = build(stream, memory_size=200)
    shares, firsts = [], []
    for task in stream:
        big = task.with_train(task.train.take(torch.arange(80).repeat(3)))
        method.end_task(big)
        shares.append(torch.bincount(method.memory.rows.tasks).tolist())
        firsts.append(method.memory.rows.images[:66].clone())
    assert shares == [[200], [100, 100], [66, 66, 66]]
    assert torch.equal(firsts[0], firsts[2])
    assert len(method.memory) == 198


def test_a_task_smaller_than_its_share_gives_what_it_has(stream: Stream) -> None:
    method = build(stream, memory_size=200)
    for count in (3, 1, 80):
        method.end_task(stream[0].with_train(stream[0].train.take(torch.arange(count))))
    assert torch.bincount(method.memory.rows.tasks).tolist() == [3, 1, 66]
    few = build(stream, memory_size=2)
    for task in stream:
        few.end_task(task)
    assert len(few.memory) == 0  # three tasks share two places: no one has any


def test_task_one_is_sgd_to_the_bit(stream: Stream) -> None:
    fdr, sgd = build(stream), build_any("sgd", make_problem(stream))
    learn(fdr, tasks(stream, 1)), learn(sgd, tasks(stream, 1))
    assert torch.equal(weights(fdr.net), weights(sgd.net))


@pytest.mark.parametrize("settings", [{"alpha": 0}, {"memory_size": 0}])
def test_with_nothing_to_replay_it_is_sgd_to_the_bit(settings: dict[str, Any], stream: Stream) -> None:
    fdr, sgd = build(stream, **settings), build_any("sgd", make_problem(stream))
    learn(fdr, stream), learn(sgd, stream)
    assert torch.equal(weights(fdr.net), weights(sgd.net))


def test_one_step_in_the_first_task_and_two_from_the_second_on(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = build(stream)
    optimizer, steps = optimizer_of(method), []
    optimizer.register_step_post_hook(lambda *args: steps.append(1))
    for task, (number, names) in enumerate(((1, ["current"]), (2, ["current", "distance"]))):
        batch, terms = first_batch(stream, task), Terms()
        steps.clear()

        def step(batch: Batch = batch, terms: Terms = terms) -> None:
            terms |= method.observe(batch, optimizer)

        assert count_passes(method, monkeypatch, step) == (number, number)
        assert len(steps) == number
        assert list(terms) == names
        method.end_task(stream[task])


def test_both_steps_by_hand(stream: Stream) -> None:
    method = build(stream, alpha=0.5)
    learn(method, tasks(stream, 1), epochs=1)
    batch, state = first_batch(stream, 1), method.memory.generator.get_state()
    replayed = method.memory.sample(len(batch))
    method.memory.generator.set_state(state)
    twin = make_net()
    twin.load_state_dict(method.net.state_dict())
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    cross_entropy(twin(batch.inputs), batch.labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    gap = twin(stream.test_view(replayed.images)).softmax(1) - replayed.logits.softmax(1)
    (0.5 * gap.norm(dim=1).mean()).backward()
    optimizer.step()
    method.observe(batch, optimizer_of(method))
    assert torch.allclose(weights(method.net), weights(twin), atol=1e-7)


def test_the_very_first_replay_is_at_distance_zero_and_finite(stream: Stream) -> None:
    """Right after a task an MLP without augmentation answers as it is stored: the norm is exactly zero."""
    method = build(stream)
    learn(method, tasks(stream, 1), epochs=1)
    still = method.observe(first_batch(stream, 1), optimizer_of(method, lr=1e-30))
    assert still["distance"].item() == pytest.approx(0, abs=1e-6)
    assert weights(method.net).isfinite().all()


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_stored_answers_are_plain_or_those_of_training_mode(mode: str, stream: Stream) -> None:
    net = build_net("resnet18", (1, 6, 6), NUM_CLASSES, derive_generator(0, "net"), width=4)
    method = build(stream, net=net, stored_logits=mode, memory_size=10, replay_size=16)
    for _ in range(3):
        method.observe(first_batch(stream), optimizer_of(method))
    tracked: Any = net.body.norm.num_batches_tracked  # type: ignore[union-attr]
    before, state = int(tracked), method.memory.generator.get_state()
    method.end_task(stream[0])
    assert net.training
    assert int(tracked) - before == (1 if mode == "train" else 0)  # one whole batch gave the ten answers
    order = torch.randperm(80, generator=torch.Generator().set_state(state))
    images = stream[0].train.inputs[order]
    assert torch.equal(method.memory.rows.images, images[:10])
    net.train(mode == "train")
    with torch.no_grad():
        expected = net(stream.test_view(images[:16]))[:10]
    assert torch.allclose(method.memory.rows.logits, expected, atol=1e-5)
