"""Co2L: both losses by hand, memory shares, the old net's batch norm, the linear head, who changes what."""

from functools import partial
from math import exp, log
from typing import Any

import pytest
import torch
from support.steps import (
    count_passes,
    first_batch,
    learn,
    make_resnet,
    optimizer_of,
    same_state,
    state_bytes,
    tasks,
)
from support.tiny_stream import NUM_CLASSES, finish_learning, make_net, make_problem, train_phase, weights
from torch import Tensor, nn
from torch.nn.functional import normalize

from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError
from strongreplay.methods import build_method, check_scenario
from strongreplay.methods.base import descend
from strongreplay.methods.co2l import Co2L, Co2LConfig, choose
from strongreplay.methods.co2l_parts import contrast, distil, losses, similarities
from strongreplay.nets import Classifier
from strongreplay.protocol import Batch, Problem, Split, Task
from strongreplay.runs.config import resolve
from strongreplay.runs.recipes import find_recipe
from strongreplay.training.engine import evaluate

QUICK = {"memory_size": 24, "probe_epochs": 5}
STRONG: dict[str, Any] = {"flip": True, "jitter": True, "crop_scale": 0.2}


def build(stream: Stream, net: Classifier | None = None, **settings: Any) -> Co2L:
    return Co2L(net or make_net(), make_problem(stream), Co2LConfig(**(QUICK | settings)))


def counts(method: Co2L) -> list[int]:
    return torch.bincount(method.memory.rows.labels, minlength=NUM_CLASSES).tolist()


def unit(*rows: tuple[float, ...]) -> Tensor:
    return normalize(torch.tensor(rows, dtype=torch.float64), dim=1)


