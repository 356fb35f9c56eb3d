"""TAMiL: gates by hand, where gradients go, who is told the task, and modules that come with tasks."""

from collections.abc import Iterator
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
from strongreplay.errors import ConfigError
from strongreplay.memory import Memory
from strongreplay.methods import check_scenario
from strongreplay.methods.samples import TaskSamples
from strongreplay.methods.tamil import AttentiveNet, TAMiL, TAMiLConfig, difference, nearest
from strongreplay.nets import Classifier, build_net
from strongreplay.protocol import Batch, Problem, Task, derive_generator
from strongreplay.runs.config import resolve
from strongreplay.training.engine import evaluate


def tamil(stream: Stream, net: nn.Module | None = None, **settings: Any) -> TAMiL:
    return TAMiL(net or make_net(), make_problem(stream), TAMiLConfig(**({"memory_size": 24} | settings)))


def first_tasks(stream: Stream, count: int) -> Stream:
    return Stream(stream.scenario, stream.task_classes[:count], stream.input_shape, stream.make)


def in_task(stream: Stream, number: int, **settings: Any) -> TAMiL:
    """Two tasks or so behind it, and the next begun."""
    method = tamil(stream, **settings)
    learn(method, first_tasks(stream, number), epochs=1)
    method.begin_task(stream[number])
    method.train()
    return method


def hold(module: Any, logit: float) -> None:
    """Make a gate that lets the same share of every feature through, whatever comes."""
    with torch.no_grad():
        module[2].weight.zero_()
        module[2].bias.fill_(logit)


def two_gates(half: float = 0.0, one: float = 50.0, width: int = 4) -> AttentiveNet:
    """Features are the inputs; the first gate is sigmoid(half), the second sigmoid(one)."""
    net = AttentiveNet(Classifier(nn.Identity(), width, 3), 2)
    for logit in (half, one):
        net.grow(torch.Generator())
        hold(net.attention[-1], logit)
    net.num_met = 2
    return net


def test_the_difference_by_hand() -> None:
    earlier, gate = torch.tensor([[[0.75, 0.25]]]).log(), torch.zeros(1, 2)
    assert difference(earlier, gate).item() == pytest.approx(0.5)
    assert -TAMiLConfig(contrast=0.1).contrast * difference(earlier, gate).item() == pytest.approx(-0.05)
    two = earlier.expand(2, 1, 2)  # a sum over earlier gates
    assert difference(two, gate).item() == pytest.approx(1.0)
    samples = torch.cat([earlier, torch.zeros(1, 1, 2)], 1)  # a mean over samples
    assert difference(samples, torch.zeros(2, 2)).item() == pytest.approx(0.25)


def test_the_nearest_gate_by_hand() -> None:
    net = two_gates()
    features = torch.tensor([[0.9] * 4, [0.4] * 4])
    assert nearest(net.gates(features, 0, 2), features).tolist() == [1, 0]
    passed = torch.cat([features[:1], features[1:] / 2])  # one by the gate of 1, the other by that of 1/2
    assert torch.allclose(net(features), net.classifier.head(passed))
    told = net(features, torch.tensor([0, 1]))
    assert torch.allclose(told, net.classifier.head(torch.cat([features[:1] / 2, features[1:]])))


def test_a_gate_of_a_task_not_met_is_never_chosen() -> None:
    net = two_gates()
    net.num_met = 1
    features = torch.tensor([[0.9] * 4, [0.4] * 4])
    assert torch.allclose(net(features), net.classifier.head(features / 2))


def test_a_batch_of_one_keeps_its_axis() -> None:
    net = two_gates()
    both = torch.tensor([[0.9] * 4, [0.4] * 4])
    one = net(both[:1])
    assert one.shape == (1, 3)
    assert torch.allclose(one, net(both)[:1])


def test_all_gates_at_once_are_those_of_each_module(stream: Stream) -> None:
    net = in_task(stream, 2).net
    features = torch.rand(5, 32, generator=torch.Generator().manual_seed(0))
    each = torch.stack([module(features) for module in net.attention])
    assert torch.allclose(net.gates(features, 0, 3), each, atol=1e-6)
    assert torch.allclose(net.gates(features, 1, 2), each[1:2], atol=1e-6)


def gradients(loss: Tensor, module: nn.Module) -> list[bool]:
    """Whether each parameter of the module gets any from this loss."""
    found = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True, allow_unused=True)
    return [gradient is not None and bool(gradient.any()) for gradient in found]


