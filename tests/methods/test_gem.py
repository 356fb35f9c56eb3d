"""GEM and A-GEM: the corrected gradient against brute force, what is remembered, and when it is SGD."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.steps import (
    build,
    captured_gradient,
    count_passes,
    first_batch,
    first_task,
    gradient,
    learn,
    memories,
    optimizer_of,
)
from support.tiny_stream import make_net, make_problem, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError
from strongreplay.methods.agem import AGEM, AGEMConfig, project
from strongreplay.methods.gem import GEM, GEMConfig, correct, solve
from strongreplay.protocol import Problem

both = pytest.mark.parametrize("name", ["gem", "agem"])
Vector = NDArray[np.float64]


def random_programme(num_tasks: int, seed: int, eps: float = 1e-3, size: int = 30) -> tuple[Vector, Vector]:
    """(t + 1, P) gradients of t past tasks and a batch at odds with some, and their products with eps."""
    generator = np.random.default_rng(seed)
    past, current = generator.normal(size=(num_tasks, size)), generator.normal(size=size)
    current -= 0.3 * past.sum(0)
    return np.vstack([past, current]), past @ past.T + eps * np.eye(num_tasks)


def solved(products: Vector, overlaps: Vector, gamma: float) -> Vector:
    return solve(torch.from_numpy(products), torch.from_numpy(overlaps), gamma).numpy()


def brute_force(products: Vector, overlaps: Vector, gamma: float) -> Vector:
    """The best of the feasible minimisers over all sets of weights held at gamma."""
    size = len(overlaps)
    best, best_value = np.full(size, gamma), np.inf
    for count in range(size + 1):
        for free in map(list, combinations(range(size), count)):
            weights = np.full(size, gamma)
            held = [k for k in range(size) if k not in free]
            if free:
                right = -overlaps[free] - products[np.ix_(free, held)].sum(1) * gamma
                weights[free] = np.linalg.solve(products[np.ix_(free, free)], right)
            value = 0.5 * weights @ products @ weights + overlaps @ weights
            if (weights >= gamma - 1e-12).all() and value < best_value:
                best, best_value = weights, value
    return best


@pytest.mark.parametrize(
    ("gamma", "eps", "expected", "overlap"),
    [
        (0.0, 0.0, (0.5, 0.5), 0.0),
        (0.5, 0.0, (0.5, 0.5), 0.0),
        (1.0, 0.0, (0.0, 1.0), 1.0),
        (0.0, 1e-3, (0.50025, 0.49975), -0.0005),
    ],
)
def test_one_past_task_by_hand(
    gamma: float, eps: float, expected: tuple[float, float], overlap: float
) -> None:
    past = torch.tensor([-1.0, 1.0])
    corrected = correct(torch.stack([past, torch.tensor([1.0, 0.0])]), gamma, eps)
    assert corrected.tolist() == pytest.approx(expected, abs=1e-6)
    assert (corrected @ past).item() == pytest.approx(overlap, abs=1e-6)


@pytest.mark.parametrize("num_tasks", [1, 2, 3, 4])
@pytest.mark.parametrize("gamma", [0.0, 0.5])
@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_the_programme_against_all_active_sets(num_tasks: int, gamma: float, eps: float) -> None:
    for seed in range(20):
        gradients, products = random_programme(num_tasks, seed, eps)
        overlaps = gradients[:-1] @ gradients[-1]
        assert solved(products, overlaps, gamma) == pytest.approx(
            brute_force(products, overlaps, gamma), abs=1e-8
        )


@pytest.mark.parametrize("num_tasks", [1, 5, 19])
@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_the_conditions_of_optimality_hold(num_tasks: int, gamma: float) -> None:
    for seed in range(5):
        gradients, products = random_programme(num_tasks, seed, size=200)
        overlaps = gradients[:-1] @ gradients[-1]
        v = solved(products, overlaps, gamma)
        multipliers = products @ v + overlaps
        scale = np.abs(overlaps).max()
        assert (v >= gamma).all()
        assert (multipliers >= -1e-9 * scale).all()
        assert np.abs(multipliers * (v - gamma)).max() <= 1e-8 * scale
        corrected = correct(torch.from_numpy(gradients), gamma, 1e-3).numpy()
        # No past loss rises to first order, but for what eps gives away.
        assert (gradients[:-1] @ corrected >= -1e-3 * v - 1e-9 * scale).all()


def test_without_gamma_it_is_the_nearest_gradient_that_harms_no_task() -> None:
    generator = np.random.default_rng(0)
    for seed in range(5):
        gradients, _ = random_programme(3, seed, eps=0)
        past, current = gradients[:-1], gradients[-1]
        corrected = correct(torch.from_numpy(gradients), 0.0, 0.0).numpy()
        assert (past @ corrected >= -1e-9).all()
        nearest = np.linalg.norm(corrected - current)
        for _ in range(200):  # other harmless gradients are no nearer
            other = corrected + generator.normal(size=30) * generator.choice([0.01, 0.1, 1.0])
            if (past @ other >= 0).all():
                assert np.linalg.norm(other - current) >= nearest - 1e-9


@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_past_gradients_that_agree_or_vanish_are_no_trouble(eps: float) -> None:
    past = torch.tensor([-1.0, 1.0])
    current = torch.tensor([1.0, 0.0])
    for rows in ([past, past], [past, past, 2 * past], [past, torch.zeros(2)], [past, past * (1 + 1e-7)]):
        corrected = correct(torch.stack([*rows, current]), 0.0, eps)
        assert corrected.tolist() == pytest.approx([0.5, 0.5], abs=1e-3)


def test_a_harmless_gradient_is_left_as_it_is_to_the_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    current = torch.randn(50, generator=generator)
    past = torch.stack([current + torch.randn(50, generator=generator) for _ in range(3)])
    assert (past @ current > 0).all()
    assert torch.equal(correct(torch.cat([past, current[None]]), 0.5, 1e-3), current)
    assert torch.equal(project(current, past[0]), current)
    assert torch.equal(project(current, torch.zeros(50)), current)


def test_a_gem_projection_by_hand_and_at_random() -> None:
    assert project(torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0])).tolist() == [0.5, 0.5]
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        current, reference = torch.randn(2, 1000, generator=generator)
        projected = project(current, reference)
        tolerance = 1e-6 * (current.norm() * reference.norm()).item()
        assert (projected @ reference).item() >= -tolerance
        if current @ reference < 0:
            assert abs((projected @ reference).item()) <= tolerance


@both
def test_task_one_is_sgd_to_the_bit(name: str, stream: Stream) -> None:
    method, sgd = build(name, make_problem(stream)), build("sgd", make_problem(stream))
    learn(method, first_task(stream)), learn(sgd, first_task(stream))
    assert torch.equal(weights(method.net), weights(sgd.net))


def test_with_one_past_task_and_the_whole_memory_a_gem_is_gem(stream: Stream) -> None:
    gem = build("gem", make_problem(stream), gamma=0, eps=0)
    agem = build("agem", make_problem(stream), replay_size=24)
    learn(gem, first_task(stream)), learn(agem, first_task(stream))
    corrected = 0
    for start in range(0, 64, 16):
        batch = first_batch(stream, 1, size=start + 16)
        plain = gradient(gem.net, cross_entropy(gem.net(batch.inputs), batch.labels))
        first, second = captured_gradient(gem, batch), captured_gradient(agem, batch)
        corrected += not torch.allclose(first, plain, atol=1e-5)
        assert torch.allclose(first, second, atol=1e-5)
    assert corrected  # the two agree on more than leaving it alone


@pytest.mark.parametrize("replay_size", [8, 4])
def test_a_gem_steps_along_the_projected_stream_gradient(replay_size: int, stream: Stream) -> None:
    method = AGEM(make_net(), make_problem(stream), AGEMConfig(memory_size=24, replay_size=replay_size))
    learn(method, first_task(stream), epochs=2)
    kinds = set()
    for task in (0, 1, 0, 1):
        batch, state = first_batch(stream, task), method.memory.generator.get_state()
        replayed = method.memory.sample(replay_size)
        method.memory.generator.set_state(state)
        of_stream = gradient(method.net, cross_entropy(method.net(batch.inputs), batch.labels))
        loss = cross_entropy(method.net(method.view(replayed.images)), replayed.labels)
        reference = gradient(method.net, loss)
        kinds.add(bool(of_stream @ reference < 0))
        expected = of_stream - min((of_stream @ reference).item(), 0) / reference.square().sum() * reference
        assert torch.allclose(captured_gradient(method, batch), expected, atol=1e-5)
    assert kinds == {True, False}


def test_gem_steps_along_the_gradient_corrected_against_every_past_task(stream: Stream) -> None:
    method = GEM(make_net(), make_problem(stream), GEMConfig(memory_size=24))
    for task in (0, 1):
        method.observe(first_batch(stream, task), optimizer_of(method))
        method.end_task(stream[task])
    batch, rows = first_batch(stream, 2), method.memory.rows
    losses = [
        cross_entropy(method.net(method.view(rows.images[rows.tasks == t])), rows.labels[rows.tasks == t])
        for t in (0, 1)
    ]
    losses.append(cross_entropy(method.net(batch.inputs), batch.labels))
    gradients = torch.stack([gradient(method.net, loss) for loss in losses])
    assert (gradients[:-1] @ gradients[-1] < 0).any()
    expected = correct(gradients.double(), 0.5, 1e-3).float()
    assert torch.allclose(captured_gradient(method, batch), expected, atol=1e-5)


class Spare(nn.Module):
    """Parameters that get no gradient stand before and after those that do."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.net, self.after = nn.Linear(2, 2), make_net(), nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.net(inputs)
        return logits