def random_case(count: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    vectors = normalize(torch.randn(2 * count, 5, generator=generator, dtype=torch.float64), dim=1)
    labels = torch.randint(4, (count,), generator=generator).repeat(2)
    return vectors, labels, torch.tensor([False, False, True, True])


def joined(*batches: Batch) -> Batch:
    return Batch(
        torch.arange(sum(map(len, batches))),
        *(torch.cat([getattr(b, key) for b in batches]) for key in ("images", "inputs", "labels")),
    )


# The losses


def contrast_of(vectors: Tensor, labels: Tensor, current: Tensor, temperature: float) -> Tensor:
    return losses(vectors, temperature, contrast(vectors, labels, current, temperature))[0]


def distance(vectors: Tensor, old: Tensor, kappa: float, teacher_kappa: float) -> Tensor:
    return losses(vectors, 1, distil(old, kappa, teacher_kappa))[0]


def test_contrast_by_hand_divides_by_all_vectors() -> None:
    vectors, labels = unit((1, 0), (0, 1), (1, 0), (0, 1)), torch.tensor([1, 0, 1, 0])
    loss = contrast_of(vectors, labels, torch.tensor([False, True]), 0.5)
    assert loss.item() == pytest.approx(0.855517, abs=1e-6)
    assert 0.5 / 0.07 * (log(exp(2) + 2) - 2) == pytest.approx(1.711034, abs=1e-6)  # of one anchor
    everyone = contrast_of(vectors, labels, torch.tensor([True, True]), 0.5)
    assert everyone.item() == pytest.approx(1.711034, abs=1e-6)


def test_contrast_is_the_formula_written_out_in_loops() -> None:
    vectors, labels, current = random_case()
    total = 0.0
    for a, anchor in enumerate(vectors):
        others = [b for b in range(len(vectors)) if b != a]
        denominator = torch.stack([(anchor @ vectors[b] / 0.3).exp() for b in others]).sum().log()
        gains = [anchor @ vectors[b] / 0.3 - denominator for b in others if labels[b] == labels[a]]
        total += -0.3 / 0.07 * float(sum(gains)) / len(gains) * float(current[labels[a]])
    loss = contrast_of(vectors, labels, current, 0.3)
    assert loss.item() == pytest.approx(total / len(vectors), rel=1e-9)


def test_distillation_by_hand() -> None:
    now = unit((1, 0.2), (0.1, 1), (0.9, -0.3))
    old = unit((1, 0), (0, 1), (1, -1))
    assert distance(now, old, 0.2, 0.01).item() == pytest.approx(0.044391, abs=1e-6)


def test_both_gradients_are_those_of_plain_cross_entropies() -> None:
    vectors, labels, current = random_case()
    vectors, old, mask = vectors.requires_grad_(), vectors.detach().flip(1), torch.eye(24, dtype=torch.bool)

    def answers(temperature: float) -> Tensor:
        return (vectors @ vectors.t() / temperature).masked_fill(mask, -1e30).log_softmax(1)

    same = (labels[:, None] == labels) & ~mask
    contrasts = -(answers(0.3) * same).sum(1) / same.sum(1) * current[labels] * 0.3 / 0.07
    wanted = (old @ old.t() / 0.05).masked_fill(mask, -1e30).softmax(1)
    plain = contrasts.mean(), -0.7 * (answers(0.2) * wanted).sum(1).mean()
    for first, second in ((1, 0), (0, 1), (0.4, 2)):  # each alone, and both with their own slopes
        goals = contrast(vectors, labels, current, 0.3), distil(old, 0.2 / 0.3, 0.05, 0.7)
        found = losses(vectors, 0.3, *goals)
        assert [x.item() for x in found] == pytest.approx([x.item() for x in plain], rel=1e-9)
        slopes = [
            torch.autograd.grad(first * a + second * b, vectors, retain_graph=True)[0]
            for a, b in (found, plain)
        ]
        assert slopes[1].abs().max() > 1e-3
        assert torch.allclose(slopes[0], slopes[1], rtol=1e-9, atol=1e-12)


def test_relations_as_they_were_have_no_gradient_and_their_entropy_as_loss() -> None:
    vectors = random_case()[0].requires_grad_()
    wanted = similarities(vectors.detach(), 0.1).softmax(1)
    loss = distance(vectors, vectors.detach(), 0.1, 0.1)
    assert loss.item() == pytest.approx(torch.special.entr(wanted).sum(1).mean().item(), rel=1e-9)
    (gradient,) = torch.autograd.grad(loss, vectors)
    assert gradient.abs().max() < 1e-12


def test_an_old_sample_is_no_anchor_but_is_pushed_away() -> None:
    vectors, labels, current = random_case()
    anchors = current[labels]
    vectors.requires_grad_()
    loss = contrast_of(vectors, labels, current, 0.5)
    (gradient,) = torch.autograd.grad(loss, vectors)
    assert (gradient.norm(dim=1)[~anchors] > 1e-3).all()
    alone = vectors[anchors]
    without = contrast_of(alone, labels[anchors], current, 0.5)
    assert loss.item() > without.item() * anchors.double().mean().item()  # as a negative it counts


def test_the_order_of_a_batch_makes_no_difference() -> None:
    vectors, labels, current = random_case()
    order = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(1))
    old = vectors.flip(1)
    first = (
        contrast_of(vectors, labels, current, 0.5),
        distance(vectors, old, 0.2, 0.01),
    )
    second = (
        contrast_of(vectors[order], labels[order], current, 0.5),
        distance(vectors[order], old[order], 0.2, 0.01),
    )
    assert [x.item() for x in first] == pytest.approx([x.item() for x in second], rel=1e-12)


def test_small_temperatures_keep_value_and_gradient_finite() -> None:
    vectors = random_case()[0].float().requires_grad_()
    loss = distance(vectors, -vectors.detach().flip(0), 1e-3, 1e-4)
    (gradient,) = torch.autograd.grad(loss, vectors)
    assert loss.isfinite()
    assert loss > 100  # a probability this small would be rounded to zero
    assert gradient.isfinite().all()


def test_no_vector_is_compared_with_itself() -> None:
    vectors = random_case(3)[0]
    odds, products = similarities(vectors, 0.5).softmax(1), vectors @ vectors.t() / 0.5
    for row in range(len(vectors)):
        others = torch.arange(len(vectors)) != row
        assert odds[row, row] == 0
        assert torch.allclose(odds[row, others], products[row, others].softmax(0))