@pytest.mark.parametrize("chosen", [0, 1])
def test_where_gradients_go(chosen: int) -> None:
    """In the second task: stream and contrast train the new module, a replayed sample the one it chooses."""
    problem = Problem(3, 2, lambda images: images, lambda images: images)
    method = TAMiL(Classifier(nn.Linear(4, 4), 4, 3), problem, TAMiLConfig(memory_size=1, contrast=0.3))
    with torch.no_grad():
        method.net.classifier.body.weight.copy_(torch.eye(4))  # type: ignore[operator]
        method.net.classifier.body.bias.zero_()  # type: ignore[operator]
    past = torch.full((1, 4), (0.1, 0.9)[chosen])
    method.memory.add(TaskSamples(past, torch.tensor([0]), torch.tensor([0])))
    task = Task(0, (0, 1, 2), None, None)  # type: ignore[arg-type]
    method.end_task(task)
    method.begin_task(task)
    for module, logit in zip(method.net.attention, (-2.0, 2.0), strict=True):
        with torch.no_grad():
            module[2].bias.fill_(logit)  # type: ignore[index]
            module[2].weight.mul_(0.1)  # type: ignore[index]
    assert nearest(method.net.gates(past, 0, 2), past).item() == chosen
    now = torch.tensor([[0.2, 0.9, 0.1, 0.7], [0.5, 0.3, 0.8, 0.1]])
    terms = method.terms(Batch(torch.arange(2), now, now, torch.tensor([1, 2])), 1)
    assert list(terms) == ["current", "contrast", "consistency", "replay"]
    reached = {
        name: [any(gradients(term, part)) for part in (*method.net.attention, method.net.classifier.body)]
        for name, term in terms.items()
    }
    assert reached["current"] == reached["contrast"] == [False, True, True]
    assert reached["consistency"] == reached["replay"] == [chosen == 0, chosen == 1, True]


def test_only_samples_of_a_task_feel_its_teachers_gate(stream: Stream) -> None:
    method = in_task(stream, 2)
    inputs, tasks = first_batch(stream, 1, size=6).inputs, torch.tensor([0, 1, 2, 1, 0, 2])
    before = method.averaged(inputs, tasks)
    with torch.no_grad():
        method.averaged.copy.attention[1][2].bias.add_(1.0)  # type: ignore[index]
    changed = (method.averaged(inputs, tasks) != before).any(1)
    assert torch.equal(changed, tasks == 1)


def spy_on_samples(method: TAMiL) -> list[TaskSamples]:
    drawn: list[TaskSamples] = []
    sample = method.memory.sample

    def spy(count: int) -> TaskSamples:
        drawn.append(sample(count))
        return drawn[-1]

    method.memory.sample = spy  # type: ignore[method-assign]
    return drawn


def test_the_student_finds_its_gates_and_the_teacher_is_told_the_stored_tasks(stream: Stream) -> None:
    method, asked = in_task(stream, 2, replay_size=12), []
    drawn = spy_on_samples(method)
    for name, net in method.predictors().items():
        net.register_forward_hook(lambda m, inputs, out, name=name: asked.append((name, inputs)))
    terms = method.terms(first_batch(stream, 2), 2)
    first, second = drawn
    assert set(first.tasks.tolist()) == {0, 1}
    assert [(name, len(inputs)) for name, inputs in asked if name == "averaged"] == [("averaged", 2)]
    assert [len(inputs) for name, inputs in asked if name == "working"] == [1, 1]
    assert not torch.equal(first.images, second.images)  # two independent draws
    student, teacher = method.net(method.view(first.images)), asked_of(method, first)
    assert terms["consistency"].item() == pytest.approx(0.1 * mse_loss(student, teacher).item(), rel=1e-5)
    expected = 0.5 * cross_entropy(method.net(method.view(second.images)), second.labels)
    assert terms["replay"].item() == pytest.approx(expected.item(), rel=1e-5)


def asked_of(method: TAMiL, sample: TaskSamples) -> Tensor:
    """The averaged net's answers, sample by sample through its own module."""
    net, answers = method.averaged.copy, []
    for image, task in zip(sample.images, sample.tasks.tolist(), strict=True):
        features = net.classifier.features(method.view(image[None]))
        answers.append(net.classifier.head(net.attention[task](features) * features))
    return torch.cat(answers)


