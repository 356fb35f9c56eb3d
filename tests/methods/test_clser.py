"""CLS-ER: its teacher, its loss by hand, its reduction to ER, and the statistics of its averaged nets."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from support.steps import (
    EVERYTHING,
    accuracies,
    batches_of,
    build,
    first_batch,
    first_norm,
    learn,
    make_cnn,
    noisy,
    optimizer_of,
    same_state,
    state_bytes,
)
from support.tiny_stream import make_net, make_problem, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from strongreplay.data.streams import Stream, accumulate
from strongreplay.methods.clser import CLSER, CLSERConfig, more_confident
from strongreplay.methods.samples import LabelledSamples
from strongreplay.protocol import Batch, Problem
from strongreplay.runs.config import resolve
from strongreplay.training.engine import evaluate


def clser(stream: Stream, net: nn.Module | None = None, **settings: Any) -> CLSER:
    return CLSER(net or make_net(), make_problem(stream), CLSERConfig(**({"memory_size": 24} | settings)))


def steps(method: CLSER, stream: Stream, count: int) -> list[dict[str, Tensor]]:
    optimizer = optimizer_of(method)
    return [method.observe(first_batch(stream, number % 3), optimizer) for number in range(count)]


def test_the_teacher_by_hand() -> None:
    stable, plastic = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    teacher = more_confident(stable, plastic, torch.tensor([0, 1]))
    assert teacher.tolist() == [[2, 0], [0, 3]]
    assert mse_loss(torch.zeros(2, 2), teacher).item() == 3.25


def test_the_teacher_is_chosen_by_probability_not_logit_and_a_tie_is_the_plastic_nets() -> None:
    labels = torch.tensor([0, 0])
    stable = torch.tensor([[3.0, 3.0], [1.0, 0.0]])
    plastic = torch.tensor([[1.0, -1.0], [2.0, 1.0]])
    assert torch.equal(more_confident(stable, plastic, labels), plastic)


def test_terms_by_hand(stream: Stream) -> None:
    """Nets that multiply by a number: one mean over three samples, and a mean over samples and classes."""
    net = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.eye(2))
    problem = Problem(2, 2, lambda images: images, lambda images: images)
    method = CLSER(net, problem, CLSERConfig(memory_size=1, penalty=0.5))
    past, now = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    method.memory.add(LabelledSamples(past, torch.tensor([0])))
    with torch.no_grad():
        method.stable.copy.weight.mul_(3)  # type: ignore[operator]
        method.plastic.copy.weight.mul_(2)  # type: ignore[operator]
    terms = method.observe(
        Batch(torch.arange(2), now, now, torch.tensor([1, 1])), torch.optim.SGD(net.parameters(), lr=1e-12)
    )
    softplus = nn.functional.softplus
    mixed = softplus(torch.tensor([1.0, -2.0, -2.0])).sum() / 3
    assert list(terms) == ["mixed", "consistency"]
    assert terms["mixed"].item() == pytest.approx(mixed.item(), rel=1e-6)
    assert terms["consistency"].item() == pytest.approx(0.5 * (6 - 2) ** 2 / 2)  # stable net: more confident


def test_the_gradient_is_that_of_both_terms(stream: Stream) -> None:
    method = clser(stream, penalty=0.4)
    steps(method, stream, 6)
    batch, state = first_batch(stream, 1), method.memory.generator.get_state()
    replayed = method.memory.sample(len(batch))
    method.memory.generator.set_state(state)
    inputs = method.view(replayed.images)
    target = more_confident(method.stable(inputs), method.plastic(inputs), replayed.labels)
    logits = method.net(torch.cat([batch.inputs, inputs]))
    loss = cross_entropy(logits, torch.cat([batch.labels, replayed.labels]))
    loss = loss + 0.4 * ((method.net(inputs) - target) ** 2).mean()
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(method.net.parameters()))])
    before = weights(method.net)
    method.observe(batch, optimizer_of(method, lr=1.0))
    assert torch.allclose(before - weights(method.net), expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_net, make_cnn])
def test_without_penalty_and_updates_it_is_er_on_one_joined_batch(make: Any, stream: Stream) -> None:
    settings: dict[str, Any] = {"penalty": 0, "plastic_rate": 0, "stable_rate": 0}
    method = build("clser", make_problem(stream), net=make(), **settings)
    er = build("er", make_problem(stream), net=make())
    learn(method, stream), learn(er, stream)
    assert torch.equal(weights(method.net), weights(er.net))
    with_penalty = build("clser", make_problem(stream), net=make(), **settings | {"penalty": 0.5})
    learn(with_penalty, stream)
    assert not torch.equal(weights(with_penalty.net), weights(er.net))


def test_the_averaged_nets_start_as_the_working_net_and_follow_from_the_first_step(stream: Stream) -> None:
    method = clser(stream)
    start = weights(method.net)
    assert torch.equal(weights(method.stable), start)
    assert torch.equal(weights(method.plastic), start)
    steps(method, stream, 1)
    mean = (start + weights(method.net)) / 2
    assert torch.allclose(weights(method.stable), mean, atol=1e-7)
    assert torch.allclose(weights(method.plastic), mean, atol=1e-7)
    assert not torch.allclose(weights(method.net), start, atol=1e-4)


def test_a_net_with_no_odds_never_moves_and_each_has_its_own(stream: Stream) -> None:
    method = clser(stream, stable_rate=0)
    start = weights(method.net)
    steps(method, stream, 9)
    assert torch.equal(weights(method.stable), start)
    assert not torch.equal(weights(method.plastic), start)
    alike = clser(stream, plastic_rate=0.5, stable_rate=0.5, stable_decay=0.99)
    steps(alike, stream, 9)  # the same settings, but draws of their own
    assert not torch.equal(weights(alike.plastic), weights(alike.stable))


def test_no_gradient_reaches_the_averaged_nets(stream: Stream) -> None:
    method = clser(stream, make_cnn())
    steps(method, stream, 4)
    for averaged in (method.plastic, method.stable):
        assert all(p.grad is None and not p.requires_grad for p in averaged.parameters())
    owned = {id(p) for p in method.net.parameters()}
    assert not owned & {id(p) for net in (method.plastic, method.stable) for p in net.parameters()}


def test_statistics_of_averaged_nets_come_from_replayed_batches_alone(stream: Stream) -> None:
    method = clser(stream, make_cnn())
    steps(method, stream, 5)
    live, stable, plastic = (first_norm(net) for net in (method.net, method.stable, method.plastic))
    for norm in (stable, plastic):
        assert norm.num_batches_tracked == 4  # steps with replay
        assert (norm.running_mean != 0).all()
        assert not torch.allclose(norm.running_mean, live.running_mean, atol=1e-4)
    assert live.num_batches_tracked == 1 + 2 * 4


@pytest.mark.slow
def test_the_stable_net_answers_well_only_with_its_own_statistics(stream: Stream) -> None:
    method = clser(stream, make_cnn())
    learn(method, accumulate(stream), epochs=8)
    judge = partial(evaluate, method, stream.test(0), stream.test_view, EVERYTHING)
    assert judge()[0] > 90
    for module in method.stable.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
    assert judge()[0] < 60


def test_statistics_of_the_working_net_by_a_switch(stream: Stream) -> None:
    method = clser(stream, make_cnn(), statistics="working", stable_rate=0.2)
    steps(method, stream, 5)
    for averaged in (method.plastic, method.stable):
        for own, its in zip(averaged.copy.buffers(), method.net.buffers(), strict=True):
            assert torch.equal(own, its)
    plain = clser(stream, make_cnn(), stable_rate=0.2)
    steps(plain, stream, 5)
    assert torch.equal(weights(method.net), weights(plain.net))  # training normalises by batches either way


def test_one_augmented_draw_serves_all_nets(stream: Stream) -> None:
    method = CLSER(make_net(), noisy(stream, torch.Generator().manual_seed(1)), CLSERConfig(memory_size=24))
    steps(method, stream, 2)
    seen: dict[str, list[Tensor]] = {"stable": [], "plastic": [], "working": []}
    for name, net in method.predictors().items():
        net.register_forward_hook(lambda m, inputs, out, name=name: seen[name].append(inputs[0]))
    batch = first_batch(stream, 1)
    method.observe(batch, optimizer_of(method))
    alone, joined = seen["working"]
    assert torch.equal(alone, seen["stable"][0])
    assert torch.equal(alone, seen["plastic"][0])
    assert torch.equal(joined, torch.cat([batch.inputs, alone]))
    assert [len(inputs) for inputs in seen.values()] == [1, 1, 2]


def test_replay_starts_with_the_second_step(stream: Stream) -> None:
    method = clser(stream)
    assert [list(terms) for terms in steps(method, stream, 2)] == [["current"], ["mixed", "consistency"]]


def test_it_knows_no_boundaries(stream: Stream) -> None:
    told, untold = clser(stream), clser(stream)
    learn(told, stream)
    untold.begin_task = lambda task: task  # type: ignore[method-assign]
    untold.end_task = lambda task: None  # type: ignore[method-assign]
    learn(untold, stream)
    assert same_state(state_bytes(told), state_bytes(untold))


def test_duplicated_samples_change_no_term(stream: Stream) -> None:
    method = clser(stream)
    steps(method, stream, 5)
    batch, replayed = first_batch(stream, 1, size=8), method.memory.sample(8)
    method.memory.sample = lambda count: replayed  # type: ignore[method-assign]
    once = method.terms(batch)
    replayed = LabelledSamples(*(torch.cat([column, column]) for column in replayed))
    twice = method.terms(
        Batch(*(torch.cat([p, p]) for p in (batch.rows, batch.images, batch.inputs, batch.labels)))
    )
    for name, term in once.items():
        assert twice[name].item() == pytest.approx(term.item(), rel=1e-5)


@pytest.mark.parametrize("name", ["stable", "plastic", "working"])
def test_the_net_that_answers(name: str, stream: Stream) -> None:
    method = clser(stream, eval_net=name, stable_rate=0.2)
    steps(method, stream, 6)
    inputs = first_batch(stream, 2).inputs
    answers = {key: ask(inputs) for key, ask in method.predictors().items()}
    assert list(answers) == ["stable", "plastic", "working"]
    assert torch.equal(method.predict(inputs), answers[name])
    assert not torch.equal(answers["stable"], answers["plastic"])
    assert not torch.equal(answers["plastic"], answers["working"])
    assert torch.equal(answers["working"], method.net(inputs))
    assert CLSERConfig().eval_net == "stable"


def test_averaged_with_augmentation_and_batch_norm_it_resumes_to_the_bit(stream: Stream) -> None:
    settings: dict[str, Any] = {"memory_size": 24, "plastic_rate": 0.6, "stable_rate": 0.3}
    batches = [batch for task in stream for batch in batches_of(task.train, stream)]

    def start(seed: int) -> tuple[CLSER, torch.Generator]:
        views = torch.Generator().manual_seed(seed)
        problem = replace(noisy(stream, views), seed=seed)
        return CLSER(make_cnn(seed), problem, CLSERConfig(**settings)), views

    def go(method: CLSER, part: slice) -> None:
        optimizer = optimizer_of(method)
        for batch in batches[part]:
            method.observe(batch, optimizer)

    (straight, _), (early, views) = start(0), start(0)
    go(straight, slice(0, 15))
    go(early, slice(0, 8))
    resumed, their_views = start(7)
    resumed.load_state_dict(early.state_dict())
    their_views.set_state(views.get_state())
    go(resumed, slice(8, 15))
    assert same_state(state_bytes(straight), state_bytes(resumed))


def test_cost_of_a_step(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    method = clser(stream)
    calls: list[str] = []
    steps(method, stream, 1)
    backward: Any = Tensor.backward

    def spy(loss: Tensor) -> None:
        calls.append("back")
        backward(loss)

    monkeypatch.setattr(Tensor, "backward", spy)
    for name, net in method.predictors().items():
        net.register_forward_hook(lambda *args, name=name: calls.append(name))
    steps(method, stream, 1)
    assert sorted(calls) == ["back", "plastic", "stable", "working", "working"]


def test_with_fast_averages_it_forgets_nothing_here(stream: Stream) -> None:
    """Plain training and its averages know the last task alone."""
    settings: dict[str, Any] = {"memory_size": 30, "plastic_decay": 0.9, "stable_decay": 0.9}
    method = build("clser", make_problem(stream), **settings)
    learn(method, stream, epochs=8)
    assert min(accuracies(method, stream)) > 80


@pytest.mark.parametrize(
    ("stream_name", "size", "expected"),
    [
        ("seq-cifar10", 200, (0.1, 32, 32, 50, 0.15, 0.1, 0.999, 0.3, 0.999)),
        ("seq-cifar10", 500, (0.1, 32, 32, 50, 0.15, 0.1, 0.999, 0.9, 0.999)),
        ("seq-cifar10", 5120, (0.1, 32, 32, 50, 0.15, 0.8, 0.999, 1.0, 0.999)),
        ("seq-tinyimagenet", 200, (0.05, 32, 32, 50, 0.1, 0.04, 0.999, 0.08, 0.999)),
        ("seq-tinyimagenet", 500, (0.05, 32, 32, 50, 0.1, 0.05, 0.999, 0.08, 0.999)),
        ("seq-tinyimagenet", 5120, (0.05, 32, 32, 50, 0.1, 0.07, 0.999, 0.08, 0.999)),
        ("p-mnist", 200, (0.2, 128, 128, 1, 1.0, 0.8, 0.99, 1.0, 0.99)),
        ("p-mnist", 500, (0.2, 128, 128, 1, 1.0, 0.8, 0.99, 1.0, 0.99)),
        ("r-mnist", 200, (0.2, 128, 128, 1, 0.75, 1.0, 0.999, 1.0, 0.99)),
        ("r-mnist", 500, (0.2, 128, 128, 1, 0.75, 1.0, 0.999, 1.0, 0.99)),
        ("seq-mnist", 200, (0.03, 10, 128, 1, 2.0, 0.9, 0.99, 1.0, 0.99)),
        ("seq-mnist", 500, (0.1, 10, 32, 1, 2.0, 0.9, 0.99, 1.0, 0.99)),
    ],
)
def test_published_settings(stream_name: str, size: int, expected: tuple[float, ...]) -> None:
    config = resolve(stream_name, "clser", size)
    method, train = config.method, config.train
    assert isinstance(method, CLSERConfig)
    assert train.milestones == ()
    assert expected == (
        train.lr, train.batch_size, method.replay_size, train.epochs, method.penalty,
        method.stable_rate, method.stable_decay, method.plastic_rate, method.plastic_decay,
    )  # fmt: skip
    assert "CLS-ER" in config.source
