"""SER: each term by hand, and the identities of the paper's Algorithm 1."""

from typing import Any

import pytest
import torch
from support.steps import build, captured_gradient, first_batch, first_task, gradient, learn, optimizer_of
from support.tiny_stream import make_net, make_problem, weights
from torch import nn
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream
from strongreplay.methods.derpp import DERPP, DERPPConfig
from strongreplay.methods.samples import LogitSamples
from strongreplay.methods.ser import SER, SERConfig
from strongreplay.nets import build_net
from strongreplay.protocol import Batch, Problem, derive_generator


def after_task_one(stream: Stream, net: nn.Module | None = None, **settings: Any) -> SER:
    """SER that has learnt the first task."""
    method = SER(net or make_net(), make_problem(stream), SERConfig(**({"memory_size": 40} | settings)))
    learn(method, Stream(stream.scenario, stream.task_classes[:1], stream.input_shape, stream.make), epochs=2)
    return method


@pytest.mark.parametrize("stored_logits", ["before", "after"])
def test_task_one_is_sgd_to_the_bit(stream: Stream, stored_logits: str) -> None:
    ser, sgd = (
        build("ser", make_problem(stream), stored_logits=stored_logits),
        build("sgd", make_problem(stream)),
    )
    learn(ser, first_task(stream)), learn(sgd, first_task(stream))
    assert torch.equal(weights(ser.net), weights(sgd.net))
    assert len(ser.memory) == 24  # type: ignore[arg-type]


def test_replay_may_begin_with_the_second_step_of_task_one(stream: Stream) -> None:
    method = SER(make_net(), make_problem(stream), SERConfig(memory_size=40, early=True))
    plain = SER(make_net(), make_problem(stream), SERConfig(memory_size=40))
    steps = [
        [list(each.observe(first_batch(stream), optimizer_of(each))) for _ in range(2)]
        for each in (method, plain)
    ]
    assert steps == [[["current"], ["current", "replay", "backward"]], [["current"], ["current"]]]
    alone = SER(make_net(), make_problem(stream), SERConfig(memory_size=40, early=True, terms=("backward",)))
    for _ in range(2):
        terms = alone.observe(first_batch(stream), optimizer_of(alone))
    assert list(terms) == ["current", "backward"]  # the first task is learnt whatever is left out later


def test_early_and_without_forward_term_it_is_derpp_where_both_replay_everything(stream: Stream) -> None:
    """Two draws of all there is are one, but for the order in a sum."""
    settings: dict[str, Any] = {"memory_size": 500, "replay_size": 500, "alpha": 0.7}
    ser = SER(make_net(), make_problem(stream), SERConfig(**settings, beta=0, early=True))
    derpp = DERPP(make_net(), make_problem(stream), DERPPConfig(**settings, beta=1))
    before = weights(ser.net)
    for method in (ser, derpp):
        learn(method, first_task(stream))
    assert torch.allclose(weights(ser.net), weights(derpp.net), atol=1e-6)
    assert not torch.allclose(weights(ser.net), before, atol=1e-3)


def test_without_consistency_the_gradient_is_that_of_both_cross_entropies(stream: Stream) -> None:
    method = after_task_one(stream, alpha=0, beta=0)
    batch, state = first_batch(stream, 1), method.memory.generator.get_state()
    replayed = method.memory.sample(len(batch))
    method.memory.generator.set_state(state)
    expected = gradient(
        method.net,
        cross_entropy(method.net(batch.inputs), batch.labels)
        + cross_entropy(method.net(method.view(replayed.images)), replayed.labels),
    )
    before = weights(method.net)
    terms = method.observe(batch, optimizer_of(method, lr=1.0))
    assert torch.equal(weights(method.net), before - expected)
    assert terms["backward"] == terms["forward"] == 0


def test_the_first_step_of_task_two_has_no_forward_term_without_batch_norm(stream: Stream) -> None:
    method = after_task_one(stream, terms=("forward",))
    before = weights(method.net)
    terms = method.observe(first_batch(stream, 1), optimizer_of(method))
    assert terms == {"forward": torch.tensor(0.0)}
    assert torch.equal(before, weights(method.net))
    method = after_task_one(stream)
    method.observe(first_batch(stream, 1), optimizer_of(method))
    assert method.observe(first_batch(stream, 1), optimizer_of(method))["forward"] > 0


def test_the_old_net_answers_in_evaluation_mode(stream: Stream) -> None:
    """With batch norm live and old net differ at once; zero would mean the old one uses batch statistics."""
    net = build_net("resnet18", (1, 6, 6), 6, derive_generator(0, "net"), width=8)
    method = after_task_one(stream, net=net)
    assert method.observe(first_batch(stream, 1), optimizer_of(method))["forward"] > 0


def test_the_old_net_is_the_net_at_the_end_of_the_task_and_stays(stream: Stream) -> None:
    net = build_net("resnet18", (1, 6, 6), 6, derive_generator(0, "net"), width=8)
    method = after_task_one(stream, net=net)
    assert method.old_net.copy is not None
    taken = {name: value.clone() for name, value in method.net.state_dict().items()}
    method.train()
    for _ in range(3):
        method.observe(first_batch(stream, 1), optimizer_of(method))
    old = method.old_net.copy.state_dict()
    assert all(torch.equal(taken[name], old[name]) for name in taken)  # weights and running statistics
    live = method.net.state_dict()
    assert not all(torch.equal(live[name], old[name]) for name in live)


