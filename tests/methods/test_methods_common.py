"""What every row of METHODS must do, with no special case by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import NUM_CLASSES, begin_learning, finish_learning, make_net, make_problem, weights
from pydantic import ValidationError
from torch import Tensor, nn

from strongreplay.data.streams import Stream, accumulate, permutation_maps, remap_pixels
from strongreplay.memory import Memory
from strongreplay.methods import METHODS
from strongreplay.methods.base import Method, OldNet
from strongreplay.nets import Classifier, build_net
from strongreplay.protocol import Batch, Problem, Split, Terms, derive_generator
from strongreplay.training.engine import evaluate, train_task
from strongreplay.training.events import Listener, Position

every_method = pytest.mark.parametrize("name", METHODS)
EVERYTHING = tuple(range(NUM_CLASSES))


def build(
    name: str, problem: Problem, seed: int = 0, net: nn.Module | None = None, **settings: Any
) -> Method:
    row = METHODS[name]
    if row.has_memory:
        settings = {"memory_size": 24} | settings
    return row.build(net or net_for(name, seed), problem, row.config(**settings))


def net_for(name: str, seed: int = 0) -> Classifier:
    """The common small net, unless the method is made for another."""
    net = METHODS[name].net
    if net is None:
        return make_net(seed)
    return build_net(net, (1, 6, 6), NUM_CLASSES, derive_generator(seed, "net"), width=8)


class Steps(Listener):
    """Calls a function after every step."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    def on_step(self, position: Position, terms: Terms) -> None:
        self.call()


def learn(
    method: Method, stream: Stream, seed: int = 0, epochs: int = 4, on_step: Callable[[], None] | None = None
) -> list[dict[str, float]]:
    order, history = derive_generator(seed, "order"), []
    view = stream.train_view(derive_generator(seed, "views"))
    for task in stream:
        optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1)
        history += train_task(
            method, task, view, optimizer, epochs=epochs, batch_size=16, generator=order,
            listener=Steps(on_step) if on_step else None,
        )  # fmt: skip
    return history


def trained(name: str, stream: Stream, seed: int = 0, epochs: int = 4) -> Method:
    method = build(name, make_problem(stream, seed), seed)
    learn(method, stream, seed, epochs)
    return method


def state_bytes(method: Method) -> dict[str, Any]:
    return {
        k: v.clone() if isinstance(v, Tensor) else v
        for k, v in method.state_dict().items()
        if "extra" not in k
    }


def same_state(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(value, second[key]) for key, value in first.items()
    )


@every_method
def test_it_learns(name: str, stream: Stream) -> None:
    method = build(name, make_problem(stream))
    learn(method, accumulate(stream), epochs=30)
    split = stream.test(0)
    assert evaluate(method, split, stream.test_view, EVERYTHING)[0] > 90


@every_method
def test_same_seed_same_weights_other_seed_others(name: str, stream: Stream) -> None:
    first, again, other = (weights(trained(name, stream, seed).net) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("name", [name for name, row in METHODS.items() if row.has_memory])
def test_every_row_in_memory_has_the_id_of_its_sample(name: str, stream: Stream) -> None:
    method, first_id, known = build(name, make_problem(stream)), 0, list[Tensor]()
    memory = method.memory
    assert isinstance(memory, Memory)
    memory.keep_ids()
    optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1)
    for task in stream:
        train = task.train
        ids = torch.arange(first_id, first_id + len(train))
        train_task(
            method, task.with_train(Split(train.inputs, train.labels, ids)), stream.test_view, optimizer,
            epochs=2, batch_size=16, generator=derive_generator(0, "order"),
        )  # fmt: skip
        first_id, known = first_id + len(train), [*known, train.inputs]
    assert memory.ids is not None
    assert len(memory)
    assert torch.equal(memory.rows.images, torch.cat(known)[memory.ids])


