"""SGD, ER, DER and DER++: the identities that define them."""

from typing import Any

import pytest
import torch
from support.steps import build, final_weights, first_batch, gradient, memories, optimizer_of
from support.tiny_stream import make_net, make_problem
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from strongreplay.data.streams import Stream, accumulate
from strongreplay.methods.base import OldNet
from strongreplay.methods.der import DER, DERConfig
from strongreplay.methods.derpp import DERPP, DERPPConfig
from strongreplay.methods.er import ER, ERConfig
from strongreplay.methods.sgd import SGD
from strongreplay.nets import Classifier
from strongreplay.protocol import Batch


def test_sgd_is_one_hand_computed_step_of_a_linear_model(stream: Stream) -> None:
    net = Classifier(nn.Flatten(), 2, 2)
    with torch.no_grad():
        net.head.weight.zero_()
        net.head.bias.zero_()
    inputs = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    batch = Batch(torch.arange(2), inputs, inputs, torch.tensor([0, 1]))
    method = SGD(net, make_problem(stream))
    terms = method.observe(batch, optimizer_of(method, 0.5))
    # With zero weights p = 1/2, so dCE/dW = mean((p - onehot) x^T).
    expected = (
        -0.5
        * torch.tensor([[-0.5 * 1 + 0.5 * 3, -0.5 * 2 - 0.5 * 1], [0.5 * 1 - 0.5 * 3, 0.5 * 2 + 0.5 * 1]])
        / 2
    )
    assert torch.allclose(net.head.weight, expected)
    assert terms["current"].item() == pytest.approx(0.693147, abs=1e-6)


def test_joint_on_a_single_task_is_sgd(stream: Stream) -> None:
    union = accumulate(stream)
    assert torch.equal(final_weights("sgd", accumulate(union)), final_weights("joint", union))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("er", {"memory_size": 0}),
        ("der", {"memory_size": 0}),
        ("derpp", {"memory_size": 0}),
        ("der", {"alpha": 0}),
        ("derpp", {"alpha": 0, "beta": 0}),
    ],
)
def test_with_nothing_to_replay_it_is_sgd_to_the_bit(
    name: str, settings: dict[str, Any], stream: Stream
) -> None:
    assert torch.equal(final_weights(name, stream, **settings), final_weights("sgd", stream))


def test_derpp_without_labels_is_der(stream: Stream) -> None:
    derpp = final_weights("derpp", stream, alpha=0.4, beta=0)
    assert torch.equal(derpp, final_weights("der", stream, alpha=0.4))


def test_derpp_without_logits_is_the_sum_form_of_er(stream: Stream) -> None:
    derpp = final_weights("derpp", stream, alpha=0, beta=1)
    assert torch.equal(derpp, final_weights("er", stream, loss="sum"))


def test_er_gradient_is_the_size_weighted_mean_of_both(stream: Stream) -> None:
    method = ER(make_net(), make_problem(stream), ERConfig(memory_size=24, replay_size=8))
    method.observe(first_batch(stream, 0), optimizer_of(method))
    state = method.memory.generator.get_state()
    batch = first_batch(stream, 1, size=12)
    got = gradient(method.net, method.terms(batch)["mixed"])
    method.memory.generator.set_state(state)
    replayed = method.memory.sample(8)
    of_stream = gradient(method.net, cross_entropy(method.net(batch.inputs), batch.labels))
    of_memory = gradient(method.net, cross_entropy(method.net(method.view(replayed.images)), replayed.labels))
    assert torch.allclose(got, (12 * of_stream + 8 * of_memory) / 20, atol=1e-7)


@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (5, 10), (32, 100)])
def test_a_distance_of_one_everywhere_costs_one(rows: int, columns: int) -> None:
    target = torch.randn(rows, columns)
    assert mse_loss(target + 1, target).item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("kind", ["der", "derpp", "ser"])
def test_stored_logits_are_the_forward_output_of_that_batch_to_the_bit(kind: str, stream: Stream) -> None:
    method = build(kind, make_problem(stream), memory_size=16)
    outputs: list[Tensor] = []
    method.net.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach().clone()))
    method.observe(first_batch(stream, size=16), optimizer_of(method))
    stored = memories(method)[0].rows.logits
    assert torch.equal(stored, outputs[0])
    assert not stored.requires_grad


def test_replay_starts_in_the_first_task_and_derpp_draws_twice(stream: Stream) -> None:
    method = DERPP(make_net(), make_problem(stream), DERPPConfig(memory_size=64, replay_size=4))
    batch, optimizer = first_batch(stream), optimizer_of(method)
    method.observe(batch, optimizer)
    drawn: list[list[int]] = []
    sample = method.memory.sample

    def spy(count: int) -> Any:
        rows = sample(count)
        drawn.append(
            [int((method.memory.rows.logits == logits).all(1).nonzero()[0]) for logits in rows.logits]
        )
        return rows

    method.memory.sample = spy  # type: ignore[method-assign]
    terms = method.observe(batch, optimizer)
    assert list(terms) == ["current", "backward", "replay"]
    assert len(drawn) == 2
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(
    ("method_name", "forwards"), [("sgd", 1), ("er", 1), ("der", 2), ("derpp", 3), ("ser", 2)]
)
def test_cost_of_a_step_in_forwards_and_backwards(
    method_name: str, forwards: int, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = build(method_name, make_problem(stream))
    method.observe(first_batch(stream), optimizer_of(method))
    method.end_task(stream[0])
    calls: list[str] = []
    backward: Any = Tensor.backward

    def spy(loss: Tensor) -> None:
        calls.append("back")
        backward(loss)

    monkeypatch.setattr(Tensor, "backward", spy)
    method.net.register_forward_hook(lambda *args: calls.append("live"))
    old = [module for module in method.modules() if isinstance(module, OldNet)]
    for module in old:
        module.register_forward_hook(lambda *args: calls.append("old"))
    method.observe(first_batch(stream, 1), optimizer_of(method))
    assert calls.count("live") == forwards
    assert calls.count("old") == len(old)
    assert calls.count("back") == 1


def test_der_weighs_the_mean_distance(stream: Stream) -> None:
    method = DER(make_net(), make_problem(stream), DERConfig(memory_size=16, alpha=0.5))
    method.observe(first_batch(stream, size=16), optimizer_of(method, 1e-12))
    with torch.no_grad():
        method.memory.rows.logits.add_(2.0)
    terms = method.observe(first_batch(stream, size=16), optimizer_of(method))
    assert terms["backward"].item() == pytest.approx(0.5 * 4, rel=1e-4)
