"""HAL: replay with a penalty on what a step does to anchors, and the anchors themselves."""

from typing import Any

import pytest
import torch
from support.steps import build as build_any
from support.steps import (
    count_passes,
    first_batch,
    gradient,
    learn,
    make_resnet,
    optimizer_of,
    same_state,
    state_bytes,
    tasks,
)
from support.tiny_stream import NUM_CLASSES, finish_learning, make_net, make_problem, train_phase, weights
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from strongreplay.data.streams import Stream, permutation_maps, remap_pixels
from strongreplay.errors import ConfigError
from strongreplay.memory import RingMemory
from strongreplay.methods.hal import HAL, HALConfig
from strongreplay.methods.samples import LabelledSamples
from strongreplay.protocol import Split, derive_generator


def build(stream: Stream, net: nn.Module | None = None, **settings: Any) -> HAL:
    return HAL(net or make_net(), make_problem(stream), HALConfig(**({"memory_size": 24} | settings)))


def after_task_one(stream: Stream, **settings: Any) -> HAL:
    method = build(stream, **({"anchor_steps": 5} | settings))
    learn(method, tasks(stream, 1), epochs=1)
    method.begin_task(stream[1])
    return method


def test_without_penalty_it_is_er_to_the_bit(stream: Stream) -> None:
    hal, er = build(stream, penalty=0), build_any("er", make_problem(stream))
    learn(hal, stream), learn(er, stream)
    assert torch.equal(weights(hal.net), weights(er.net))
    assert hal.anchors is None


def test_task_one_is_er_to_the_bit(stream: Stream) -> None:
    hal, er = build(stream, penalty=0.7), build_any("er", make_problem(stream))
    learn(hal, tasks(stream, 1)), learn(er, tasks(stream, 1))
    assert torch.equal(weights(hal.net), weights(er.net))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_step_is_down_the_gradient_of_both_terms(stream: Stream, momentum: float) -> None:
    method = after_task_one(stream, penalty=0.3)
    assert method.anchors is not None
    lr, batch, state = 0.2, first_batch(stream, 1), method.memory.generator.get_state()
    replayed = method.memory.sample(len(batch))
    method.memory.generator.set_state(state)
    inputs = torch.cat([batch.inputs, stream.test_view(replayed.images)])
    labels = torch.cat([batch.labels, replayed.labels])
    first = gradient(method.net, cross_entropy(method.net(inputs), labels))
    tentative = make_net()
    nn.utils.vector_to_parameters(weights(method.net) - lr * first, tentative.parameters())
    target = tentative(method.anchors).detach()
    second = gradient(method.net, 0.3 * mse_loss(method.net(method.anchors), target))
    before = weights(method.net)
    optimizer = torch.optim.SGD(method.net.parameters(), lr=lr, momentum=momentum)
    terms = method.observe(batch, optimizer)
    assert list(terms) == ["mixed", "anchors"]
    assert second.abs().max() > 0
    assert torch.allclose(weights(method.net), before - lr * (first + second), atol=1e-6)


def test_the_gradient_of_the_penalty_takes_its_target_as_fixed(stream: Stream) -> None:
    """Against finite differences, in float64."""
    method = after_task_one(stream).double()
    assert method.anchors is not None
    net, lr = method.net, 0.2
    batch = first_batch(stream, 1)
    net.zero_grad()
    cross_entropy(net(batch.inputs.double()), batch.labels).backward()
    got = gradient(net, method.anchors_moved(method.anchors, optimizer_of(method, lr)))
    start = weights(net)
    step = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
    nn.utils.vector_to_parameters(start - lr * step, net.parameters())
    target = net(method.anchors).detach()
    for number in torch.randperm(len(start), generator=torch.Generator().manual_seed(0))[:40].tolist():
        costs = []
        for sign in (1, -1):
            moved = start.clone()
            moved[number] += sign * 1e-5
            nn.utils.vector_to_parameters(moved, net.parameters())
            costs.append(mse_loss(net(method.anchors), target).item())
        assert got[number].item() == pytest.approx((costs[0] - costs[1]) / 2e-5, rel=1e-3, abs=1e-8)