def test_the_stream_passes_the_current_gate_and_contrast_is_taken_away(stream: Stream) -> None:
    method = in_task(stream, 2, contrast=0.3)
    batch, net = first_batch(stream, 2), method.net
    features = net.classifier.features(batch.inputs)
    gates = [module(features) for module in net.attention]
    terms = method.terms(batch, 2)
    current = cross_entropy(net.classifier.head(gates[2] * features), batch.labels)
    assert terms["current"].item() == pytest.approx(current.item(), rel=1e-6)
    apart = [(g.softmax(1) - gates[2].softmax(1)).abs().sum(1).mean() for g in gates[:2]]
    assert terms["contrast"].item() == pytest.approx(-0.3 * sum(a.item() for a in apart), rel=1e-5)
    assert terms["contrast"] < 0


def test_terms_of_the_first_steps_and_of_the_second_task(stream: Stream) -> None:
    method = tamil(stream)
    optimizer = optimizer_of(method)
    named = [list(method.observe(first_batch(stream), optimizer)) for _ in range(2)]
    assert named == [["current"], ["current", "consistency", "replay"]]
    method.end_task(stream[0])
    optimizer = optimizer_of(method)
    method.begin_task(stream[1])
    named = [list(method.observe(first_batch(stream, 1), optimizer)) for _ in range(2)]
    assert named == [["current", "contrast", "consistency", "replay"]] * 2


