"""ERT: five tricks over ER, each alone and all switched off."""

from functools import partial
from typing import Any

import pytest
import torch
from support.steps import build as build_any
from support.steps import count_passes, first_batch, learn, memories, optimizer_of, tasks
from support.tiny_stream import NUM_CLASSES, finish_learning, make_net, make_problem, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError
from strongreplay.methods import check_scenario
from strongreplay.methods.ert import ERT, ERTConfig, victim_weights
from strongreplay.methods.samples import ScoredSamples
from strongreplay.nets import build_net
from strongreplay.protocol import Problem, derive_generator
from strongreplay.training.engine import evaluate

OFF: dict[str, Any] = {"bic": False, "brs": False, "lars": False}


def build(stream: Stream, net: nn.Module | None = None, **settings: Any) -> ERT:
    return ERT(net or make_net(), make_problem(stream), ERTConfig(**({"memory_size": 24} | settings)))


def test_with_its_tricks_off_it_is_er_to_the_bit(stream: Stream) -> None:
    ert, er = build(stream, **OFF), build_any("er", make_problem(stream))
    learn(ert, stream), learn(er, stream)
    assert torch.equal(weights(ert.net), weights(er.net))
    assert torch.equal(ert.memory.rows.images, memories(er)[0].rows.images)
    inputs = stream.test_view(stream.test(0).inputs)
    assert torch.equal(ert.predict(inputs), er.predict(inputs))


@pytest.mark.parametrize("trick", [{"bic": True}, {"brs": True}, {"lars": True}, {"elrd": 0.999}])
def test_every_trick_alone_makes_a_difference(trick: dict[str, Any], stream: Stream) -> None:
    ert, er = build(stream, **(OFF | trick)), build_any("er", make_problem(stream))
    learn(ert, stream), learn(er, stream)
    inputs = stream.test_view(stream.test(0).inputs)
    assert not torch.equal(ert.predict(inputs), er.predict(inputs))


def test_replayed_images_are_augmented_anew_or_left_plain(stream: Stream) -> None:
    used: list[str] = []

    def show(images: Tensor, name: str) -> Tensor:
        used.append(name)
        return stream.test_view(images)

    problem = Problem(NUM_CLASSES, 3, partial(show, name="train"), partial(show, name="plain"))
    for iba, expected in ((True, "train"), (False, "plain")):
        method = ERT(make_net(), problem, ERTConfig(memory_size=24, iba=iba))
        used.clear()
        for _ in range(2):
            method.observe(first_batch(stream), optimizer_of(method))
        assert used == [expected]


def test_the_rate_decays_with_every_sample_over_all_tasks(stream: Stream) -> None:
    method = build(stream, elrd=0.999, bic_epochs=0)
    presented = 0
    for task, sizes in ((0, (16, 16, 5)), (1, (16, 1))):
        optimizer = optimizer_of(method, lr=0.1)  # a new one with every task
        for size in sizes:
            method.observe(first_batch(stream, task, size), optimizer)
            assert optimizer.param_groups[0]["lr"] == 0.1 * 0.999**presented
            presented += size
        finish_learning(method, stream[task])


@pytest.mark.parametrize(("decay", "left"), [(0.99999935, 0.197), (0.99999927, 0.161)])
def test_the_published_decays_over_the_published_number_of_samples(decay: float, left: float) -> None:
    assert decay**2_500_000 == pytest.approx(left, abs=5e-4)


def test_the_first_rate_is_kept_with_the_optimiser(stream: Stream) -> None:
    method = build(stream, elrd=0.99)
    optimizer = optimizer_of(method)
    method.observe(first_batch(stream), optimizer)
    method.observe(first_batch(stream), optimizer)
    again = optimizer_of(method, lr=5.0)
    again.load_state_dict(optimizer.state_dict())
    method.observe(first_batch(stream), again)
    assert again.param_groups[0]["lr"] == 0.1 * 0.99**32


def odds(labels: list[int], losses: list[float], brs: bool = True, lars: bool = True) -> list[float]:
    weights = victim_weights(torch.tensor(labels), -torch.tensor(losses), 6, brs, lars)
    got: list[float] = (weights / weights.sum()).tolist()
    return got


