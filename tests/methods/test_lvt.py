"""LVT: every term by hand, who learns from what, importance of attention, and the surest of each class."""

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from math import log
from typing import Any

import pytest
import torch
from support.steps import (
    batches_of,
    count_passes,
    first_batch,
    learn,
    optimizer_of,
    same_state,
    state_bytes,
    tasks,
)
from support.tiny_stream import NUM_CLASSES, make_net, make_problem, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream, split_by_class
from strongreplay.errors import ConfigError
from strongreplay.methods import check_scenario
from strongreplay.methods import lvt as module
from strongreplay.methods.base import OldNet
from strongreplay.methods.lvt import LVT, NEVER, LVTConfig, log_odds, place_in_class, shares
from strongreplay.methods.samples import TaskLogitSamples
from strongreplay.nets import build_net
from strongreplay.nets.lvt import LVTNet
from strongreplay.protocol import Batch, Problem, Split, derive_generator
from strongreplay.training.engine import evaluate


def build(stream: Stream, seed: int = 0, **settings: Any) -> LVT:
    net = build_net("lvt", (1, 6, 6), NUM_CLASSES, derive_generator(seed, "net"), width=4)
    return LVT(net, make_problem(stream, seed), LVTConfig(**({"memory_size": 24} | settings)))


@pytest.fixture(scope="module")
def taught(train_split: Split, test_split: Split) -> Callable[..., LVT]:
    """A method after so many tasks, each made once and copied."""
    stream = split_by_class(train_split, test_split, NUM_CLASSES, 3)
    made: dict[str, LVT] = {}

    def give(count: int = 1, **settings: Any) -> LVT:
        key = f"{count}{settings}"
        if key not in made:
            made[key] = build(stream, **settings)
            learn(made[key], tasks(stream, count), epochs=2)
        return deepcopy(made[key])

    return give


