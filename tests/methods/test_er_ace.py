"""ER-ACE: which classes a stream batch competes with, and when it is ER or plain training."""

from typing import Any

import pytest
import torch
from support.repository import in_repository
from support.steps import build, final_weights, first_batch, first_task, learn, optimizer_of
from support.tiny_stream import make_net, make_problem, weights
from torch import nn
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream
from strongreplay.methods import method_row
from strongreplay.methods.base import unchanged
from strongreplay.methods.er_ace import CLOSED, ERACE, ERACEConfig, open_classes
from strongreplay.nets import Classifier
from strongreplay.protocol import Batch, Problem, Split


def zero_case(**settings: Any) -> tuple[ERACE, Batch]:
    """Four classes with logits 0, of which 0, 1 and 2 are met, and a batch of class 0."""
    net = Classifier(nn.Flatten(), 2, 4)
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    method = ERACE(net, Problem(4, 2, unchanged, unchanged), ERACEConfig(memory_size=0, **settings))
    method.seen[:3] = True
    inputs = torch.tensor([[1.0, 2.0]])
    return method, Batch(torch.arange(1), inputs, inputs, torch.tensor([0]))


@pytest.mark.parametrize(("unseen", "loss"), [("strict", 0.693147), ("legacy", 1.098612)])
def test_the_loss_counts_the_open_classes_alone(unseen: str, loss: float) -> None:
    method, batch = zero_case(unseen=unseen)
    assert method.observe(batch, optimizer_of(method))["current"].item() == pytest.approx(loss, abs=1e-6)


def test_classes_that_are_met_and_absent_get_no_gradient() -> None:
    method, batch = zero_case()
    method.observe(batch, optimizer_of(method))
    gradient = next(method.net.parameters()).grad
    assert gradient is not None
    assert torch.equal(gradient[1:3], torch.zeros(2, 2))
    assert (gradient[3] != 0).all()
    assert (gradient[0] != 0).all()


def test_a_class_counts_as_met_before_the_mask_is_made(stream: Stream) -> None:
    method = ERACE(make_net(), make_problem(stream))
    terms = method.observe(first_batch(stream, 1), optimizer_of(method))
    assert terms["current"] < 5
    assert method.seen.tolist() == [False, False, True, True, False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_closed_classes_get_exactly_no_probability(dtype: torch.dtype) -> None:
    present, seen = torch.tensor([True, False, False]), torch.tensor([True, True, False])
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    shares = logits.masked_fill(~open_classes(present, seen, "strict"), CLOSED).softmax(1)
    assert torch.equal(shares[:, 1], torch.zeros(5, dtype=dtype))
    assert shares.isfinite().all()
    all_closed = torch.full((2, 3), CLOSED, dtype=dtype)
    assert cross_entropy(all_closed, torch.zeros(2, dtype=torch.int64)).isfinite()


def test_without_memory_one_task_is_sgd_to_the_bit(stream: Stream) -> None:
    one = first_task(stream)
    assert torch.equal(final_weights("er-ace", one, memory_size=0), final_weights("sgd", one))


def test_if_every_batch_has_all_classes_it_is_er_with_two_means_to_the_bit(
    stream: Stream, train_split: Split
) -> None:
    ours, er = (
        build("er-ace", make_problem(stream)),
        build("er", make_problem(stream), loss="sum"),
    )
    for start in range(0, 192, 48):
        rows = torch.arange(start, start + 48)
        images = train_split.inputs[rows]
        batch = Batch(rows, images, stream.test_view(images), train_split.labels[rows])
        assert len(batch.labels.unique()) == 6
        ours.observe(batch, optimizer_of(ours))
        er.observe(batch, optimizer_of(er))
    assert torch.equal(weights(ours.net), weights(er.net))


def test_with_known_tasks_the_first_is_plain_training(stream: Stream) -> None:
    method = ERACE(make_net(), make_problem(stream), ERACEConfig(task_free=False))
    sgd = build("sgd", make_problem(stream))
    learn(method, first_task(stream)), learn(sgd, first_task(stream))
    assert torch.equal(weights(method.net), weights(sgd.net))
    assert len(method.memory)
    assert set(method.observe(first_batch(stream, 1), optimizer_of(method))) == {"current", "replay"}


def test_cosine_logits_do_not_depend_on_the_length_of_features_and_rows(stream: Stream) -> None:
    net = make_net()
    method = ERACE(net, make_problem(stream), ERACEConfig(memory_size=24, head="cosine"))
    inputs = first_batch(stream).inputs
    before = method.predict(inputs)
    with torch.no_grad():
        net.head.weight.mul_(3)
        net.head.bias.add_(7)
    assert torch.allclose(method.predict(inputs), before, atol=1e-5)
    features, row = net.features(inputs)[0], net.head.weight[2]
    cosine = features @ row / (features.norm() * row.norm())
    assert before[0, 2].item() == pytest.approx(10 * cosine.item(), abs=1e-4)
    learn(method, stream, epochs=1)
    method.grow(8, torch.Generator())
    assert method.predict(inputs).shape == (16, 8)
    method.observe(first_batch(stream), optimizer_of(method))
    assert method.seen.tolist() == [True] * 6 + [False] * 2


def test_the_example_of_the_tutorial_gives_the_same_weights(stream: Stream) -> None:
    path = in_repository("examples/er_ace.py")
    row = method_row(f"{path}:ERACE")
    example = row.build(make_net(), make_problem(stream), row.config(**{"memory_size": 24}))
    learn(example, stream)
    assert torch.equal(weights(example.net), final_weights("er-ace", stream))