def test_victims_by_hand() -> None:
    got = odds([0, 0, 0, 1], [0.1, 0.2, 2.0, 0.1])
    assert got == pytest.approx([0.429, 0.414, 0.157, 0], abs=5e-4)
    assert odds([0, 0, 0, 1], [0.1, 0.2, 2.0, 0.1], lars=False) == pytest.approx([1 / 3] * 3 + [0])
    by_loss = odds([0, 0, 0, 1], [0.1, 0.2, 2.0, 0.1], brs=False)
    assert by_loss == pytest.approx([1.9 / 5.6, 1.8 / 5.6, 0, 1.9 / 5.6])


def test_weights_are_not_negative_and_uniform_where_nothing_tells_items_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        labels = torch.randint(6, (30,), generator=generator)
        scores = -torch.rand(30, generator=generator)
        got = victim_weights(labels, scores, 6, True, True)
        assert (got >= 0).all()
        assert got.max() > 0
    assert odds([0, 1, 2, 3], [0.5] * 4) == pytest.approx([0.25] * 4)
    assert odds([0, 1, 2, 3], [0.0] * 4) == pytest.approx([0.25] * 4)  # a mean loss of zero divides nothing
    assert odds([0], [0.5]) == [1]


def fill(method: ERT, labels: Tensor, batch_size: int) -> None:
    for part in labels.split(batch_size):
        images = part.to(torch.uint8).view(-1, 1, 1, 1)
        method.remember(ScoredSamples(images, part, -torch.ones(len(part))))


def test_a_balanced_reservoir_keeps_more_of_a_rare_class_than_a_plain_one(stream: Stream) -> None:
    labels = (torch.rand(2000, generator=torch.Generator().manual_seed(0)) < 0.1).long()
    shares = {}
    for brs in (True, False):
        method = build(stream, brs=brs, lars=False, memory_size=100)
        fill(method, labels, 50)
        assert len(method.memory) == 100
        assert method.memory.num_seen == 2000
        assert torch.equal(method.memory.rows.images.flatten().long(), method.memory.rows.labels)
        shares[brs] = method.memory.rows.labels.float().mean().item()
    assert shares[True] > 0.3
    assert shares[False] < 0.2


def test_samples_of_high_loss_stay_longer(stream: Stream) -> None:
    method = build(stream, brs=False, memory_size=50)
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(1000, generator=generator)
    for part in losses.split(20):
        images = torch.zeros(len(part), 1, 1, 1, dtype=torch.uint8)
        method.remember(ScoredSamples(images, torch.zeros(len(part), dtype=torch.int64), -part))
    assert (-method.memory.rows.scores).mean() > 0.65  # a plain reservoir stays at one half


def test_items_are_admitted_by_algorithm_r_however_the_stream_is_cut(stream: Stream) -> None:
    labels = torch.randint(6, (300,), generator=torch.Generator().manual_seed(1))
    kept = []
    for batch_size in (1, 7, 300):
        method = build(stream, memory_size=20)
        fill(method, labels, batch_size)
        kept.append(method.memory.rows.labels.clone())
    assert torch.equal(kept[0], kept[1])
    assert torch.equal(kept[0], kept[2])


def test_admission_has_probability_capacity_over_presented(stream: Stream) -> None:
    """Item n (from 0) of a full memory is admitted with M / (n + 1): 10 * (H_200 - H_10) on average."""
    admitted = 0
    for seed in range(12):
        method = ERT(make_net(), make_problem(stream, seed), ERTConfig(memory_size=10))
        for number in range(200):
            images = torch.full((1, 1, 1, 1), number, dtype=torch.uint8)
            method.remember(ScoredSamples(images, torch.tensor([number % 6]), -torch.ones(1)))
            admitted += number >= 10 and number in method.memory.rows.images.flatten().tolist()
        assert len(method.memory) == 10
    expected = 10 * sum(1 / n for n in range(11, 201))
    assert admitted / 12 == pytest.approx(expected, rel=0.1)