@every_method
def test_terms_are_named_finite_and_detached(name: str, stream: Stream) -> None:
    method = build(name, make_problem(stream))
    seen: list[dict[str, Tensor]] = []
    observe = method.observe

    def spy(batch: Batch, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        seen.append(observe(batch, optimizer))
        return seen[-1]

    method.observe = spy  # type: ignore[method-assign]
    history = learn(method, stream, epochs=1)
    assert seen
    for terms in seen:
        assert terms
        assert all(term.shape == () and not term.requires_grad and term.isfinite() for term in terms.values())
    assert all(entry for entry in history)


@every_method
def test_frozen_nets_stay_as_they_were_taken(name: str, stream: Stream) -> None:
    method = build(name, make_problem(stream))
    learn(method, stream, epochs=1)
    frozen = [module for module in method.modules() if isinstance(module, OldNet)]
    before = [weights(module) for module in frozen]
    method.train()
    batch = first_batch(stream, task=2)
    method.observe(batch, torch.optim.SGD(method.net.parameters(), lr=0.1))
    for module, old in zip(frozen, before, strict=True):
        assert torch.equal(weights(module), old)
        assert not any(inner.training for inner in module.modules() if inner is not module)
        assert all(not p.requires_grad and p.grad is None for p in module.parameters())
        assert not {id(p) for p in module.parameters()} & {id(p) for p in method.net.parameters()}


def first_batch(stream: Stream, task: int = 0, size: int = 16) -> Batch:
    split = stream[task].train
    rows = torch.arange(size)
    images = split.inputs[rows]
    return Batch(rows, images, stream.test_view(images), split.labels[rows])


def memories(method: Method) -> list[Memory[Any]]:
    return [module for module in method.modules() if isinstance(module, Memory)]


@every_method
def test_memory_holds_at_most_its_size_of_seen_classes_in_bytes(name: str, stream: Stream) -> None:
    method = build(name, make_problem(stream))
    learn(method, Stream(stream.scenario, stream.task_classes[:2], stream.input_shape, stream.make), epochs=1)
    assert bool(memories(method)) == METHODS[name].has_memory
    for memory in memories(method):
        assert 0 < len(memory) <= memory.capacity == 24
        rows = memory.rows._asdict()
        assert rows["images"].dtype == torch.uint8
        stored, given = (
            rows["images"].flatten(1),
            torch.cat([stream[t].train.inputs for t in (0, 1)]).flatten(1),
        )
        assert all(
            (row == given).all(1).any() for row in stored
        )  # raw bytes of the stream, not a view of them
        assert set(rows.get("labels", torch.tensor([0])).tolist()) <= {0, 1, 2, 3}


@every_method
@pytest.mark.parametrize(("count", "batch_size"), [(1, 16), (17, 16), (5, 1)])
def test_a_batch_of_one_and_a_short_last_batch(
    name: str, count: int, batch_size: int, stream: Stream
) -> None:
    method = build(name, make_problem(stream))
    learn(method, stream, epochs=1)
    task = stream[1]
    task = task.with_train(task.train.take(torch.arange(count)))
    optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1)
    train_task(
        method,
        task,
        stream.test_view,
        optimizer,
        epochs=1,
        batch_size=batch_size,
        generator=torch.Generator(),
    )
    assert weights(method.net).isfinite().all()


@every_method
def test_global_generators_are_neither_read_nor_moved(name: str, stream: Stream) -> None:
    import random

    import numpy as np

    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index]
    first = weights(trained(name, stream, epochs=1).net)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert np.array_equal(before[2], np.random.get_state()[1])  # type: ignore[index]
    torch.rand(3)
    assert torch.equal(first, weights(trained(name, stream, epochs=1).net))


@every_method
def test_unknown_settings_and_bad_values_are_refused(name: str) -> None:
    config = METHODS[name].config
    with pytest.raises(ValidationError, match="Extra inputs"):
        config(**{"no_such_setting": 1})
    for key, field in config.model_fields.items():
        assert field.description, f"{name}.{key} has no help text"
        if any(hasattr(rule, "ge") for rule in field.metadata):
            with pytest.raises(ValidationError, match="greater than or equal"):
                config(**{key: -1})


@every_method
def test_predict_gives_a_score_for_every_class(name: str, stream: Stream) -> None:
    method = trained(name, stream, epochs=1).eval()
    with torch.no_grad():
        scores = method.predict(stream.test_view(stream.test(0).inputs[:5]))
    assert scores.shape == (5, NUM_CLASSES)
    assert scores.dtype == torch.float32


@every_method
def test_evaluation_changes_nothing_and_task_il_is_never_below_class_il(name: str, stream: Stream) -> None:
    method = trained(name, stream, epochs=1)
    method.train()
    before, modes = state_bytes(method), [module.training for module in method.modules()]
    generators = [memory.generator.get_state() for memory in memories(method)]
    results = []
    for _ in range(2):
        for task in range(len(stream)):
            seen, own = EVERYTHING, stream.task_classes[task]
            results.append(evaluate(method, stream.test(task), stream.test_view, seen, own, batch_size=7))
            assert results[-1][0] <= results[-1][1]
    assert results[:3] == results[3:]
    assert same_state(before, state_bytes(method))
    assert modes == [module.training for module in method.modules()]
    for memory, state in zip(memories(method), generators, strict=True):
        assert torch.equal(memory.generator.get_state(), state)


