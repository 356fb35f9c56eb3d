"""DMC: centred targets by hand, fresh nets, labels that nobody reads, and what is frozen."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.steps import final_weights, first_batch, first_task, learn, make_cnn, optimizer_of, state_bytes
from support.tiny_stream import make_net, make_problem, train_phase, weights
from torch import Tensor

from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError
from strongreplay.methods.base import MAIN
from strongreplay.methods.dmc import DMC, DMCConfig, centred, distance
from strongreplay.nets import Classifier

OLD, NEW = torch.tensor([True, True, False, False]), torch.tensor([False, False, True, True])


def make(stream: Stream, net: Classifier | None = None, **settings: Any) -> DMC:
    return DMC(net or make_net(), make_problem(stream), DMCConfig(**settings))


def specialised(stream: Stream, **settings: Any) -> DMC:
    """In the second task, before its student is trained."""
    method = make(stream, make_cnn(), **settings)
    learn(method, first_task(stream), epochs=1)
    method.begin_task(stream[1])
    method.observe(first_batch(stream, 1), optimizer_of(method))
    method.begin_student()
    return method


def test_targets_by_hand() -> None:
    old, new = torch.tensor([[1.0, 3, 9, 9]]), torch.tensor([[9.0, 9, 2, 6]])

    def target(shift: float) -> Tensor:
        return torch.where(OLD, centred(old + shift, OLD), centred(new, NEW))

    assert target(0).tolist() == [[-1, 1, -2, 2]]
    assert torch.equal(target(0), target(5))  # a constant added to all old logits changes nothing
    assert [target(0)[:, OLD].sum().item(), target(0)[:, NEW].sum().item()] == [0, 0]
    assert distance(target(0) + 1, target(0), OLD).item() == 1


def test_the_loss_of_the_student_is_the_mean_over_seen_classes(stream: Stream) -> None:
    method, batch = specialised(stream), first_batch(stream)
    old, new = method.old_net(batch.inputs), method.specialist(batch.inputs)
    parts = [z - z.mean(1, keepdim=True) for z in (old[:, :2], new[:, 2:4])]
    expected = (method.net(batch.inputs)[:, :4] - torch.cat(parts, 1)).square().mean()
    terms = method.consolidate(batch, optimizer_of(method))
    assert terms["student"].item() == pytest.approx(expected.item(), rel=1e-4)


def test_centred_over_the_batch_one_sample_gets_zeros(stream: Stream) -> None:
    method = specialised(stream, centre="batch")
    method.eval()
    one = first_batch(stream, size=1)
    expected = method.net(one.inputs)[:, :4].square().mean()
    assert method.consolidate(one, optimizer_of(method))["student"].item() == pytest.approx(expected.item())


def test_no_label_of_an_auxiliary_image_is_read(stream: Stream) -> None:
    method = specialised(stream)
    assert set(method.images.labels.tolist()) == {-1}
    batch, state = first_batch(stream), method.state_dict()
    kept = {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}
    found = []
    for labels in (batch.labels, torch.full_like(batch.labels, -1)):
        method.load_state_dict(kept)
        method.consolidate(replace(batch, labels=labels), optimizer_of(method))
        found.append(weights(method.net))
    assert torch.equal(*found)


def test_specialist_and_student_start_fresh_whatever_the_old_net_is(stream: Stream) -> None:
    starts = []
    for lr in (0.1, 0.5):
        method = make(stream)
        method.begin_task(stream[0])
        method.observe(first_batch(stream), optimizer_of(method, lr))
        method.end_task(stream[0])
        method.begin_task(stream[1])
        specialist = weights(method.net)
        method.begin_student()
        starts.append((weights(method.old_net), specialist, weights(method.net)))
    (old, first, second), (other, *again) = starts
    assert not torch.equal(old, other)
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
    assert not torch.equal(first, second)


def test_teachers_are_constant_while_the_student_learns_and_gone_afterwards(stream: Stream) -> None:
    method = specialised(stream, auxiliary_size=20)
    before = {key: value for key, value in state_bytes(method).items() if key.startswith(("old_net", "spec"))}
    assert before
    for _ in range(3):
        method.consolidate(first_batch(stream), optimizer_of(method))
    after = state_bytes(method)
    assert all(torch.equal(value, after[key]) for key, value in before.items())  # statistics too
    train_phase(method, stream[1], "student")
    assert len(method.drawn_images()) == 20
    method.end_task(stream[1])
    assert not method.old_net.exists
    assert not method.specialist.exists
    assert [phase.name for phase in method.phases(stream[2])] == [MAIN, "student"]


def test_the_specialist_learns_classes_of_its_task_alone(stream: Stream) -> None:
    method = make(stream)
    learn(method, first_task(stream), epochs=1)
    method.begin_task(stream[1])
    before = method.net.head.weight.detach().clone()
    method.observe(first_batch(stream, 1), optimizer_of(method))
    moved = (method.net.head.weight != before).any(1)
    assert moved.tolist() == [False, False, True, True, False, False]


def test_one_task_is_sgd_to_the_bit(stream: Stream) -> None:
    one = Stream(stream.scenario, (tuple(range(6)),), stream.input_shape, stream.make)
    method = make(one)
    learn(method, one)
    assert torch.equal(weights(method.net), final_weights("sgd", one))


def test_without_auxiliary_images_it_is_refused(stream: Stream) -> None:
    problem = replace(make_problem(stream), auxiliary=None)
    with pytest.raises(ConfigError, match=r"dmc needs unlabelled images .*data.auxiliary="):
        DMC(make_net(), problem)