def test_there_is_an_anchor_for_every_class_of_every_finished_task(stream: Stream) -> None:
    method = build(stream, anchor_steps=1)
    sizes = []
    for task in stream:
        method.observe(first_batch(stream, task.index), optimizer_of(method))
        finish_learning(method, task)
        assert method.anchors is not None
        sizes.append(tuple(method.anchors.shape))
    assert sizes == [(2, 1, 6, 6), (4, 1, 6, 6), (6, 1, 6, 6)]


def test_domain_il_adds_anchors_of_all_classes_with_every_task(train_split: Split, test_split: Split) -> None:
    maps = permutation_maps(6, 6, 2, derive_generator(0, "transforms"))
    stream = remap_pixels(train_split, test_split, NUM_CLASSES, maps)
    method = build(stream, anchor_steps=1)
    learn(method, stream, epochs=1)
    assert method.anchors is not None
    assert len(method.anchors) == 12


def test_learning_lowers_the_objective_of_every_anchor(stream: Stream) -> None:
    method = build(stream, anchor_lr=0.01)
    learn(method, tasks(stream, 1), epochs=2)
    labels = torch.tensor([0, 1])
    train_phase(method, stream[0], "fine-tune")
    start, copy = method.drawn, method.tuned.copy
    assert start is not None
    assert copy is not None
    train_phase(method, stream[0], "anchors")
    learnt = method.drawn
    assert learnt is not None
    with torch.no_grad():
        before, after = (method.anchor_losses(anchors, labels, copy) for anchors in (start, learnt))
    assert (after < before).all()


def test_the_objective_by_hand(stream: Stream) -> None:
    method = after_task_one(stream, gamma=0.4)
    anchors, labels = torch.rand(2, 1, 6, 6), torch.tensor([0, 1])
    copy = make_net(seed=5)
    method.mean_feature.fill_(0.25)
    got = method.anchor_losses(anchors, labels, copy)
    for number in (0, 1):
        one, label = anchors[number : number + 1], labels[number : number + 1]
        expected = (
            -cross_entropy(copy(one), label)
            + cross_entropy(method.net(one), label)
            + 0.4 * ((method.net.features(one) - 0.25) ** 2).sum()
        )
        assert got[number].item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)


def test_anchors_of_the_reference_are_drawn_to_the_mean_feature_alone(stream: Stream) -> None:
    """Its copy shares the weights it is compared with, so both cross-entropies are the copy's and cancel."""
    method = after_task_one(stream, gamma=0.4, anchors="reference")
    anchors, labels, copy = torch.rand(2, 1, 6, 6), torch.tensor([0, 1]), make_net(seed=5)
    method.mean_feature.fill_(0.25)
    shared = cross_entropy(copy(anchors), labels, reduction="none")
    expected = shared - shared + 0.4 * ((copy.features(anchors) - 0.25) ** 2).sum(1)
    assert torch.allclose(method.anchor_losses(anchors, labels, copy), expected, rtol=1e-6)
    others = after_task_one(stream, gamma=0.4).anchors
    assert method.anchors is not None
    assert others is not None
    assert not torch.equal(method.anchors, others)


def test_the_copy_takes_its_steps_on_memory(stream: Stream) -> None:
    method = after_task_one(stream, anchor_lr=0.3, finetune_size=8)
    state = method.memory.generator.get_state()
    train_phase(method, stream[0], "fine-tune")
    copy = method.tuned.copy
    assert copy is not None
    method.memory.generator.set_state(state)
    torch.rand(2, 1, 6, 6, generator=method.memory.generator)  # the new anchors
    replayed = method.memory.sample(8)
    loss = cross_entropy(method.net(stream.test_view(replayed.images)), replayed.labels)
    assert torch.allclose(weights(copy), weights(method.net) - 0.3 * gradient(method.net, loss), atol=1e-7)


def test_making_anchors_leaves_weights_and_running_statistics_alone(stream: Stream) -> None:
    method = build(stream, net=make_resnet(), anchor_steps=3)
    learn(method, tasks(stream, 1), epochs=1)
    method.train()
    before = {name: value.clone() for name, value in method.net.state_dict().items()}
    finish_learning(method, stream[0])
    assert all(torch.equal(before[name], value) for name, value in method.net.state_dict().items())
    assert all(module.training for module in method.net.modules())


