"""EWC: its penalty and Fisher information by hand, both forms of anchors, and when it is SGD or oEWC."""

from typing import Any

import pytest
import torch
from support.steps import (
    captured_gradient,
    final_weights,
    first_batch,
    first_task,
    gradient,
    learn,
    optimizer_of,
    tasks,
)
from support.tiny_stream import make_net, make_problem, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream, accumulate
from strongreplay.methods import ewc
from strongreplay.methods.base import unchanged
from strongreplay.methods.ewc import EWC, EWCConfig
from strongreplay.methods.oewc import OEWC, OEWCConfig
from strongreplay.nets import Classifier
from strongreplay.protocol import Problem, Split


def make(stream: Stream, **settings: Any) -> EWC:
    return EWC(make_net(), make_problem(stream), EWCConfig(**settings))


def one_weight(theta: float, **settings: Any) -> EWC:
    """p(1 | x) = sigmoid(x theta), as a head with the rows 0 and theta."""
    net = Classifier(nn.Flatten(), 1, 2)
    net.head.bias.requires_grad_(False).zero_()
    with torch.no_grad():
        net.head.weight.copy_(torch.tensor([[0.0], [theta]]))
    method = EWC(net, Problem(2, 2, unchanged, unchanged), EWCConfig(**settings))
    method.seen[:] = True
    return method


@pytest.mark.parametrize("anchors", ["folded", "separate"])
def test_the_penalty_of_two_anchors_by_hand(anchors: str) -> None:
    method = one_weight(0.0, anchors=anchors, penalty=3.0)
    for fisher, theta in ((2.0, 0.0), (3.0, 1.0)):
        method.fisher = lambda train, fisher=fisher: torch.tensor([0.0, fisher])  # type: ignore[method-assign, misc]
        with torch.no_grad():
            method.net.head.weight[1] = theta
        method.end_task(Stream("class-il", ((0, 1),), (1,), lambda *unused: Split(*two()))[0])
    with torch.no_grad():
        method.net.head.weight[1] = 0.5
    value, slope = method.penalise()  # the slope is divided by the weight of the penalty
    assert value.item() == pytest.approx(0.625 * 3.0, abs=1e-12 if anchors == "separate" else 1e-6)
    assert slope.tolist() == pytest.approx([0.0, 2 * 0.5 - 3 * 0.5], abs=1e-6)


def two() -> tuple[Tensor, Tensor]:
    return torch.ones(2, 1), torch.tensor([0, 1])


def test_both_forms_of_anchors_agree_to_1e_12_in_float64(stream: Stream) -> None:
    folded, separate = (make(stream, penalty=100, anchors=kind).double() for kind in ("folded", "separate"))
    generator = torch.Generator().manual_seed(0)
    for number in range(4):
        fisher, anchor = torch.rand(2, len(folded.total), dtype=torch.float64, generator=generator)
        fisher[:10] = fisher[10 * number : 10 * number + 30] = 0  # some weights matter to few, or to none
        folded.fold(fisher, anchor)
        separate.fishers = torch.cat([separate.fishers, fisher[None]])
        separate.anchors = torch.cat([separate.anchors, anchor[None]])
    folded.prepare()
    (value, slope), (exact, by_task) = folded.penalise(), separate.penalise()
    assert value.item() == pytest.approx(exact.item(), rel=1e-12)
    assert torch.allclose(slope, by_task, rtol=1e-12, atol=1e-12)


def test_both_forms_of_anchors_learn_the_same(stream: Stream) -> None:
    folded, separate = make(stream, penalty=100), make(stream, penalty=100, anchors="separate")
    learn(folded, stream, epochs=1), learn(separate, stream, epochs=1)
    assert torch.allclose(weights(folded.net), weights(separate.net), atol=1e-5)


def test_after_one_task_the_penalty_is_zero_and_after_two_it_is_not_unlike_oewc_s(stream: Stream) -> None:
    method, online = make(stream), OEWC(make_net(), make_problem(stream))
    learn(method, first_task(stream), epochs=1)
    value, slope = method.penalise()
    assert value == 0
    assert torch.equal(slope, torch.zeros_like(slope))
    method.begin_task(stream[1])
    for _ in range(3):
        method.observe(first_batch(stream, 1), optimizer_of(method))
    method.end_task(stream[1])
    assert method.penalise()[0] > 0
    learn(online, tasks(stream, 2), epochs=1)
    assert online.observe(first_batch(stream, 2), optimizer_of(online))["penalty"] == 0