# A step


def test_projections_are_128_numbers_of_length_one_made_from_features(stream: Stream) -> None:
    method = build(stream)
    inputs = stream.test_view(stream[0].train.inputs[:9])
    projected = method.net(inputs)
    assert projected.shape == (9, 128)
    assert torch.allclose(projected.norm(dim=1), torch.ones(9))
    assert [tuple(p.shape) for p in method.net.projection.parameters()] == [
        (32, 32), (32,), (128, 32), (128,)
    ]  # fmt: skip
    with torch.no_grad():
        method.net.classifier.head.weight.add_(1)
    assert torch.equal(method.net(inputs), projected)


def spied_inputs(method: Co2L) -> list[Tensor]:
    seen: list[Tensor] = []
    method.net.register_forward_hook(lambda net, given, answer: seen.append(given[0].detach().clone()))
    return seen


def test_a_step_is_both_losses_of_two_fresh_views_of_the_raw_images(stream: Stream) -> None:
    method = build(stream, distillation=0.5, **STRONG)
    learn(method, tasks(stream, 1), epochs=1)
    method.begin_task(stream[1])
    for _ in range(3):  # so that live and old net differ
        method.observe(first_batch(stream, 1), optimizer_of(method))
    batch = joined(first_batch(stream, 0, 6), first_batch(stream, 1, 10))
    seen, before = spied_inputs(method), weights(method.net)
    terms = method.observe(batch, optimizer_of(method))
    (inputs,) = seen
    assert inputs.shape == (32, 1, 6, 6)
    assert not torch.equal(inputs[:16], inputs[16:])
    twin = build(stream)
    twin.load_state_dict(method.state_dict())
    nn.utils.vector_to_parameters(before, twin.net.parameters())
    vectors, labels = twin.net(inputs), batch.labels.repeat(2)
    current = torch.tensor([False, False, True, True, False, False])
    wanted = (
        contrast_of(vectors, labels, current, 0.5),
        0.5 * distance(vectors, method.teacher(inputs), 0.2, 0.01),
    )
    assert list(terms) == ["contrast", "relations"]
    assert [x.item() for x in terms.values()] == pytest.approx([x.item() for x in wanted], rel=1e-5)


def test_the_streams_own_view_is_not_looked_at(stream: Stream) -> None:
    first, second = build(stream), build(stream)
    batch = first_batch(stream)
    first.observe(batch, optimizer_of(first))
    noise = Batch(batch.rows, batch.images, torch.randn_like(batch.inputs), batch.labels)
    second.observe(noise, optimizer_of(second))
    assert torch.equal(weights(first.net), weights(second.net))


def test_views_are_normalised_and_raw_images_stay(stream: Stream) -> None:
    problem = Problem(NUM_CLASSES, 3, stream.test_view, lambda images: images.sub_(5))
    method = Co2L(make_net(), problem, Co2LConfig())
    batch = first_batch(stream)
    kept, seen = batch.images.clone(), spied_inputs(method)
    method.observe(batch, optimizer_of(method))
    assert -5 <= seen[0].min() < seen[0].max() <= -4
    assert torch.equal(batch.images, kept)


def test_a_batch_of_old_samples_alone_distils_and_nothing_else(stream: Stream) -> None:
    method = build(stream)
    learn(method, tasks(stream, 1), epochs=1)
    method.begin_task(stream[1])
    method.observe(first_batch(stream, 1), optimizer_of(method))
    terms = method.observe(first_batch(stream, 0), optimizer_of(method))
    assert terms["contrast"] == 0
    assert terms["relations"] > 0
    assert weights(method.net).isfinite().all()