def test_a_step_updates_running_statistics_once(stream: Stream) -> None:
    """From the stream and the replayed images; anchors and the mean feature do not count."""
    method = build(stream, net=make_resnet(), anchor_steps=1)
    learn(method, tasks(stream, 1), epochs=1)
    tracked: Any = method.net.state_dict(keep_vars=True)["body.norm.num_batches_tracked"]
    before = int(tracked)
    method.train()
    method.observe(first_batch(stream, 1), optimizer_of(method))
    assert int(tracked) == before + 1


def test_the_mean_feature_follows_the_stream_and_starts_anew_with_a_task(stream: Stream) -> None:
    method = build(stream, beta=0.3, anchor_steps=1)
    method.begin_task(stream[0])
    expected = torch.zeros(32)
    for task in (0, 0):
        batch = first_batch(stream, task)
        method.observe(batch, optimizer_of(method))
        expected = 0.3 * expected + 0.7 * method.net.features(batch.inputs).mean(0).detach()
    assert torch.allclose(method.mean_feature, expected, atol=1e-6)
    method.begin_task(stream[1])
    assert (method.mean_feature == 0).all()


def test_a_step_costs_three_forwards_two_backwards_and_the_mean_feature(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = after_task_one(stream)
    batch, optimizer, asked = first_batch(stream, 1), optimizer_of(method), []
    method.net.body.register_forward_hook(lambda *args: asked.append("body"))
    assert count_passes(method, monkeypatch, lambda: method.observe(batch, optimizer)) == (3, 2)
    assert len(asked) == 4


def test_the_ring_keeps_the_last_samples_of_every_task(stream: Stream) -> None:
    method = build(stream, memory_policy="ring", memory_size=25, penalty=0)
    for number, task in enumerate(stream):
        method.begin_task(task)
        for rows in torch.arange(40).split(6):  # 40 presentations into 8 slots
            images, labels = task.train.inputs[rows], task.train.labels[rows]
            method.memory.add(LabelledSamples(images, labels))
        stored = method.memory.rows.images[8 * number :].flatten(1)
        last = task.train.inputs[32:40].flatten(1)
        assert torch.equal(stored.unique(dim=0), last.unique(dim=0))
        assert len(method.memory) == 8 * (number + 1)
        finish_learning(method, task)
    method.begin_task(stream[0])  # a fourth task of three: the first ring is used again
    method.memory.add(LabelledSamples(stream[0].train.inputs[:2], stream[0].train.labels[:2]))
    assert len(method.memory) == 24
    assert torch.equal(method.memory.rows.images[:2], stream[0].train.inputs[:2])


def test_a_ring_that_a_short_task_did_not_fill_has_no_holes(stream: Stream) -> None:
    method = build(stream, memory_policy="ring", memory_size=24)
    for count, total in ((3, 3), (40, 11), (40, 19)):
        method.begin_task(stream[0])
        train = stream[0].train.take(torch.arange(count))
        method.memory.add(LabelledSamples(train.inputs, train.labels))
        assert len(method.memory) == total
    assert method.memory.rows.images.flatten(1).any(1).all()


def test_a_ring_continues_to_the_bit_after_loading(stream: Stream) -> None:
    straight = build(stream, memory_policy="ring", anchor_steps=1)
    learn(straight, tasks(stream, 2), epochs=1)
    resumed = build(stream, net=make_net(seed=9), memory_policy="ring", anchor_steps=1)
    resumed.load_state_dict(straight.state_dict())
    for method in (straight, resumed):
        for _ in range(2):
            method.observe(first_batch(stream, 1), optimizer_of(method))
    assert same_state(state_bytes(straight), state_bytes(resumed))


def test_what_it_cannot_do_is_said(stream: Stream) -> None:
    with pytest.raises(ConfigError, match="hal needs the features of its net: no linear layer"):
        HAL(nn.Linear(3, 6), make_problem(stream))
    with pytest.raises(ConfigError, match=r"hal with a ring needs .* memory_size must be >= 3, got 2"):
        build(stream, memory_policy="ring", memory_size=2)
    with pytest.raises(ValueError, match=r"RingMemory: run_size must lie in 1\.\.5, got 0"):
        RingMemory(LabelledSamples, 5, torch.Generator(), 0)