@both
def test_parameters_without_gradient_count_as_zero(name: str, stream: Stream) -> None:
    with torch.random.fork_rng():
        spare = build(name, make_problem(stream), net=Spare())
    plain = build(name, make_problem(stream))
    learn(spare, stream, epochs=1), learn(plain, stream, epochs=1)
    assert torch.allclose(weights(spare.net.net), weights(plain.net), atol=1e-5)  # type: ignore[arg-type]


@both
def test_a_finished_task_leaves_its_share_of_random_samples(name: str, stream: Stream) -> None:
    method = build(name, make_problem(stream), memory_size=26)
    (memory,) = memories(method)
    for task in (0, 1, 2):
        method.observe(first_batch(stream, task), optimizer_of(method))
        assert len(memory) == 8 * task  # nothing of the task that is being learnt
        method.end_task(stream[task])
    rows = memory.rows._asdict()
    assert len(memory) == 3 * (26 // 3)
    for task in (0, 1, 2):
        own = slice(8 * task, 8 * task + 8)
        stored, train = rows["images"][own].flatten(1), stream[task].train
        places = [int((train.inputs.flatten(1) == row).all(1).nonzero()[0]) for row in stored]
        assert len(set(places)) == 8
        assert places != sorted(places)
        assert torch.equal(train.labels[places], rows["labels"][own])
        if "tasks" in rows:
            assert rows["tasks"][own].tolist() == [task] * 8
    other = build(name, make_problem(stream, seed=1), memory_size=26)
    other.end_task(stream[0])
    assert not torch.equal(memories(other)[0].rows.images, rows["images"][:8])


@both
def test_a_stream_longer_than_announced_thins_what_is_there(name: str, stream: Stream) -> None:
    problem = make_problem(stream)
    short = Problem(6, 2, problem.train_view, problem.test_view, 0)
    method = build(name, short, memory_size=20)
    for task in (0, 1, 2):
        method.end_task(stream[task])
    (memory,) = memories(method)
    labels = memory.rows.labels
    assert len(memory) == 20
    assert (labels >= 4).sum() == 10  # the last task has its share
    assert 0 < (labels < 2).sum() < 10


@both
def test_a_memory_below_one_sample_a_task_is_refused(name: str) -> None:
    problem = Problem(10, 20, lambda x: x, lambda x: x)
    with pytest.raises(
        ConfigError,
        match=f"^{name} needs at least one sample per task: memory_size must be >= 20, got 10$",
    ):
        build(name, problem, memory_size=10)
    assert memories(build(name, problem, memory_size=20))[0].capacity == 20


@pytest.mark.parametrize(
    ("name", "passes"),
    [("sgd", [1, 1, 1]), ("oewc", [1, 1, 1]), ("si", [1, 1, 1]), ("agem", [1, 2, 2]), ("gem", [1, 2, 3])],
)
def test_cost_of_a_step_in_forwards_and_backwards(
    name: str, passes: list[int], stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = build(name, make_problem(stream))
    for task, expected in enumerate(passes):
        batch = first_batch(stream, task)

        def step(batch: Any = batch) -> None:
            method.observe(batch, optimizer_of(method))

        assert count_passes(method, monkeypatch, step) == (expected, expected)
        method.end_task(stream[task])