@pytest.mark.parametrize("kind", ["true", "empirical"])
def test_fisher_information_of_a_logistic_model_by_hand(kind: str) -> None:
    data = Split(torch.tensor([[2.0]]), torch.tensor([1]))
    assert one_weight(0.0, fisher=kind).fisher(data)[1].item() == pytest.approx(1.0)
    p = torch.tensor(2.0).sigmoid().item()
    wanted = 4 * p * (1 - p) if kind == "true" else 4 * (1 - p) ** 2
    assert one_weight(1.0, fisher=kind).fisher(data)[1].item() == pytest.approx(wanted, rel=1e-5)


def test_other_kinds_of_fisher_information_by_hand() -> None:
    data, p = Split(torch.tensor([[2.0], [2.0]]), torch.tensor([1, 0])), torch.tensor(2.0).sigmoid().item()
    found = one_weight(1.0, fisher="max_pred").fisher(data)[1].item()
    assert found == pytest.approx(4 * (1 - p) ** 2, rel=1e-5)
    found = one_weight(1.0, fisher="batch").fisher(data)[1].item()
    assert found == pytest.approx((p - 0.5) ** 2 * 4, rel=1e-5)  # the square of the mean gradient


def test_one_drawn_label_estimates_the_expectation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ewc, "EXACT_CLASSES", 1)
    data = Split(torch.full((4000, 1), 2.0), torch.zeros(4000, dtype=torch.int64))
    p = torch.tensor(1.0).sigmoid().item()
    assert one_weight(0.5).fisher(data)[1].item() == pytest.approx(4 * p * (1 - p), rel=0.1)


def test_data_twice_give_the_same_fisher_information_and_statistics_stay(stream: Stream) -> None:
    method, train = make(stream), stream[0].train
    method.meet(stream[0])
    once, twice = method.fisher(train), method.fisher(train.joined(train))
    assert torch.allclose(once, twice, rtol=1e-4, atol=1e-9)
    rows = once.split([p.numel() for p in method.weights])
    assert (rows[-1][:2] > 0).all()
    assert (rows[-1][2:] == 0).all()  # biases of classes that were not met


def test_without_weight_it_is_sgd_to_the_bit(stream: Stream) -> None:
    assert torch.equal(final_weights("ewc", stream, penalty=0), final_weights("sgd", stream))
    assert not torch.equal(final_weights("ewc", stream), final_weights("sgd", stream))


def test_after_one_task_it_is_oewc_with_half_the_weight_to_the_bit(stream: Stream) -> None:
    union = accumulate(stream)
    method = EWC(make_net(), make_problem(stream), EWCConfig(penalty=6.0))
    online = OEWC(make_net(), make_problem(stream), OEWCConfig(penalty=3.0, fisher="true"))
    task = union[len(union) - 1]
    for each in (method, online):
        each.begin_task(task)
        for _ in range(3):
            each.observe(first_batch(stream), optimizer_of(each))
        each.end_task(task)
        for _ in range(3):
            each.observe(first_batch(stream, 1), optimizer_of(each))
    assert torch.equal(weights(method.net), weights(online.net))


def test_the_step_is_down_both_terms_by_autograd(stream: Stream) -> None:
    method, batch = make(stream, penalty=30.0, anchors="separate"), first_batch(stream, 2)
    learn(method, stream, epochs=1)
    theta = torch.cat([parameter.flatten() for parameter in method.net.parameters()])
    penalty = 15 * (method.fishers * (theta - method.anchors).square()).sum()
    expected = gradient(method.net, cross_entropy(method.net(batch.inputs), batch.labels) + penalty)
    assert torch.allclose(captured_gradient(method, batch), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("anchors", ["folded", "separate"])
def test_new_rows_of_the_head_have_no_importance(anchors: str, stream: Stream) -> None:
    method = make(stream, anchors=anchors)
    learn(method, first_task(stream), epochs=1)
    method.grow(8, torch.Generator())
    value, slope = method.penalise()
    assert len(slope) == sum(p.numel() for p in method.net.parameters())
    assert (value.item(), slope.abs().max().item()) == (0, 0)
    with torch.no_grad():
        method.net.head.bias[-2:] += 5
    assert method.penalise()[0] == 0
    again = make(stream, anchors=anchors)
    again.grow(7, torch.Generator())
    again.load_state_dict(method.state_dict())
    again.begin_task(stream[1])
    assert torch.equal(captured_gradient(again, first_batch(stream, 1)),
                       captured_gradient(method, first_batch(stream, 1)))  # fmt: skip
