"""GD: joined targets and class weights by hand, its losses written out, chosen images, and what is frozen."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.steps import final_weights, first_batch, first_task, learn, make_cnn, optimizer_of, state_bytes
from support.tiny_stream import NUM_CLASSES, begin_learning, make_net, make_problem, train_phase, weights
from torch import Tensor
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError
from strongreplay.memory import Memory
from strongreplay.methods.auxiliary import choose_rows
from strongreplay.methods.base import MAIN
from strongreplay.methods.distillation import divergence, only
from strongreplay.methods.exemplars import draw_exemplars
from strongreplay.methods.gd import GD, GDConfig, class_weights, decision, falling_rate, joint
from strongreplay.methods.samples import LabelledSamples
from strongreplay.nets import Classifier
from strongreplay.protocol import Batch, Split, Task, Terms


def make(stream: Stream, net: Classifier | None = None, **settings: Any) -> GD:
    config = GDConfig(**{"memory_size": 24, "head_epochs": 1} | settings)
    return GD(net or make_net(), make_problem(stream), config)


def in_main_phase(stream: Stream, **settings: Any) -> tuple[GD, Task]:
    """In the second task, with a trained teacher."""
    method = make(stream, make_cnn(), **settings)
    learn(method, first_task(stream), epochs=1)
    return method, begin_learning(method, stream[1])


def half_unlabelled(stream: Stream) -> Batch:
    batch = first_batch(stream, 1)
    return replace(batch, labels=torch.cat([batch.labels[:8], torch.full((8,), -1)]))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ((0.7, 0.3), (0.5, 0.5), (0.7, 0.1, 0.1, 0.1)),
        ((0.6, 0.3, 0.1), (1.0,), (0.6, 0.2, 0.0667, 0.1333)),
        ((1.0,), (0.25, 0.75), (1.0, 0.0, 0.0)),
    ],
)
def test_joined_targets_by_hand(
    old: tuple[float, ...], new: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    sizes = torch.tensor(len(old)), torch.tensor(len(new))
    wide = torch.tensor([[*old, *[0.0] * len(new)]]), torch.tensor([[*[0.0] * len(old), *new]])
    found = joint(*wide, *sizes)[0]
    assert found.tolist() == pytest.approx(expected, abs=5e-5)
    assert found.sum().item() == pytest.approx(1)


def test_confidence_by_hand() -> None:
    classes, samples = torch.tensor([True, True, False]), torch.tensor([True, False])
    even = torch.tensor([[3.0, 3.0, 0.0], [9.0, 0.0, 0.0]]) + only(classes)
    assert decision(even, classes, samples).item() == pytest.approx(0, abs=1e-6)
    # softmax (0.75, 0.25): -(ln 0.75 + ln 0.25) / 2 - ln 2 = 0.143841
    uneven = torch.tensor([[0.75, 0.25, 1.0]]).log() + only(classes)
    assert decision(uneven, classes, torch.tensor([True])).item() == pytest.approx(0.143841, abs=1e-6)
    assert decision(even, classes, ~samples & samples).item() == 0  # nobody to be undecided about


def test_class_weights_by_hand() -> None:
    counts, both = torch.tensor([10, 90, 0, 7]), torch.tensor([True, True, False, False])
    assert class_weights(counts, both).tolist() == pytest.approx([5, 0.5556, 1, 1], abs=5e-5)
    assert class_weights(counts, ~both)[2].item() == 1  # a class without samples


def test_divergence_by_hand() -> None:
    mask, wanted = only(torch.tensor([True, True, False])), torch.tensor([[1.0, 0.0, 0.0]])
    logits = torch.tensor([[0.0, 0.0, 5.0]])
    assert divergence(logits, wanted, mask, 2).item() == pytest.approx(0.693147, abs=1e-6)  # 0 ln 0 is 0
    assert divergence(logits, torch.tensor([[0.5, 0.5, 0.0]]), mask, 2).item() == pytest.approx(0, abs=1e-7)


def test_rates_by_hand() -> None:
    rates = [falling_rate(0.1, (120, 160, 180), epoch, 0) for epoch in (0, 119, 120, 160, 199)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.001, 0.0001])


def written_out(method: GD, batch: Batch, logits: Tensor, factors: Tensor) -> dict[str, float]:
    """The terms of the second task, classes 0 and 1 old, 2 and 3 new."""
    old, new = method.old_net(batch.inputs)[:, :2], method.teacher(batch.inputs)[:, 2:4]
    labelled, size = batch.labels >= 0, len(batch)
    of_label, of_old, of_new = factors[:, batch.labels]
    losses = cross_entropy(logits[labelled][:, :4], batch.labels[labelled], reduction="none")
    p, c = old.softmax(1), new.softmax(1)
    top = p.max(1, keepdim=True).values
    q = torch.cat([torch.where(p == top, p, p / 3), c * (1 - top) * 2 / 3], 1)
    apart = (q * (q.log() - logits[:, :4].log_softmax(1))).sum(1)
    terms = {"current": (losses * of_label[labelled]).sum() / size}
    if not labelled.all():
        terms["auxiliary"] = apart[~labelled].sum() / size
    for name, answers, own, factor in (("old", old, slice(0, 2), of_old), ("new", new, slice(2, 4), of_new)):
        soft = (answers / 2).softmax(1)
        away = (soft * (soft.log() - (logits[:, own] / 2).log_softmax(1))).sum(1)
        terms[name] = 4 * (away * factor).mean() / 2
    return {name: term.item() for name, term in terms.items()}


def items(terms: Terms) -> dict[str, float]:
    return {name: term.item() for name, term in terms.items()}


def test_the_losses_of_the_main_phase_and_of_the_head_written_out(stream: Stream) -> None:
    method, _ = in_main_phase(stream)
    batch, ones = half_unlabelled(stream), torch.ones(3, NUM_CLASSES + 1)
    # A second forward pass changes batch-norm statistics, not the batch's outputs.
    expected = written_out(method, batch, method.net(batch.inputs), ones)
    assert items(method.observe(batch, optimizer_of(method))) == pytest.approx(expected, rel=1e-4)
    mine = torch.tensor([[13 / 6] * 2 + [13 / 20] * 2, [1.0] * 4, [1.0] * 4])  # 12 and 40 of each class
    assert torch.allclose(method.weights[:, :4], mine)
    assert torch.equal(method.weights[:, 4:], torch.ones(3, 3))
    method.eval()
    expected = written_out(method, batch, method.net(batch.inputs), method.weights)
    method.train()
    assert items(method.balance(batch, optimizer_of(method))) == pytest.approx(expected, rel=1e-4)


def test_without_unlabelled_images_two_teachers_are_left(stream: Stream) -> None:
    method, _ = in_main_phase(stream, auxiliary_size=0)
    assert len(method.chosen) == 0
    batch = first_batch(stream, 1)
    expected = written_out(method, batch, method.net(batch.inputs), torch.ones(3, NUM_CLASSES + 1))
    assert list(expected) == ["current", "old", "new"]
    assert items(method.observe(batch, optimizer_of(method))) == pytest.approx(expected, rel=1e-4)


def test_the_teacher_learns_new_classes_and_to_be_undecided_about_all_else(stream: Stream) -> None:
    method = make(stream)
    learn(method, first_task(stream), epochs=1)
    method.begin_task(stream[1])
    new, old = first_batch(stream, 1), first_batch(stream, 0)
    labels = torch.cat([new.labels[:6], old.labels[:5], torch.full((5,), -1)])
    batch = replace(new, inputs=torch.cat([new.inputs[:6], old.inputs[:10]]), labels=labels)
    logits = method.net(batch.inputs)[:, 2:4]
    expected = {
        "current": cross_entropy(logits[:6], labels[:6] - 2).item(),
        "confidence": -(logits[6:].log_softmax(1).mean() + torch.log(torch.tensor(2.0))).item(),
    }
    before = method.net.head.weight.detach().clone()
    assert items(method.teach(batch, optimizer_of(method))) == pytest.approx(expected, rel=1e-4)
    moved = (method.net.head.weight != before).any(1)
    assert moved.tolist() == [False, False, True, True, False, False]


def test_the_net_starts_the_main_phase_as_the_old_net_and_teachers_stay(stream: Stream) -> None:
    method, task = in_main_phase(stream)
    assert torch.equal(weights(method.net), weights(method.old_net))
    assert not torch.equal(weights(method.teacher), weights(method.old_net))
    assert [phase.name for phase in method.phases(task)] == ["teacher", MAIN, "head"]
    before = {key: value for key, value in state_bytes(method).items() if key.startswith(("old_net", "teac"))}
    for _ in range(2):
        method.observe(half_unlabelled(stream), optimizer_of(method))
    after = state_bytes(method)
    assert all(torch.equal(value, after[key]) for key, value in before.items())  # statistics too
    method.end_task(task)
    assert not method.old_net.exists
    assert not method.teacher.exists


def test_the_last_phase_changes_the_head_alone(stream: Stream) -> None:
    method, task = in_main_phase(stream)
    before = state_bytes(method)
    train_phase(method, task, "head")
    moved = {key for key, value in state_bytes(method).items() if not torch.equal(value, before[key])}
    assert moved == {"net.head.weight", "net.head.bias"}  # the body's statistics neither
    assert torch.equal(method.net.head.weight[4:], before["net.head.weight"][4:])  # classes to come


def test_images_that_the_old_net_finds_likely_and_random_ones() -> None:
    likely = torch.zeros(100, 2)
    likely[[3, 5], 0], likely[[5, 8], 1] = 1.0, 2.0
    rows = choose_rows(likely, 14, 0.3, torch.Generator().manual_seed(0))  # floor(0.3 * 14 / 2) = 2 a class
    assert rows[:3].tolist() == [3, 5, 8]  # 5 is among the best of both
    assert len(rows) == len(rows.unique()) == 14
    assert len(choose_rows(likely, 500, 0.3, torch.Generator()).unique()) == 100  # there are no more
    assert len(choose_rows(likely[:, :0], 14, 0.3, torch.Generator()).unique()) == 14  # the first task
    assert len(choose_rows(likely, 0, 0.3, torch.Generator())) == 0


def test_as_many_unlabelled_images_as_samples_and_exemplars(stream: Stream) -> None:
    method, task = in_main_phase(stream)
    assert len(method.images) == 60
    assert len(method.chosen) == 60  # the task has 80 samples and 24 exemplars: all that there are
    data = method.mixed(task.train)
    assert (data.labels == -1).sum().item() == 60
    assert len(data) == 164
    few, _ = in_main_phase(stream, auxiliary_size=20)
    logits = few.old_net(stream.test_view(few.images.inputs))[:, :2]
    best = logits.topk(3, 0).indices.flatten().unique()  # floor(0.3 * 20 / 2)
    assert torch.isin(best, few.chosen).all()
    assert len(few.chosen.unique()) == 20


def test_exemplars_are_shared_equally_and_the_rest_goes_to_the_latest_classes() -> None:
    memory = Memory(LabelledSamples, 10, torch.Generator())
    counts = []
    for first in (0, 2, 4):
        labels = torch.tensor([first, first + 1]).repeat(20)
        split = Split(torch.arange(40).view(40, 1) + 100 * first, labels)
        task = Task(first // 2, (first, first + 1), split, split)
        stored = memory.rows.images.clone() if len(memory) else torch.empty(0, 1)
        draw_exemplars(memory, task, torch.Generator().manual_seed(1), torch.device("cpu"))
        counts.append(memory.rows.labels.bincount().tolist())
        old = memory.rows.images[memory.rows.labels < first]
        assert torch.isin(old, stored).all()
    assert counts == [[5, 5], [2, 2, 3, 3], [1, 1, 2, 2, 2, 2]]


def test_one_task_without_unlabelled_images_is_sgd_to_the_bit(stream: Stream) -> None:
    one = Stream(stream.scenario, (tuple(range(NUM_CLASSES)),), stream.input_shape, stream.make)
    method = make(one, auxiliary_size=0, confidence=0)
    learn(method, one)
    assert torch.equal(weights(method.net), final_weights("sgd", one))


def test_without_auxiliary_images_it_is_refused(stream: Stream) -> None:
    problem = replace(make_problem(stream), auxiliary=None)
    with pytest.raises(ConfigError, match=r"gd needs unlabelled images .*data.auxiliary="):
        GD(make_net(), problem)