@every_method
def test_saved_in_the_middle_of_a_task_it_continues_to_the_bit(name: str, stream: Stream) -> None:
    def steps(method: Method, start: int, stop: int) -> None:
        batches = [b for t in (0, 1, 2) for b in batches_of(stream[t].train, stream)]
        for number in range(start, stop):
            if number % 5 == 0 or number == start:  # every task gets a new one
                optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1)
            if number % 5 == 0:
                begin_learning(method, stream[number // 5])
            method.observe(batches[number], optimizer)
            if number % 5 == 4:
                finish_learning(method, stream[number // 5])

    straight, early = build(name, make_problem(stream)), build(name, make_problem(stream))
    steps(straight, 0, 15)
    steps(early, 0, 8)
    resumed = build(name, make_problem(stream, seed=9), seed=9)  # everything it starts with is overwritten
    resumed.load_state_dict(early.state_dict())
    resumed.train()
    steps(resumed, 8, 15)
    assert same_state(state_bytes(straight), state_bytes(resumed))


def batches_of(split: Split, stream: Stream) -> list[Batch]:
    assert len(split) == 80
    found = []
    for rows in torch.arange(80).split(16):
        images = split.inputs[rows]
        found.append(Batch(rows, images, stream.test_view(images), split.labels[rows]))
    return found


@every_method
def test_relabelling_classes_inside_a_task_changes_no_accuracy(
    name: str, stream: Stream, train_split: Split, test_split: Split
) -> None:
    swap = torch.tensor([1, 0, 3, 2, 5, 4])
    plain = build(name, make_problem(stream))
    swapped_net = net_for(name)
    with torch.no_grad():
        for parameter in swapped_net.head.parameters():
            parameter.copy_(parameter[swap])
    swapped = build(name, make_problem(stream), net=swapped_net)

    def make(index: int, part: Any) -> Split:
        split = stream.make(index, part)
        return Split(split.inputs, swap[split.labels])

    renamed = Stream(stream.scenario, stream.task_classes, stream.input_shape, make)
    learn(plain, stream), learn(swapped, renamed)
    for task in range(len(stream)):
        candidates = (EVERYTHING, stream.task_classes[task])
        first = evaluate(plain, stream.test(task), stream.test_view, *candidates)
        second = evaluate(swapped, renamed.test(task), renamed.test_view, *candidates)
        assert first == pytest.approx(second, abs=6)  # sums run in another order; single images may flip


@every_method
def test_domain_il_memory_keeps_the_image_as_its_task_showed_it(
    name: str, train_split: Split, test_split: Split
) -> None:
    if "domain-il" not in METHODS[name].scenarios:
        pytest.skip(f"{name} is not defined for Domain-IL: {METHODS[name].refusal}")
    maps = permutation_maps(6, 6, 2, derive_generator(0, "transforms"))
    stream = remap_pixels(train_split, test_split, NUM_CLASSES, maps)
    method = build(name, make_problem(stream), memory_size=40) if METHODS[name].has_memory else None
    if method is None:
        pytest.skip(f"{name} keeps no memory")
    learn(method, stream, epochs=1)
    tasks = [stream[t].train.inputs.flatten(1) for t in (0, 1)]
    for memory in memories(method):
        stored = memory.rows._asdict()["images"].flatten(1)
        from_task = [[(row == given).all(1).any().item() for row in stored] for given in tasks]
        assert all(a or b for a, b in zip(*from_task, strict=True))
        assert sum(from_task[0]) >= 3
        raw = train_split.inputs.flatten(1)
        assert not any((row == raw).all(1).any() for row in stored)


@every_method
def test_gradients_of_one_step_do_not_leak_into_the_next(name: str, stream: Stream) -> None:
    """Whatever stands in .grad before a step makes no difference to it."""
    method = build(name, make_problem(stream))
    batch = first_batch(stream)
    optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1)
    method.observe(batch, optimizer)
    poisoned = build(name, make_problem(stream))
    for parameter in poisoned.net.parameters():
        parameter.grad = torch.full_like(parameter, 1e3)
    poisoned.observe(batch, torch.optim.SGD(poisoned.net.parameters(), lr=0.1))
    assert torch.equal(weights(method.net), weights(poisoned.net))
