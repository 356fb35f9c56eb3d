"""MIR: scores by hand, what is replayed and stored, and when it is ER or plain training."""

from typing import Any

import pytest
import torch
from support.steps import (
    final_weights,
    first_batch,
    first_norm,
    first_task,
    gradient,
    learn,
    make_cnn,
    optimizer_of,
)
from support.tiny_stream import make_net, make_problem, weights
from torch import nn
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream
from strongreplay.methods.base import unchanged
from strongreplay.methods.er import ER, ERConfig
from strongreplay.methods.mir import MIR, Candidates, MIRConfig
from strongreplay.nets import Classifier
from strongreplay.protocol import Problem


def make(stream: Stream, net: nn.Module | None = None, **settings: Any) -> MIR:
    return MIR(net or make_net(), make_problem(stream), MIRConfig(**{"memory_size": 24} | settings))


def linear_case() -> tuple[MIR, Candidates]:
    """W = 0 (2 x 2), the gradient of a batch x = (1, 0) of class 0, and three candidates."""
    net = Classifier(nn.Flatten(), 2, 2)
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    net.head.bias.requires_grad_(False)
    method = MIR(net, Problem(2, 2, unchanged, unchanged), MIRConfig(memory_size=3))
    cross_entropy(net(torch.tensor([[1.0, 0.0]])), torch.tensor([0])).backward()
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    return method, Candidates(torch.arange(3), inputs, torch.tensor([1, 0, 0]), torch.ones(3).bool(), None)


def test_scores_of_a_linear_net_by_hand() -> None:
    method, found = linear_case()
    scores, _ = method.score(found, optimizer_of(method, lr=1.0))
    assert torch.allclose(scores, torch.tensor([0.620115, 0.0, -0.379885]), atol=1e-6)
    assert scores.argsort(descending=True, stable=True).tolist() == [0, 1, 2]
    assert torch.equal(method.score(found, optimizer_of(method, lr=0.0))[0], torch.zeros(3))


def test_scoring_changes_neither_weights_nor_statistics(stream: Stream) -> None:
    method = make(stream, net=make_cnn())
    learn(method, first_task(stream), epochs=1)
    method.train()
    batch = first_batch(stream, 1)
    cross_entropy(method.net(batch.inputs), batch.labels).backward()
    before = {key: value.clone() for key, value in method.net.state_dict().items()}
    method.score(method.draw(batch), optimizer_of(method))
    after = method.net.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert first_norm(method.net).track_running_stats


def test_the_gradient_is_the_sum_of_two_means_over_stream_and_most_interfered(stream: Stream) -> None:
    method = make(stream, num_candidates=12, replay_size=5)
    learn(method, first_task(stream), epochs=1)
    batch, state = first_batch(stream, 1), method.memory.generator.get_state()
    current = cross_entropy(method.net(batch.inputs), batch.labels)
    expected = gradient(method.net, current)
    method.net.zero_grad()
    cross_entropy(method.net(batch.inputs), batch.labels).backward()
    found = method.draw(batch)
    assert len(found.slots) == 12
    scores, _ = method.score(found, optimizer_of(method, lr=1.0))
    chosen = scores.topk(5).indices
    expected += gradient(method.net, cross_entropy(method.net(found.inputs[chosen]), found.labels[chosen]))
    method.memory.generator.set_state(state)
    before = weights(method.net)
    method.observe(batch, optimizer_of(method, lr=1.0))
    assert torch.allclose(before - weights(method.net), expected, atol=1e-6)


def test_with_as_many_candidates_as_replayed_it_is_er_with_two_means(stream: Stream) -> None:
    method = make(stream, num_candidates=16, replay_size=16)
    learn(method, first_task(stream), epochs=1)
    er = ER(make_net(), make_problem(stream), ERConfig(memory_size=24, loss="sum"))
    er.net.load_state_dict(method.net.state_dict())
    er.memory.load_state_dict({k: v for k, v in method.memory.state_dict().items() if k != "tasks"})
    batch, state = first_batch(stream, 1), method.memory.generator.get_state()
    same_draw = method.draw(batch).slots
    method.memory.generator.set_state(state)
    er.memory.sample = lambda count: er.memory.take(same_draw)  # type: ignore[method-assign]
    method.observe(batch, optimizer_of(method))
    er.observe(batch, optimizer_of(er))
    assert torch.allclose(weights(method.net), weights(er.net), atol=1e-6)


def test_candidates_are_distinct_samples_of_earlier_tasks(stream: Stream) -> None:
    method = make(stream, num_candidates=24)
    learn(method, first_task(stream), epochs=1)
    for start in (0, 16, 32):
        batch = first_batch(stream, 1, size=start + 16)
        method.observe(batch, optimizer_of(method))
    found = method.draw(first_batch(stream, 1))
    assert len(found.slots.unique()) == len(found.slots) == 24
    earlier = method.memory.rows.labels[found.slots] < 2
    assert torch.equal(found.known, earlier)
    assert 0 < int(earlier.sum()) < 24
    scores, _ = method.score(found, optimizer_of(method))
    assert torch.equal(scores.isfinite(), earlier)
    few = make(stream, num_candidates=4)
    few.load_state_dict(method.state_dict())
    assert few.draw(first_batch(stream, 1)).known.all()


def test_the_first_task_and_no_memory_are_plain_training(stream: Stream) -> None:
    one = first_task(stream)
    assert torch.equal(final_weights("mir", one), final_weights("sgd", one))
    assert torch.equal(final_weights("mir", stream, memory_size=0), final_weights("sgd", stream))


@pytest.mark.parametrize("best", ["on", "legacy"])
def test_best_stores_logits_with_a_lower_loss_at_the_slot_that_was_scored(best: str, stream: Stream) -> None:
    method = make(stream, best=best, num_candidates=10)
    learn(method, first_task(stream), epochs=1)
    rows: Any = method.memory.rows
    assert (rows.logits == 0).all() == (best == "legacy")
    batch, state = first_batch(stream, 1), method.memory.generator.get_state()
    slots = method.draw(batch).slots
    method.memory.generator.set_state(state)
    images, before = rows.images.clone(), rows.logits.clone()
    with torch.no_grad():
        outputs = method.net(stream.test_view(images))
    losses = [cross_entropy(z, rows.labels, reduction="none") for z in (outputs, before)]
    method.step(batch, optimizer_of(method))
    replaced = torch.zeros(24, dtype=torch.bool)
    replaced[slots] = (losses[0] < losses[1])[slots]
    assert replaced.any()
    assert torch.allclose(rows.logits[replaced], outputs[replaced], atol=1e-6)
    assert torch.equal(rows.logits[~replaced], before[~replaced])


def test_several_iterations_make_several_steps_and_store_once(stream: Stream) -> None:
    method = make(stream, iterations=3)
    learn(method, first_task(stream), epochs=1)
    seen, steps = method.memory.num_seen, 0
    optimizer = optimizer_of(method)

    def count(*unused: Any) -> None:
        nonlocal steps
        steps += 1

    optimizer.register_step_post_hook(count)
    method.observe(first_batch(stream, 1), optimizer)
    assert steps == 3
    assert method.memory.num_seen == seen + 16


def test_a_grown_head_scores_new_columns_of_stored_logits_as_they_are_now(stream: Stream) -> None:
    method = make(stream, best="on")
    learn(method, first_task(stream), epochs=1)
    method.grow(8, torch.Generator())
    terms = method.observe(first_batch(stream, 1), optimizer_of(method))
    assert all(bool(term.isfinite()) for term in terms.values())