def test_scores_are_minus_the_loss_when_last_seen(stream: Stream) -> None:
    method = build(stream, memory_size=64)
    batch = first_batch(stream)
    with torch.no_grad():
        losses = cross_entropy(method.net(batch.inputs), batch.labels, reduction="none")
    method.observe(batch, optimizer_of(method))
    assert torch.allclose(method.memory.rows.scores, -losses, atol=1e-6)
    with torch.no_grad():  # after the step the same samples, all replayed, cost something else
        later = cross_entropy(method.net(batch.inputs), batch.labels, reduction="none")
    method.observe(batch, optimizer_of(method))
    assert torch.allclose(method.memory.rows.scores[:16], -later, atol=1e-6)
    assert not torch.allclose(later, losses)


def test_the_correction_touches_the_last_task_and_keeps_its_order(stream: Stream) -> None:
    method = build(stream)
    learn(method, stream, epochs=2)
    method.eval()
    inputs = stream.test_view(torch.cat([stream.test(t).inputs for t in range(3)]))
    with torch.no_grad():
        logits, scores = method.net(inputs), method.predict(inputs)
    scale, offset = method.correction.tolist()
    assert torch.equal(scores[:, :4], logits[:, :4])
    assert torch.allclose(scores[:, 4:], scale * logits[:, 4:] + offset)
    assert scale > 0
    assert torch.equal(scores[:, 4:].argmax(1), logits[:, 4:].argmax(1))  # Task-IL is what it was


def test_fitting_the_correction_leaves_weights_and_running_statistics_alone(stream: Stream) -> None:
    net = build_net("resnet18", (1, 6, 6), NUM_CLASSES, derive_generator(0, "net"), width=4)
    method = build(stream, net=net)
    learn(method, tasks(stream, 1), epochs=1)
    method.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    correction = method.correction.clone()
    finish_learning(method, stream[1])
    assert not torch.equal(correction, method.correction)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(module.training for module in net.modules())


def test_the_correction_lowers_the_loss_on_memory_and_carries_over(stream: Stream) -> None:
    method = build(stream, bic_lr=0.05)
    assert method.correction.tolist() == [0, 0]
    learn(method, tasks(stream, 2), epochs=2)
    images, labels, _ = method.memory.rows
    with torch.no_grad():
        logits = method.net(stream.test_view(images))
    costs = [
        cross_entropy(method.correct(logits, correction), labels).item()
        for correction in (method.correction, torch.zeros(2))
    ]
    assert costs[0] < costs[1]
    held = method.correction.clone()
    method.config = method.config.model_copy(update={"bic_epochs": 0})
    finish_learning(method, stream[2])
    assert torch.equal(method.correction, held)
    assert method.corrected.tolist() == [False] * 4 + [True] * 2


def test_before_the_first_fit_nothing_is_corrected(stream: Stream) -> None:
    method = build(stream)
    inputs = stream.test_view(stream.test(0).inputs)
    assert torch.equal(method.predict(inputs), method.net(inputs))
    assert 0 <= evaluate(method, stream.test(0), stream.test_view, (0, 1))[0] <= 100


def test_a_step_costs_one_forward_and_one_backward(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    method = build(stream)
    method.observe(first_batch(stream), optimizer_of(method))
    batch, optimizer, sizes = first_batch(stream, 1), optimizer_of(method), []
    method.net.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    assert count_passes(method, monkeypatch, lambda: method.observe(batch, optimizer)) == (1, 1)
    assert sizes == [32]


class NoReads(TorchDispatchMode):
    """Fails where a value would have to come from the device to the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default), func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["lwf", "icarl", "fdr", "hal", "ert"])
def test_a_step_reads_nothing_back_from_the_device(name: str, stream: Stream) -> None:
    method = build_any(name, make_problem(stream))
    learn(method, tasks(stream, 1), epochs=1)
    method.begin_task(stream[1])
    batch, optimizer = first_batch(stream, 1), optimizer_of(method)
    watch: Any = NoReads  # PyTorch leaves its constructor untyped
    with watch():
        method.observe(batch, optimizer)


def test_an_empty_memory_replays_nothing(stream: Stream) -> None:
    method = build(stream, memory_size=0)
    learn(method, stream, epochs=1)
    assert len(method.memory) == 0
    assert not method.corrected.any()


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(ConfigError, match="ert needs disjoint classes per task; p-mnist is Domain-IL"):
        check_scenario("ert", "domain-il", "p-mnist")