def live_terms(method: LVT, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """The terms of a step with their graphs, and no step taken."""
    caught: dict[str, Tensor] = {}
    monkeypatch.setattr(module, "descend", lambda optimizer, terms: caught.update(terms) or caught)
    method.observe(batch, optimizer_of(method))
    monkeypatch.undo()
    return caught


def gradient_of(term: Tensor, weight: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(term, weight, retain_graph=True, materialize_grads=True)
    return found


def counts(method: LVT) -> list[int]:
    return torch.bincount(method.memory.rows.labels, minlength=NUM_CLASSES).tolist()


def scores(method: LVT, images: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
    """Both heads' answers to plain images, accumulation first."""
    with torch.no_grad():
        features = method.net.eval().features(stream.test_view(images))
        return method.net.head(features), method.net.injection(features)


# Losses


def test_the_first_task_is_two_heads_on_one_body_to_the_bit(stream: Stream) -> None:
    method, plain = build(stream), build(stream).net
    method.begin_task(stream[0])
    optimizer, other = optimizer_of(method), torch.optim.SGD(plain.parameters(), lr=0.1)
    for batch in batches_of(stream[0].train, stream)[:3]:
        features = plain.features(batch.inputs)
        loss = cross_entropy(plain.injection(features), batch.labels)
        loss = loss + cross_entropy(plain.head(features), batch.labels)
        other.zero_grad()
        loss.backward()
        other.step()
        terms = method.observe(batch, optimizer)
        assert list(terms) == ["injection", "current"]
        assert torch.equal(sum(terms.values()), loss.detach())  # type: ignore[arg-type]
    assert torch.equal(weights(method.net), weights(plain))


def test_a_step_of_the_second_task_by_hand(stream: Stream, taught: Callable[..., LVT]) -> None:
    """In evaluation mode, where samples do not meet."""
    method = taught(1, replay_weight=0.7, dark_weight=0.3, attention_weight=0.01, fading=0.8)
    method.observe(first_batch(stream, 1), optimizer_of(method))  # so that keys have moved
    method.eval()
    batch, memory = first_batch(stream, 1), deepcopy(method.memory)
    replayed = memory.sample(16)
    features = method.net.features(batch.inputs)
    logits = method.net(stream.test_view(replayed.images))
    old = (replayed.logits[:, :2] / 2).log_softmax(1)
    now = (logits[:, :2] / 2).log_softmax(1)
    moved = torch.cat([p.flatten() for p in method.net.attention_parameters()]) - method.anchor
    expected = {
        "injection": cross_entropy(method.net.injection(features), batch.labels),
        "current": 0.8 * cross_entropy(method.net.head(features), batch.labels),
        "replay": 0.7 * cross_entropy(logits, replayed.labels),
        "dark": 0.3 * (old.exp() * (old - now)).sum(1).mean(),
        "attention": 0.01 * (method.importance * moved).abs().sum(),
    }
    terms = method.observe(batch, optimizer_of(method))
    assert list(terms) == list(expected)
    for name, value in expected.items():
        assert value > 0
        assert terms[name].item() == pytest.approx(value.item(), rel=1e-4)


def test_the_share_of_arriving_samples_fades(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check f: 1, 0.9, 0.81."""
    method, found = build(stream), []
    for number in range(3):
        method.eval()
        batch = first_batch(stream, number)
        plain = cross_entropy(method.net(batch.inputs), batch.labels)
        found.append((live_terms(method, batch, monkeypatch)["current"] / plain).item())
        method.end_task(stream[number])
    assert found == pytest.approx([1, 0.9, 0.81], rel=1e-5)


def test_replay_never_touches_the_injection_head_nor_injection_the_other(
    stream: Stream, taught: Callable[..., LVT], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check c."""
    method = taught(1)
    terms = live_terms(method, first_batch(stream, 1), monkeypatch)
    head, injection = method.net.head.weight, method.net.injection.weight
    for name in ("current", "replay", "dark", "attention"):
        assert not gradient_of(terms[name], injection).any()
    for name in ("injection", "attention"):
        assert not gradient_of(terms[name], head).any()
    stem = next(method.net.body.parameters())
    assert gradient_of(terms["injection"], injection).any()
    for name in ("current", "replay", "dark"):
        assert gradient_of(terms[name], head).any()
        assert gradient_of(terms[name], stem).any()


def test_both_halves_of_a_batch_meet_in_the_norms(stream: Stream, taught: Callable[..., LVT]) -> None:
    method = taught(1)
    seen: list[int] = []
    method.net.body.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    method.observe(first_batch(stream, 1), optimizer_of(method))
    assert seen == [16 + 16]


def test_a_step_costs_one_forward_and_one_backward(
    stream: Stream, taught: Callable[..., LVT], monkeypatch: pytest.MonkeyPatch
) -> None:
    method, batch, passes = taught(1), first_batch(stream, 1), []
    method.net.body.register_forward_hook(lambda *args: passes.append("body"))
    optimizer = optimizer_of(method)
    assert count_passes(method, monkeypatch, lambda: method.observe(batch, optimizer))[1] == 1
    assert passes == ["body"]


def test_means_do_not_change_when_every_sample_comes_twice(
    stream: Stream, taught: Callable[..., LVT], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = taught(1, memory_size=12)
    method.eval()
    batch = first_batch(stream, 1)
    twice = Batch(
        *(torch.cat([part, part]) for part in (batch.rows, batch.images, batch.inputs, batch.labels))
    )
    once, memory = live_terms(method, batch, monkeypatch), method.memory
    doubled = TaskLogitSamples(*(torch.cat([column, column]) for column in memory.rows))
    monkeypatch.setattr(memory, "sample", lambda count: doubled)
    found: dict[str, Tensor] = {}
    monkeypatch.setattr(module, "descend", lambda optimizer, terms: found.update(terms) or found)
    method.observe(twice, optimizer_of(method))
    for name, value in found.items():
        assert value.item() == pytest.approx(once[name].item(), rel=1e-5)


# Distance to old answers


def distance(stream: Stream, logits: Tensor, target: Tensor, seen: Tensor, **settings: Any) -> Tensor:
    return build(stream, **settings).distance(logits, target, seen)


def test_kl_by_hand_and_its_direction(stream: Stream) -> None:
    target, logits, seen = torch.tensor([[2.0, 0.0]]), torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    # p = (0.731059, 0.268941) against 1/2; the other way round it would be 0.120115, with T^2 0.443776
    assert distance(stream, logits, target, seen).item() == pytest.approx(0.110944, abs=1e-6)
    hot = distance(stream, logits, target, seen, temperature=1.0).item()
    p = 0.8807970779778823
    assert hot == pytest.approx(p * log(2 * p) + (1 - p) * log(2 * (1 - p)), abs=1e-6)


def test_kl_is_nothing_where_answers_differ_by_a_constant(stream: Stream) -> None:
    """Check g."""
    target = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    logits = (target + torch.arange(5.0)[:, None]).requires_grad_()
    found = distance(stream, logits, target, torch.ones(1, 6, dtype=torch.bool))
    assert found.abs().item() < 1e-6
    assert gradient_of(found, logits).abs().max() < 1e-6


@pytest.mark.parametrize("dark", ["kl", "mse"])
def test_classes_not_seen_when_the_answer_was_stored_have_no_say(stream: Stream, dark: str) -> None:
    target, logits = (
        torch.tensor([[2.0, 0.0, 50.0, -3.0]]).expand(3, 4),
        torch.zeros(3, 4, requires_grad=True),
    )
    seen = torch.tensor([[True, True, False, False]])
    found = distance(stream, logits, target, seen, dark=dark)
    assert found.item() == pytest.approx(0.110944 if dark == "kl" else (4 + 0) / 2, abs=1e-6)
    gradient = gradient_of(found, logits)
    assert gradient.isfinite().all()
    assert (gradient[:, 0] < 0).all()
    assert not gradient[:, 2:].any()


def test_mse_is_the_mean_over_samples_and_their_seen_classes(stream: Stream) -> None:
    logits, target = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.zeros(2, 3)
    seen = torch.tensor([[True, False, False], [True, True, True]])
    found = distance(stream, logits, target, seen, dark="mse")
    assert found.item() == pytest.approx((1 + 16 + 25 + 36) / 4)


@pytest.mark.slow
def test_every_sample_is_compared_over_the_classes_of_its_own_time(
    stream: Stream, taught: Callable[..., LVT]
) -> None:
    method = taught(2)
    replayed = method.memory.rows
    assert sorted(set(zip(replayed.labels.tolist(), replayed.tasks.tolist(), strict=True))) == [
        (0, 0), (1, 0), (2, 1), (3, 1),
    ]  # fmt: skip
    target, seen = method.old_answer(stream.test_view(replayed.images), replayed)
    assert target is replayed.logits
    assert seen[replayed.tasks == 0].unique(dim=0).tolist() == [[True] * 2 + [False] * 4]
    assert seen[replayed.tasks == 1].unique(dim=0).tolist() == [[True] * 4 + [False] * 2]


@pytest.mark.slow
def test_a_frozen_teacher_answers_instead_of_the_store(stream: Stream, taught: Callable[..., LVT]) -> None:
    method = taught(2, teacher="frozen")
    replayed, taken = method.memory.rows, deepcopy(method.net).eval()
    inputs = stream.test_view(replayed.images)
    method.train()
    for _ in range(3):
        method.observe(first_batch(stream, 2), optimizer_of(method))
    target, seen = method.old_answer(inputs, replayed)
    assert torch.equal(target, taken(inputs))
    assert not torch.allclose(target, replayed.logits, atol=1e-3)
    assert seen.tolist() == [[True] * 4 + [False] * 2]  # classes of the task at hand are not among them
    assert isinstance(method.old_net, OldNet)
    assert not any(parameter.requires_grad for parameter in method.old_net.parameters())
    assert not any(isinstance(part, OldNet) for part in taught(2).modules())


# Attention


def test_the_change_of_attention_by_its_importance(stream: Stream, taught: Callable[..., LVT]) -> None:
    """Check d: keys times 1 + eps."""
    method, eps = taught(1), 0.01
    assert method.attention_change().item() == 0
    keys = method.net.attention_parameters()[:15]  # then follow the tables
    old = torch.cat([key.detach().flatten() for key in keys])
    with torch.no_grad():
        for key in keys:
            key.mul_(1 + eps)
    expected = eps * (method.importance[: len(old)] * old.abs()).sum()
    assert expected > 0
    assert method.attention_change().item() == pytest.approx(expected.item(), rel=1e-3)


def test_the_first_step_of_a_task_feels_no_pull(
    stream: Stream, taught: Callable[..., LVT], monkeypatch: pytest.MonkeyPatch
) -> None:
    method, batch = taught(1, attention_weight=0.5), first_batch(stream, 1)
    term, key = live_terms(method, batch, monkeypatch)["attention"], method.net.attention_parameters()[0]
    assert term.item() == 0
    assert not gradient_of(term, key).any()
    method.observe(batch, optimizer_of(method))
    term = live_terms(method, batch, monkeypatch)["attention"]
    pull = (
        0.5
        * method.importance[: key.numel()]
        * (key.detach().flatten() - method.anchor[: key.numel()]).sign()
    )
    assert pull.any()
    assert torch.allclose(gradient_of(term, key).flatten(), pull)


def test_importance_is_the_mean_absolute_gradient_of_the_injection_loss(
    stream: Stream, taught: Callable[..., LVT]
) -> None:
    method = taught(1)
    with torch.no_grad():
        method.net.head.weight.zero_()  # the other head has no part in it
    before, train = state_bytes(method), stream[1].train
    found = method.train().measure_importance(train)
    assert same_state(before, state_bytes(method))  # evaluation mode: statistics are held
    assert all(part.training for part in method.net.modules())
    method.eval()
    keys, signed, absolute = method.net.attention_parameters(), [], []
    for rows in torch.arange(80).split(32):
        answers = method.net.injection(method.net.features(stream.test_view(train.inputs[rows])))
        gradients = torch.autograd.grad(cross_entropy(answers, train.labels[rows]), keys)
        signed.append(torch.cat([gradient.flatten() for gradient in gradients]))
        absolute.append(signed[-1].abs())
    expected = torch.stack(absolute).mean(0)
    assert torch.allclose(found, expected / expected.mean(), rtol=1e-3, atol=1e-5)
    assert found.mean().item() == pytest.approx(1, rel=1e-5)
    cancelled = torch.stack(signed).mean(0).abs()
    assert not torch.allclose(found, cancelled / cancelled.mean(), rtol=0.05, atol=0.05)


def test_importance_without_any_gradient_is_nothing(stream: Stream) -> None:
    """At the start no attention passes, so no key has a gradient."""
    method = build(stream)
    assert torch.equal(method.measure_importance(stream[0].train), torch.zeros_like(method.anchor))


@pytest.mark.slow
def test_task_end_anchors_attention_and_draws_the_injection_head_anew(stream: Stream) -> None:
    method, kept, again = build(stream), build(stream, reinit_injection=False), build(stream)
    for each in (method, kept, again):
        learn(each, tasks(stream, 1), epochs=1)
    expected = torch.cat([p.detach().flatten() for p in method.net.attention_parameters()])
    assert torch.equal(method.anchor, expected)
    drawn, old = method.net.injection.weight, kept.net.injection.weight
    assert torch.equal(drawn, again.net.injection.weight)
    assert not torch.equal(drawn, old)
    assert torch.equal(method.net.head.weight, kept.net.head.weight)
    assert drawn.std().item() == pytest.approx(32**-0.5, rel=0.2)
    assert torch.equal(method.importance, kept.importance)  # measured before the head is thrown away
    first = drawn.detach().clone()
    method.end_task(stream[1])
    assert not torch.equal(drawn, first)


# Memory


def test_shares_of_classes() -> None:
    assert shares(torch.tensor([0, 0, NEVER, NEVER]), 7).tolist() == [4, 3, 0, 0]
    assert shares(torch.tensor([0, 0, 1, 1]), 9).tolist() == [2, 2, 3, 2]  # one more of the newest
    assert shares(torch.tensor([1, 2, 0, 2]), 11).tolist() == [3, 3, 2, 3]
    assert shares(torch.tensor([0, 1, NEVER]), 8).tolist() == [4, 4, 0]


def test_places_in_class() -> None:
    assert place_in_class(torch.tensor([2, 0, 2, 2, 0, 5])).tolist() == [0, 0, 1, 2, 1, 0]


def test_log_odds_rank_as_probability_does_and_do_not_saturate() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(50, 4, generator=generator), torch.arange(50) % 4
    p = logits.softmax(1)[range(50), labels]
    assert torch.allclose(log_odds(logits, labels), (p / (1 - p)).log(), atol=1e-5)
    sure = torch.tensor([[30.0, 0.0], [50.0, 0.0], [40.0, 0.0]])
    assert (sure.softmax(1)[:, 0] == 1).all()
    assert log_odds(sure, torch.zeros(3, dtype=torch.int64)).argsort(descending=True).tolist() == [1, 2, 0]


def test_the_surest_of_each_class_are_kept_as_the_injection_head_sees_them(stream: Stream) -> None:
    """Check e, with the statistics of evaluation mode and no augmentation."""
    method = build(stream, memory_size=25, reinit_injection=False)
    learn(method, tasks(stream, 1), epochs=2)
    assert counts(method) == [13, 12, 0, 0, 0, 0]
    train, stored = stream[0].train, method.memory.rows
    _, injected = scores(method, train.inputs, stream)
    for label in (0, 1):
        own = train.inputs[train.labels == label]
        p = injected.log_softmax(1)[train.labels == label, label]
        best = p.sort(descending=True).values
        images = stored.images[stored.labels == label]
        positions = [int((own == image).flatten(1).all(1).nonzero()[0]) for image in images]
        assert len(set(positions)) == len(positions)
        assert torch.allclose(p[positions], best[: len(positions)], atol=1e-5)  # descending, from the top
    accumulated, _ = scores(method, stored.images, stream)
    assert torch.allclose(stored.logits, accumulated, atol=1e-5)
    assert not torch.allclose(stored.logits, scores(method, stored.images, stream)[1], atol=1e-2)


@pytest.mark.slow
def test_old_classes_keep_their_first_and_their_answers(stream: Stream, taught: Callable[..., LVT]) -> None:
    methods = [taught(count, memory_size=22) for count in (1, 2, 3)]
    assert [counts(method) for method in methods] == [
        [11, 11, 0, 0, 0, 0], [5, 5, 6, 6, 0, 0], [3, 3, 4, 4, 4, 4],
    ]  # fmt: skip
    for before, after in pairwise(methods):
        for label in before.memory.rows.labels.unique():
            older, newer = (
                [column[m.memory.rows.labels == label] for column in m.memory.rows] for m in (before, after)
            )
            for first, kept in zip(older, newer, strict=True):
                assert torch.equal(kept, first[: len(kept)])  # images, labels, tasks and logits alike


def test_retrieved_rows_are_copies(taught: Callable[..., LVT]) -> None:
    method = taught(1)
    before = method.memory.rows.images.clone()
    method.memory.sample(24).images.zero_()
    assert torch.equal(method.memory.rows.images, before)


def test_a_class_met_again_keeps_what_was_stored(stream: Stream, taught: Callable[..., LVT]) -> None:
    method = taught(2)
    before = method.memory.rows.images.clone()
    method.end_task(stream[0])
    assert torch.equal(method.memory.rows.images, before)
    assert method.met_in.tolist() == [0, 0, 1, 1, NEVER, NEVER]


# All of it


def test_the_accumulation_head_answers(stream: Stream, taught: Callable[..., LVT]) -> None:
    method = taught(1).eval()
    inputs = stream.test_view(stream.test(0).inputs)
    before = method.predict(inputs)
    with torch.no_grad():
        method.net.injection.weight.zero_()
    assert torch.equal(method.predict(inputs), before)
    assert torch.equal(before, method.net.head(method.net.features(inputs)))


@pytest.mark.slow
def test_it_remembers_what_training_alone_forgets(stream: Stream) -> None:
    accuracies = []
    for settings in ({}, {"replay_weight": 0, "dark_weight": 0, "attention_weight": 0}):
        method = build(stream, **settings)
        learn(method, stream)
        everything = tuple(range(NUM_CLASSES))
        accuracies.append(evaluate(method, stream.test(0), stream.test_view, everything)[0])
    assert accuracies[0] > 80
    assert accuracies[1] < 20


@pytest.mark.slow
def test_saved_in_the_middle_it_continues_to_the_bit_with_other_settings(
    stream: Stream, taught: Callable[..., LVT]
) -> None:
    settings = {"teacher": "frozen", "dark": "mse", "attention_weight": 0.01, "memory_size": 20}
    straight = taught(1, **settings).train()
    straight.observe(first_batch(stream, 1), optimizer_of(straight))
    resumed = build(stream, seed=9, **settings)
    resumed.load_state_dict(straight.state_dict())
    resumed.train()
    for method in (straight, resumed):
        for batch in batches_of(stream[1].train, stream)[:2]:
            method.observe(batch, optimizer_of(method))
        method.end_task(stream[1])
    assert same_state(state_bytes(straight), state_bytes(resumed))
    assert straight.finished == resumed.finished == 2


def test_what_it_cannot_do_is_said(stream: Stream) -> None:
    with pytest.raises(ConfigError, match=r"injection head, got Classifier; use net\.name=lvt"):
        LVT(make_net(), make_problem(stream))
    problem = Problem(100, 10, lambda x: x, lambda x: x)
    message = "lvt needs one sample per class: memory_size must be >= 100, got 50"
    with pytest.raises(ConfigError, match=message):
        LVT(nn.Linear(1, 1), problem, LVTConfig(memory_size=50))
    with pytest.raises(ConfigError, match="lvt needs disjoint classes per task; r-mnist is Domain-IL"):
        check_scenario("lvt", "domain-il", "r-mnist")
    assert isinstance(build(stream).net, LVTNet)
