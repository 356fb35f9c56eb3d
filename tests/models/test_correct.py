"""The correction of the head, by hand: all classes alike, and nothing but the head moves."""

from math import log
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from strongreplay.methods.averaged import AveragedNet
from strongreplay.models.correct import answering_classifier, correction_phases, equal_shares
from strongreplay.nets import Classifier
from strongreplay.protocol import Batch, Split, derive_generator


class Images(NamedTuple):
    images: Tensor


def stub(net: nn.Module, labels: list[int], correction: int | None = 2, lr: float = 1.0) -> Any:
    """What the correction sees of a model; ids of the memory's samples are 10, 11, ..."""
    images = torch.arange(len(labels), dtype=torch.float32)[:, None]
    return SimpleNamespace(
        memory=SimpleNamespace(ids=torch.arange(10, 10 + len(labels)), rows=Images(images)),
        method=SimpleNamespace(answering_net=lambda: net),
        settings=SimpleNamespace(
            learner=SimpleNamespace(correction=correction), train=SimpleNamespace(lr=lr)
        ),
    )


@pytest.mark.parametrize(
    ("labels", "rows"),
    [
        ([0, 0, 0, 1], [0, 1, 3, 3]),  # 4 rows, 2 a class
        ([2, 2, 2, 0], [3, 3, 0, 1]),  # class 1 has none
        ([0, 1, 1, 1, 1, 2, 2], [0, 0, 0, 1, 2, 3, 5, 6, 5]),  # 7 rows, 3 a class
        ([1, 1], [0, 1]),
    ],
)
def test_each_class_has_the_same_share(labels: list[int], rows: list[int]) -> None:
    assert equal_shares(torch.tensor(labels)).tolist() == rows


def test_the_phase_draws_from_the_memory_and_its_rate_falls_to_nothing() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    (phase,) = correction_phases(stub(Classifier(nn.Identity(), 1, 2), [0] * 4), lambda ids: labels[ids - 10])
    assert (phase.name, phase.epochs) == ("correction", 2)
    assert callable(phase.data)
    split = phase.data()
    assert isinstance(split, Split)
    assert split.labels.tolist() == [0, 0, 1, 1]
    assert split.inputs.flatten().tolist() == [0, 1, 3, 3]
    assert split.ids is not None
    assert split.ids.tolist() == [10, 11, 13, 13]
    assert phase.rate
    assert [phase.rate(*at) for at in ((0, 0.0), (0, 0.5), (1, 0.0), (1, 0.5))] == [1.0, 0.75, 0.5, 0.25]


def test_one_step_moves_the_head_by_its_gradient_and_the_body_not_at_all() -> None:
    linear, norm = nn.Linear(1, 1), nn.BatchNorm1d(1, eps=0.0)
    body = nn.Sequential(linear, norm)
    net = Classifier(body, 1, 2).train()
    with torch.no_grad():
        for weights in (*body.parameters(), *net.head.parameters()):
            weights.zero_()
        linear.weight.fill_(2.0)
        norm.weight.fill_(1.0)  # with the statistics 0 and 1 of evaluation the body doubles its input
    before = {key: value.clone() for key, value in body.state_dict().items()}
    (phase,) = correction_phases(stub(net, [0, 0]), lambda ids: ids)
    assert phase.optimizer
    assert callable(phase.parameters)
    optimizer = phase.optimizer(phase.parameters())
    ones = torch.ones(2, 1)
    batch = Batch(torch.arange(2), ones, ones, torch.tensor([0, 0]))
    terms = phase.observe(batch, optimizer)
    assert terms["correction"].item() == pytest.approx(log(2))  # two equal logits
    # The gradient of the logits is (1/2 - 1, 1/2), that of the weights this times the feature 2.
    assert net.head.weight.flatten().tolist() == [1.0, -1.0]
    assert net.head.bias.tolist() == [0.5, -0.5]
    assert net.training
    assert all(torch.equal(value, before[key]) for key, value in body.state_dict().items())
    assert all(weights.grad is None for weights in body.parameters())


def test_of_averaged_weights_the_copy_that_answers_is_corrected() -> None:
    live = Classifier(nn.Identity(), 1, 2)
    averaged = AveragedNet(live, 1.0, 0.9, derive_generator(0, "average"))
    model = stub(averaged, [0])
    assert answering_classifier(model) is averaged.copy
    (phase,) = correction_phases(model, lambda ids: ids)
    assert callable(phase.parameters)
    heads = [id(weights) for weights in averaged.copy.head.parameters()]
    assert [id(weights) for weights in phase.parameters()] == heads


def test_without_a_memory_or_epochs_there_is_no_correction() -> None:
    net = Classifier(nn.Identity(), 1, 2)
    assert correction_phases(stub(net, [0], correction=None), lambda ids: ids) == []
    without = stub(net, [0])
    without.memory = None
    assert correction_phases(without, lambda ids: ids) == []