@pytest.mark.parametrize("make", [make_net, make_cnn])
def test_without_gates_contrast_and_penalty_it_is_replay_with_two_weights(make: Any, stream: Stream) -> None:
    method = tamil(stream, make(), contrast=0, penalty=0, beta=0.7)
    grow = method.net.grow

    def grow_open(generator: torch.Generator) -> None:
        grow(generator)
        hold(method.net.attention[-1], 50.0)

    method.net.grow = grow_open  # type: ignore[method-assign]
    hold(method.net.attention[0], 50.0)
    hold(method.averaged.copy.attention[0], 50.0)
    learn(method, stream, epochs=2)

    net, order = make(), derive_generator(0, "order")
    memory = Memory(TaskSamples, 24, make_problem(stream).generator("memory"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch, task in all_batches(stream, order, epochs=2):
        loss = cross_entropy(net(batch.inputs), batch.labels)
        if len(memory):
            memory.sample(len(batch))  # what the penalty would be taken on
            second = memory.sample(len(batch))
            loss = loss + 0.7 * cross_entropy(net(stream.test_view(second.images)), second.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.add(TaskSamples(batch.images, batch.labels, torch.full_like(batch.labels, task)))
    assert torch.allclose(weights(method.net.classifier), weights(net), atol=1e-6)
    assert torch.equal(method.memory.rows.tasks, memory.rows.tasks)


def all_batches(stream: Stream, order: torch.Generator, epochs: int) -> Iterator[tuple[Batch, int]]:
    for task in stream:
        for _ in range(epochs):
            for rows in torch.randperm(len(task.train), generator=order).split(16):
                images = task.train.inputs[rows]
                yield Batch(rows, images, stream.test_view(images), task.train.labels[rows]), task.index


def test_parameters_at_the_published_size() -> None:
    net = build_net("resnet18", (3, 32, 32), 10, derive_generator(0, "net"))
    method = TAMiL(net, Problem(10, 5, lambda x: x, lambda x: x), TAMiLConfig(memory_size=1))
    task = Task(0, (0, 1), None, None)  # type: ignore[arg-type]
    for number in range(1, 6):
        method.begin_task(task)
        assert sum(p.numel() for p in method.net.attention[-1].parameters()) == 66_112
        assert weights(method.net).numel() == 11_173_962 + number * 66_112
        assert weights(method.averaged).numel() == weights(method.net).numel()
        method.end_task(task)


def test_a_module_is_made_for_the_next_task_and_the_averaged_net_has_the_same(stream: Stream) -> None:
    method = tamil(stream)
    learn(method, first_tasks(stream, 1), epochs=1)
    assert (len(method.net.attention), method.net.num_met) == (2, 1)
    new, copied = method.net.attention[1], method.averaged.copy.attention[1]
    assert torch.equal(weights(new), weights(copied))
    assert not torch.equal(weights(new), weights(method.net.attention[0]))
    assert not any(p.requires_grad for p in copied.parameters())
    assert {id(p) for p in new.parameters()} <= {id(p) for p in method.net.parameters()}
    before = weights(new)
    optimizer = optimizer_of(method)  # made before the task begins, as a run does
    method.begin_task(stream[1])
    assert method.net.num_met == method.averaged.copy.num_met == 2
    for _ in range(3):
        method.observe(first_batch(stream, 1), optimizer)
    assert not torch.equal(weights(new), before)
    assert not torch.equal(weights(copied), before)  # the average follows new modules too
    assert method.memory.rows.tasks.unique().tolist() == [0, 1]


def test_initial_modules_come_from_the_seed(stream: Stream) -> None:
    first, again, other = (TAMiL(make_net(), make_problem(stream, seed)) for seed in (0, 0, 1))
    for method in (first, again, other):
        method.end_task(stream[0])
    start = [weights(method.net.attention) for method in (first, again, other)]
    assert torch.equal(start[0], start[1])
    assert not torch.equal(start[0], start[2])


def test_an_optimiser_kept_from_the_task_before_learns_of_the_new_module(stream: Stream) -> None:
    method = tamil(stream)
    optimizer = optimizer_of(method)
    for group in optimizer.param_groups:
        group["lr"] = 0.05
    for number in (0, 1):
        method.begin_task(stream[number])
        before = weights(method.net.attention[number])
        for _ in range(2):
            method.observe(first_batch(stream, number), optimizer)
        assert not torch.equal(weights(method.net.attention[number]), before)
        assert len(optimizer.param_groups) == number + 1
        assert {group["lr"] for group in optimizer.param_groups} == {0.05}
        method.end_task(stream[number])


def test_predictions_use_the_modules_of_tasks_met_alone(stream: Stream) -> None:
    method = tamil(stream)
    learn(method, first_tasks(stream, 2), epochs=1)
    inputs = stream.test_view(stream.test(0).inputs)
    before = {name: ask(inputs) for name, ask in method.eval().predictors().items()}
    for net in (method.net, method.averaged.copy):
        with torch.no_grad():  # a gate that repeats features would always be nearest
            net.attention[2][2].bias.copy_(net.classifier.features(inputs).mean(0).clamp(0.01, 0.99).logit())  # type: ignore[index]
            net.attention[2][2].weight.zero_()  # type: ignore[index]
    for name, ask in method.predictors().items():
        assert torch.equal(ask(inputs), before[name])
    method.begin_task(stream[2])
    assert not torch.equal(method.predict(inputs), before["averaged"])


@pytest.mark.parametrize("name", ["averaged", "working"])
def test_the_net_that_answers(name: str, stream: Stream) -> None:
    method = in_task(stream, 1, eval_net=name)
    inputs = first_batch(stream, 2).inputs
    answers = {key: ask(inputs) for key, ask in method.predictors().items()}
    assert list(answers) == ["averaged", "working"]
    assert torch.equal(method.predict(inputs), answers[name])
    assert not torch.equal(answers["averaged"], answers["working"])
    assert TAMiLConfig().eval_net == "averaged"


def test_the_averaged_net_has_no_gradients_and_its_statistics_are_of_both_draws(stream: Stream) -> None:
    method = tamil(stream, make_cnn())
    optimizer = optimizer_of(method)
    for number in range(5):
        method.observe(first_batch(stream, number % 3), optimizer)
    assert all(p.grad is None and not p.requires_grad for p in method.averaged.parameters())
    averaged, live = first_norm(method.averaged), first_norm(method.net)
    assert averaged.num_batches_tracked == 2 * 4
    assert live.num_batches_tracked == 1 + 3 * 4
    assert not torch.allclose(averaged.running_mean, live.running_mean, atol=1e-4)


def test_without_statistics_the_second_draw_is_not_shown_to_the_averaged_net(stream: Stream) -> None:
    method, calls = in_task(stream, 1), []
    method.averaged.copy.classifier.body.register_forward_hook(lambda *args: calls.append("averaged"))
    method.net.classifier.body.register_forward_hook(lambda *args: calls.append("working"))
    method.terms(first_batch(stream, 1), 1)
    assert sorted(calls) == ["averaged"] + ["working"] * 3


@pytest.mark.slow
def test_the_averaged_net_answers_well_only_with_its_own_statistics(stream: Stream) -> None:
    method = tamil(stream, make_cnn())
    learn(method, accumulate(stream), epochs=12)
    judge = partial(evaluate, method, stream.test(0), stream.test_view, EVERYTHING)
    assert judge()[0] > 90
    for module in method.averaged.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
    assert judge()[0] < 60


def test_duplicated_samples_change_no_term(stream: Stream) -> None:
    method = in_task(stream, 1)
    batch, replayed = first_batch(stream, 1, size=8), method.memory.sample(8)
    method.memory.sample = lambda count: replayed  # type: ignore[method-assign]
    once = method.terms(batch, 1)
    replayed = TaskSamples(*(torch.cat([column, column]) for column in replayed))
    parts = (batch.rows, batch.images, batch.inputs, batch.labels)
    twice = method.terms(Batch(*(torch.cat([part, part]) for part in parts)), 1)
    for name, term in once.items():
        assert twice[name].item() == pytest.approx(term.item(), rel=1e-5)


def test_a_state_of_any_task_loads_into_an_object_of_any_other(stream: Stream) -> None:
    early, late = in_task(stream, 1), in_task(stream, 2)
    fresh = tamil(stream, make_net(seed=4))
    inputs = first_batch(stream, 1).inputs
    for source in (late, early, late):  # grows, shrinks, grows
        before = torch.get_rng_state()
        fresh.load_state_dict(source.state_dict())
        assert torch.equal(before, torch.get_rng_state())
        assert same_state(state_bytes(fresh), state_bytes(source))
        assert (fresh.net.num_met, len(fresh.net.attention)) == (
            source.net.num_met,
            len(source.net.attention),
        )
        assert torch.equal(fresh.predict(inputs), source.predict(inputs))
        assert not any(p.requires_grad for p in fresh.averaged.parameters())
        assert all(p.requires_grad for p in fresh.net.parameters())


def test_with_augmentation_and_batch_norm_it_resumes_to_the_bit_over_a_boundary(stream: Stream) -> None:
    def start(seed: int) -> tuple[TAMiL, torch.Generator]:
        views = torch.Generator().manual_seed(seed)
        problem = replace(noisy(stream, views), seed=seed)
        return TAMiL(make_cnn(seed), problem, TAMiLConfig(memory_size=24)), views

    def go(method: TAMiL, first: int, last: int) -> None:
        batches = [batch for task in stream for batch in batches_of(task.train, stream)]
        for number in range(first, last):
            if number % 5 == 0:
                method.begin_task(stream[number // 5])
            method.observe(batches[number], optimizer_of(method))
            if number % 5 == 4:
                method.end_task(stream[number // 5])

    for pause in (5, 8):  # between tasks, and within one
        (straight, _), (early, views) = start(0), start(0)
        go(straight, 0, 15)
        go(early, 0, pause)
        resumed, their_views = start(7)
        resumed.load_state_dict(early.state_dict())
        their_views.set_state(views.get_state())
        go(resumed, pause, 15)
        assert same_state(state_bytes(straight), state_bytes(resumed))


def test_with_a_fast_average_it_forgets_nothing_here(stream: Stream) -> None:
    method = build("tamil", make_problem(stream), memory_size=30, rate=1.0, decay=0.9)
    learn(method, stream, epochs=8)
    assert min(accuracies(method, stream)) > 80


def test_what_it_cannot_do_is_said(stream: Stream) -> None:
    with pytest.raises(ConfigError, match="tamil needs the features of its net: no linear layer"):
        TAMiL(nn.Linear(3, 6), make_problem(stream))
    with pytest.raises(ConfigError, match=r"tamil needs task identity in training.*; p-mnist is Domain-IL"):
        check_scenario("tamil", "domain-il", "p-mnist")


@pytest.mark.parametrize(
    ("stream_name", "size", "expected"),
    [
        ("seq-cifar10", 200, (0.03, 50, 0.5)),
        ("seq-cifar10", 500, (0.03, 50, 0.5)),
        ("seq-cifar100-5", 200, (0.03, 50, 0.5)),
        ("seq-cifar100-5", 500, (0.03, 50, 0.5)),
        ("seq-tinyimagenet", 200, (0.05, 50, 1.0)),
        ("seq-tinyimagenet", 500, (0.05, 50, 0.5)),
    ],
)
def test_published_settings(stream_name: str, size: int, expected: tuple[float, ...]) -> None:
    config = resolve(stream_name, "tamil", size)
    method, train = config.method, config.train
    assert isinstance(method, TAMiLConfig)
    assert (train.lr, train.epochs, method.beta) == expected
    assert (train.batch_size, method.replay_size, train.milestones) == (32, 32, ())
    assert (method.penalty, method.contrast, method.code_size) == (0.1, 0.1, 64)
    assert (method.rate, method.decay) == (0.05, 0.999)
    assert "TAMiL" in config.source