def test_anchors_are_told_by_label_not_by_where_a_sample_comes_from(stream: Stream) -> None:
    method = build(stream)
    assert method.current.all()  # no task has begun
    learn(method, tasks(stream, 1), epochs=1)
    method.begin_task(stream[0])  # its classes lie in memory now
    assert method.current.tolist() == [True, True, False, False, False, False]
    images, labels = method.memory.rows
    stored = Batch(torch.arange(len(labels)), images, images.float(), labels)
    assert method.observe(stored, optimizer_of(method))["contrast"] > 0


def test_without_weight_the_old_net_is_not_asked_and_a_step_costs_one_pass(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for weight, expected in ((0.0, 0), (1.0, 1)):
        method = build(stream, distillation=weight)
        learn(method, tasks(stream, 1), epochs=1)
        asked: list[int] = []
        method.teacher.register_forward_hook(lambda *args, asked=asked: asked.append(1))
        step = partial(method.observe, first_batch(stream, 1), optimizer_of(method))
        assert count_passes(method, monkeypatch, step) == (1, 1)
        assert len(asked) == expected


# Head and encoder leave each other alone


def test_training_never_touches_the_head_not_even_by_weight_decay(stream: Stream) -> None:
    method = build(stream)
    learn(method, tasks(stream, 1), epochs=1)
    head = method.net.classifier.head
    before, encoder = weights(head), weights(method.net.classifier.body)
    optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        method.observe(first_batch(stream, 1), optimizer)
    assert all(parameter.grad is None for parameter in head.parameters())
    assert torch.equal(weights(head), before)
    assert not torch.equal(weights(method.net.classifier.body), encoder)


@pytest.mark.parametrize("view", ["strong", "plain"])
def test_the_probe_changes_the_head_and_nothing_else(view: str, stream: Stream) -> None:
    method = build(stream, make_resnet(), probe_view=view)
    method.begin_task(stream[0])
    method.observe(first_batch(stream), optimizer_of(method))
    method.net.zero_grad()
    before = state_bytes(method)
    train_phase(method, stream[0], "probe")
    changed = {key for key, value in state_bytes(method).items() if not torch.equal(value, before[key])}
    assert changed == {"net.classifier.head.weight", "net.classifier.head.bias"}
    assert all(parameter.grad is None for parameter in method.net.parameters())
    assert all(inner.training for inner in method.net.modules())


def test_how_the_probe_is_set_makes_no_difference_to_the_encoder(stream: Stream) -> None:
    first, second = build(stream), build(stream, probe_epochs=2, probe_view="plain", probe_lr=0.1)
    learn(first, stream, epochs=1), learn(second, stream, epochs=1)
    assert torch.equal(weights(first.net.projection), weights(second.net.projection))
    assert torch.equal(weights(first.net.classifier.body), weights(second.net.classifier.body))
    assert torch.equal(first.memory.rows.images, second.memory.rows.images)


# The linear head


def test_the_head_is_fitted_anew_after_every_task_to_task_and_memory(stream: Stream) -> None:
    method = build(stream, probe_view="plain", probe_epochs=30)
    fitted: list[Split] = []
    probe_data = method.probe_data

    def spy(train: Split) -> Split:
        fitted.append(train)
        return probe_data(train)

    method.probe_data = spy  # type: ignore[method-assign]
    begin = method.clear_head

    def clear() -> None:
        with torch.no_grad():
            method.net.classifier.head.weight.fill_(50)  # whatever stood there is forgotten
        begin()

    method.clear_head = clear  # type: ignore[method-assign]
    learn(method, stream)
    assert [sorted(split.labels.unique().tolist()) for split in fitted] == [[0, 1], [0, 1, 2, 3], [*range(6)]]
    assert [len(split) for split in fitted] == [80, 80 + 24, 80 + 24]
    inputs = stream.test_view(stream.test(0).inputs)
    answers = method.eval().predict(inputs)
    classifier = method.net.classifier
    assert torch.equal(answers, classifier.head(classifier.features(inputs)))
    assert answers.abs().max() < 50


@pytest.mark.slow
@pytest.mark.parametrize("view", ["strong", "plain"])
def test_every_class_is_drawn_equally_often(view: str) -> None:
    """The same image under both labels, nine times as often under one: a balanced head cannot tell them."""
    method = Co2L(
        Classifier(nn.Flatten(), 16, 2),
        Problem(2, 1, lambda x: x, lambda x: x),
        Co2LConfig(probe_view=view, probe_lr=0.01),
    )
    split = Split(torch.full((400, 1, 4, 4), 128, dtype=torch.uint8), torch.tensor([0] * 360 + [1] * 40))
    method.plain_view = lambda images: torch.full(images.shape, 0.5)
    train_phase(method, Task(0, (0, 1), split, split), "probe")
    odds = method.predict(torch.full((1, 1, 4, 4), 0.5)).softmax(1)
    assert odds[0, 0].item() == pytest.approx(0.5, abs=0.05)  # 0.9 if images were drawn equally often


def test_rates_of_the_probe_and_its_passes(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    method = build(stream, probe_epochs=20, probe_batch_size=32)
    rates: list[float] = []

    def spy(optimizer: torch.optim.Optimizer, terms: dict[str, Tensor]) -> dict[str, Tensor]:
        rates.append(optimizer.param_groups[0]["lr"])
        assert optimizer.param_groups[0]["momentum"] == 0.9
        return descend(optimizer, terms)

    monkeypatch.setattr("strongreplay.methods.co2l.descend", spy)
    train_phase(method, stream[0], "probe")
    expected = [1.0] * 12 + [0.2] * 3 + [0.04] * 3 + [0.008] * 2
    assert rates == pytest.approx([rate for rate in expected for _ in range(3)])  # 80 images in 32s


def test_a_strong_probe_sees_each_image_anew_and_a_plain_one_asks_the_encoder_once(stream: Stream) -> None:
    asked: dict[str, list[int]] = {"strong": [], "plain": []}
    for view, sizes in asked.items():
        method = build(stream, probe_view=view)
        method.net.classifier.body.register_forward_hook(
            lambda net, given, answer, sizes=sizes: sizes.append(len(given[0]))
        )
        train_phase(method, stream[0], "probe")
    assert asked == {"strong": [80] * 5, "plain": [80]}


# Memory


def test_shares_are_rounded_at_random_and_add_up() -> None:
    labels, generator = torch.arange(3).repeat_interleave(50), torch.Generator().manual_seed(0)
    sizes = []
    for _ in range(600):
        rows = choose(labels, [0, 1, 2], 25, generator)
        assert len(rows.unique()) == len(rows) == 25
        sizes.append(labels[rows].bincount(minlength=3))
    table = torch.stack(sizes)
    assert set(table.unique().tolist()) == {8, 9}
    assert table.double().mean(0).tolist() == pytest.approx([25 / 3] * 3, abs=0.1)
    totals = [len(choose(labels, [0, 2], 12.4, generator)) for _ in range(600)]
    assert set(totals) == {12, 13}
    assert sum(totals) / 600 == pytest.approx(12.4, abs=0.1)
    used = torch.cat([choose(labels, [1], 5, generator) for _ in range(200)])
    assert used.unique().tolist() == list(range(50, 100))  # any member may be chosen
    assert choose(labels, [], 0, generator).tolist() == []


@pytest.mark.parametrize("size", [23, 24, 25, 7])
def test_memory_is_full_after_every_task_and_balanced(size: int, stream: Stream) -> None:
    for seed in range(3):
        method = Co2L(make_net(), make_problem(stream, seed), Co2LConfig(memory_size=size, probe_epochs=1))
        before: list[int] = []
        for number, task in enumerate(stream):
            extended = method.begin_task(task)
            assert len(extended.train) == 80 + len(before)
            finish_learning(method, extended)
            assert len(method.memory) == size
            seen = 2 * number + 2
            groups = counts(method)[: seen - 2], counts(method)[seen - 2 : seen]
            assert sum(counts(method)[seen:]) == 0
            assert all(max(group) - min(group) <= 1 for group in groups if group)
            kept = size * (seen - 2) / seen
            assert kept - 1 < sum(groups[0]) < kept + 1
            images = method.memory.rows.images.flatten(1).tolist()
            raw = task.train.inputs.flatten(1).tolist() + before
            assert all(image in raw for image in images)  # of this task or of the memory before, as met
            assert len({tuple(image) for image in images}) == size
            before = images


def test_the_chosen_are_a_random_part_of_each_class(stream: Stream) -> None:
    chosen = []
    for seed in range(2):
        method = Co2L(make_net(), make_problem(stream, seed), Co2LConfig(memory_size=20, probe_epochs=1))
        finish_learning(method, method.begin_task(stream[0]))
        chosen.append(method.memory.rows.images.clone())
    first = stream[0].train.inputs[stream[0].train.labels == 0][:10]
    assert not torch.equal(chosen[0], chosen[1])
    assert not torch.equal(chosen[0][:10], first)


def test_memory_joins_the_task_and_asking_twice_changes_nothing(stream: Stream) -> None:
    method = build(stream)
    task = stream[0]
    assert method.begin_task(task) is task
    learn(method, tasks(stream, 1), epochs=1)
    method.begin_task(stream[1])
    before = state_bytes(method), method.memory.generator.get_state(), method.views.generator.get_state()
    joined = method.begin_task(stream[1]).train
    assert same_state(before[0], state_bytes(method))
    assert torch.equal(before[1], method.memory.generator.get_state())
    assert torch.equal(before[2], method.views.generator.get_state())
    assert torch.equal(joined.inputs, torch.cat([stream[1].train.inputs, method.memory.rows.images]))
    assert torch.equal(joined.labels, torch.cat([stream[1].train.labels, method.memory.rows.labels]))
    joined.inputs.zero_()
    assert method.memory.rows.images.max() > 0


@pytest.mark.parametrize("size", [0, 1])
def test_hardly_any_memory(size: int, stream: Stream) -> None:
    method = build(stream, memory_size=size)
    learn(method, stream, epochs=1)
    assert len(method.memory) == size
    assert weights(method.net).isfinite().all()


# The old net


def test_the_old_net_is_the_net_at_the_end_of_the_task_before(stream: Stream) -> None:
    method = build(stream, make_resnet())
    assert not method.teacher.exists
    method.begin_task(stream[0])
    assert "relations" not in method.observe(first_batch(stream), optimizer_of(method))
    learn(method, tasks(stream, 1), epochs=1)
    taken = weights(method.net)
    method.begin_task(stream[1])
    assert "relations" in method.observe(first_batch(stream, 1), optimizer_of(method))
    assert torch.equal(weights(method.teacher), taken)
    assert not torch.equal(weights(method.net), taken)
    method.begin_task(stream[1])  # a resumed run asks again
    assert torch.equal(weights(method.teacher), taken)
    finish_learning(method, method.begin_task(stream[1]))
    assert torch.equal(weights(method.teacher), weights(method.net))  # another one for the next task


@pytest.mark.parametrize("bn", ["batch", "running"])
def test_the_old_net_normalises_by_the_batch_or_by_its_own_statistics(bn: str, stream: Stream) -> None:
    method = build(stream, make_resnet(), teacher_bn=bn)
    learn(method, tasks(stream, 1), epochs=2)
    inputs = stream.test_view(stream.test(1).inputs[:16])
    before = {key: value.clone() for key, value in method.teacher.state_dict().items()}
    answers = method.train().teacher(inputs)
    assert torch.equal(answers, method.eval().teacher(inputs))  # whatever mode its owner is in
    half = method.teacher(inputs[:8])
    assert torch.allclose(half, answers[:8], atol=1e-5) == (bn == "running")
    live = method.net.train(bn == "batch")
    with torch.no_grad():
        assert torch.allclose(answers, live(inputs), atol=1e-5)
    method.train().observe(first_batch(stream, 1), optimizer_of(method))
    assert before.keys() == method.teacher.state_dict().keys()
    assert all(torch.equal(value, before[key]) for key, value in method.teacher.state_dict().items())
    assert any("running" in key for key in before) == (bn == "running")
    assert all(p.grad is None and not p.requires_grad for p in method.teacher.parameters())


# The whole


@pytest.mark.slow
@pytest.mark.parametrize("bn", ["batch", "running"])
def test_a_resumed_run_with_strong_views_continues_to_the_bit(bn: str, stream: Stream) -> None:
    def steps(method: Co2L, task: Task, start: int, stop: int) -> None:
        train = method.begin_task(task).train
        for rows in torch.arange(80).split(16)[start:stop]:
            images = train.inputs[rows + 20]
            batch = Batch(rows, images, stream.test_view(images), train.labels[rows + 20])
            method.observe(batch, optimizer_of(method))

    straight, other = (build(stream, make_resnet(seed), teacher_bn=bn, **STRONG) for seed in (0, 9))
    learn(straight, tasks(stream, 2), epochs=1)
    steps(straight, stream[2], 0, 2)
    other.load_state_dict(straight.state_dict())
    other.train()
    for method in (straight, other):
        steps(method, stream[2], 2, 5)
        finish_learning(method, method.begin_task(stream[2]))
    assert same_state(state_bytes(straight), state_bytes(other))


@pytest.mark.slow
def test_it_remembers_what_fine_tuning_forgets(stream: Stream) -> None:
    scores = {}
    for name in ("sgd", "co2l"):
        method = build_method(name, make_net(), make_problem(stream))
        learn(method, stream, epochs=8)
        scores[name] = sum(
            evaluate(method, stream.test(t), stream.test_view, tuple(range(6)))[0] for t in range(3)
        )
    assert scores["co2l"] / 3 > scores["sgd"] / 3 + 30


@pytest.mark.parametrize(
    ("stream_name", "expected"),
    [
        (
            "seq-cifar10",
            {"lr": 0.5, "batch_size": 512, "first_epochs": 500, "epochs": 100, "schedule": "cosine",
             "warmup": 10, "momentum": 0.9, "keep_momentum": True, "weight_decay": 1e-4,
             "temperature": 0.5, "kappa": 0.2, "teacher_kappa": 0.01,
             "crop_scale": 0.2, "flip": True, "jitter": True, "probe_lr": 1.0},
        ),
        ("seq-tinyimagenet", {"lr": 0.1, "epochs": 50, "kappa": 0.1, "teacher_kappa": 0.1, "probe_lr": 0.1}),
        ("seq-cifar100-10", {"lr": 0.5, "epochs": 100, "milestones": ()}),
        ("seq-fashion-mnist", {"first_epochs": 3, "epochs": 2, "flip": False, "probe_view": "plain"}),
        ("split-digits", {"epochs": 10, "batch_size": 32, "probe_view": "plain"}),
    ],
)  # fmt: skip
def test_settings_by_stream(stream_name: str, expected: dict[str, object]) -> None:
    config = resolve(stream_name, "co2l", 200)
    values = config.train.model_dump() | config.method.model_dump()
    assert {key: values[key] for key in expected} == expected


def test_a_second_file_of_recipes_adds_methods_to_some_streams_of_the_first() -> None:
    assert find_recipe("split-digits", "er").settings == find_recipe("rotated-digits", "er").settings
    assert find_recipe("split-digits", "co2l").settings["method.probe_view"] == "plain"
    assert "nothing published" in find_recipe("rotated-digits", "co2l").source


def test_what_it_cannot_do_is_said(stream: Stream) -> None:
    with pytest.raises(ConfigError, match="co2l needs the features of its net: no linear layer"):
        Co2L(nn.Linear(3, 6), make_problem(stream))
    with pytest.raises(ConfigError, match="co2l needs disjoint classes per task; r-mnist is Domain-IL"):
        check_scenario("co2l", "domain-il", "r-mnist")
    vectors = Split(torch.zeros(4, 36), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ConfigError, match=r"co2l needs images \(N, C, H, W\), got \(4, 36\)"):
        build(stream).begin_task(Task(0, (0,), vectors, vectors))
