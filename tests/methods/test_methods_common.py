"""What every row of METHODS must do, with no special case by name."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from support.steps import EVERYTHING, batches_of, build, learn, memories, net_for, same_state, state_bytes
from support.tiny_stream import NUM_CLASSES, begin_learning, finish_learning, make_problem
from torch import Tensor

from strongreplay.data.streams import Stream, make_train_view, permutation_maps, remap_pixels
from strongreplay.data.views import normalise
from strongreplay.memory import Memory
from strongreplay.methods import METHODS
from strongreplay.methods.base import Method
from strongreplay.nets import build_net
from strongreplay.protocol import Split, derive_generator
from strongreplay.testing import check_method
from strongreplay.training.engine import evaluate, train_task

every_method = pytest.mark.parametrize("name", METHODS)


@pytest.mark.slow
@every_method
def test_it_keeps_the_contracts_that_users_check_theirs_by(name: str) -> None:
    check_method(name)


def in_colour(stream: Stream) -> Stream:
    """The stream as CIFAR's are: three channels, random crops, normalised."""
    view = normalise((0.5,) * 3, (0.25,) * 3)

    def make(index: int, part: Any) -> Split:
        grey = stream.make(index, part)
        return Split(grey.inputs.repeat(1, 3, 1, 1), grey.labels)

    train_view = partial(make_train_view, view, 2)
    return replace(stream, input_shape=(3, 6, 6), make=make, test_view=view, train_view=train_view)


@pytest.mark.slow
@every_method
def test_cropped_images_are_learnt_with_batch_norm_and_every_epoch_has_terms(
    name: str, stream: Stream
) -> None:
    stream, row = in_colour(stream), METHODS[name]
    problem = make_problem(stream)
    assert problem.auxiliary is not None
    problem = replace(problem, auxiliary=problem.auxiliary.repeat(1, 3, 1, 1))
    net = build_net(row.net or "cnn", (3, 6, 6), NUM_CLASSES, derive_generator(0, "net"), width=8)
    method = build(name, problem, net=net)
    history = learn(method, stream, epochs=1)
    assert len(history) == len(stream)
    assert all(history)
    assert bool(memories(method)) == row.has_memory


@pytest.mark.slow
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
def test_unknown_settings_and_bad_values_are_refused(name: str) -> None:
    config = METHODS[name].config
    with pytest.raises(ValidationError, match="Extra inputs"):
        config(**{"no_such_setting": 1})
    for key, field in config.model_fields.items():
        assert field.description, f"{name}.{key} has no help text"
        if any(hasattr(rule, "ge") for rule in field.metadata):
            with pytest.raises(ValidationError, match="greater than or equal"):
                config(**{key: -1})


@pytest.mark.slow
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


@pytest.mark.slow
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
        both = {"class-il": EVERYTHING, "task-il": stream.task_classes[task]}
        candidates = [both[scenario] for scenario in both if scenario in METHODS[name].scenarios]
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