def test_one_future_column_off_by_one_costs_one_over_the_number_of_classes(stream: Stream) -> None:
    logits, target = torch.zeros(5, 8), torch.zeros(5, 8)
    target[:, 7] = 1
    mean, total = (SER(make_net(), make_problem(stream), SERConfig(consistency=c)) for c in ("mean", "sum"))
    assert mean.distance(logits, target).item() == pytest.approx(1 / 8)
    assert total.distance(logits, target).item() == pytest.approx(1)


def test_terms_by_hand_on_two_by_two_logits(stream: Stream) -> None:
    """A net that answers with its inputs; old answers and stored logits are set: each term is arithmetic."""
    net = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.eye(2))
    problem = Problem(2, 2, lambda images: images, lambda images: images)
    method = SER(net, problem, SERConfig(memory_size=2, alpha=0.5, beta=0.25))
    past = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    method.observe(
        Batch(torch.arange(2), past, past, torch.tensor([0, 1])), torch.optim.SGD(net.parameters(), lr=1e-12)
    )
    method.end_task(stream[0])
    with torch.no_grad():
        method.memory.rows.logits.copy_(past + torch.tensor([1.0, -3.0]))  # off by 1 and 3: mean square 5
        method.old_net.copy.weight.mul_(3)  # type: ignore[union-attr,operator]
    now = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    terms = method.observe(
        Batch(torch.arange(2), now, now, torch.tensor([1, 1])), torch.optim.SGD(net.parameters(), lr=1e-12)
    )
    softplus = torch.nn.functional.softplus
    current = (softplus(torch.tensor(1.0)) + softplus(torch.tensor(-2.0))) / 2
    replay = (softplus(torch.tensor(-2.0)) + softplus(torch.tensor(-1.0))) / 2
    forward = 0.25 * (2.0**2 + 4.0**2) / 4  # old answers are 3x: off by 2 and 4 on the diagonal
    expected: dict[str, Any] = {
        "current": current,
        "replay": replay,
        "backward": 0.5 * 5.0,
        "forward": forward,
    }
    assert list(terms) == list(expected)
    for name, value in expected.items():
        assert terms[name].item() == pytest.approx(float(value), rel=1e-5), name


def test_without_forward_term_it_is_derpp_with_both_draws_the_same(stream: Stream) -> None:
    ser = after_task_one(stream, alpha=0.3, beta=0)
    derpp = DERPP(ser.net, make_problem(stream), DERPPConfig(memory_size=40, alpha=0.3, beta=1))
    derpp.memory.add(LogitSamples(*ser.memory.rows))
    batch = first_batch(stream, 1)
    kept = ser.memory.sample(len(batch))
    for method in (ser, derpp):
        method.memory.sample = lambda count: kept  # type: ignore[method-assign]
    start = {name: value.clone() for name, value in ser.net.state_dict().items()}
    first = captured_gradient(ser, batch)
    ser.net.load_state_dict(start)
    assert torch.allclose(first, captured_gradient(derpp, batch), atol=1e-6)


@pytest.mark.parametrize(
    ("terms", "live", "old"),
    [(("current",), 1, 0), (("current", "replay"), 2, 0), (("current", "replay", "backward"), 2, 0),
     (("current", "forward"), 1, 1), (("current", "replay", "backward", "forward"), 2, 1)],
)  # fmt: skip
def test_the_ablation_is_one_method_and_pays_only_for_the_terms_in_use(
    terms: tuple[str, ...], live: int, old: int, stream: Stream
) -> None:
    method = after_task_one(stream, terms=terms)
    calls: list[str] = []
    method.net.register_forward_hook(lambda *args: calls.append("live"))
    method.old_net.register_forward_hook(lambda *args: calls.append("old"))
    assert tuple(method.observe(first_batch(stream, 1), optimizer_of(method))) == terms
    assert (calls.count("live"), calls.count("old")) == (live, old)


def test_current_alone_is_sgd(stream: Stream) -> None:
    ser, sgd = build("ser", make_problem(stream), terms=("current",)), build("sgd", make_problem(stream))
    learn(ser, stream), learn(sgd, stream)
    assert torch.equal(weights(ser.net), weights(sgd.net))


def test_logits_stored_after_the_step_are_those_of_the_plain_view_of_the_new_net(stream: Stream) -> None:
    net = build_net("resnet18", (1, 6, 6), 6, derive_generator(0, "net"), width=8)
    method = SER(net, make_problem(stream), SERConfig(memory_size=16, stored_logits="after"))
    batch = first_batch(stream)
    method.observe(batch, optimizer_of(method))
    assert method.net.training
    statistics = method.net.body.norm.num_batches_tracked.item()  # type: ignore[union-attr,operator]
    assert statistics == 1  # the second answer did not move them
    method.eval()
    with torch.no_grad():
        expected = method.net(stream.test_view(batch.images))
    assert torch.allclose(method.memory.rows.logits, expected, atol=1e-6)


def test_consistency_compares_the_columns_that_existed(stream: Stream) -> None:
    method = SER(make_net(), make_problem(stream))
    logits = torch.randn(3, 6)
    assert method.distance(logits, logits[:, :4]) == 0


def test_the_method_fits_one_screen() -> None:
    import inspect

    assert len(inspect.getsource(SER).splitlines()) <= 45
