"""A head that grows: old answers to the bit, stored logits as wide as they were, memory with gaps."""

from typing import Any, NamedTuple

import pytest
import torch
from support.tiny_stream import make_net, make_problem, weights
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from strongreplay.data.streams import Stream
from strongreplay.memory import Memory
from strongreplay.methods import METHODS, Method, build_method
from strongreplay.methods.base import squared_distance
from strongreplay.nets import Classifier, GrowingHead, build_net
from strongreplay.protocol import Split, Task, derive_generator
from strongreplay.training.engine import train_task

GROWING = [name for name, row in METHODS.items() if row.grows]


class Sample(NamedTuple):
    images: Tensor
    logits: Tensor


def growing_net(num_classes: int) -> Classifier:
    generator = derive_generator(1, "net")
    net = Classifier(nn.Identity(), 37, num_classes)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    net.head = GrowingHead.of(net.head)
    return net


@pytest.mark.parametrize("batch_size", [1, 7, 128])
@pytest.mark.parametrize("steps", [(1, 2, 3, 5, 8), (2, 64, 65), (63, 64, 200)])
def test_answers_of_old_classes_stay_the_same_to_the_bit(steps: tuple[int, ...], batch_size: int) -> None:
    net, draws = growing_net(steps[0]), derive_generator(0, "growth")
    inputs = torch.randn(batch_size, 37, generator=derive_generator(0, "inputs"))
    for wider in steps[1:]:
        before = net(inputs)
        net.grow(wider, draws)
        after = net(inputs)
        assert after.shape == (batch_size, wider)
        assert torch.equal(after[:, : before.shape[1]], before)


def test_a_growing_head_answers_and_learns_like_a_plain_one() -> None:
    net = growing_net(100)
    plain = nn.Linear(37, 100)
    plain.load_state_dict(net.head.state_dict())
    inputs = torch.randn(20, 37, generator=derive_generator(0, "inputs"))
    torch.testing.assert_close(net(inputs), plain(inputs))
    for layer in (net.head, plain):
        layer(inputs).square().sum().backward()
    torch.testing.assert_close(net.head.weight.grad, plain.weight.grad)


def test_new_rows_are_drawn_from_the_given_generator_alone() -> None:
    first, second = growing_net(3), growing_net(3)
    before = torch.default_generator.get_state()
    for net in (first, second):
        net.grow(6, derive_generator(0, "growth"))
    assert torch.equal(weights(first), weights(second))
    assert first.head.weight[3:].abs().max() > 0
    assert torch.equal(torch.default_generator.get_state(), before)


def test_a_head_takes_the_width_of_the_state_it_loads() -> None:
    wide = growing_net(5)
    narrow = growing_net(2)
    narrow.load_state_dict(wide.state_dict())
    assert torch.equal(weights(narrow), weights(wide))


def test_distances_of_ragged_targets_look_at_the_columns_that_existed() -> None:
    logits = torch.tensor([[1.0, 2.0, 9.0], [1.0, 2.0, 3.0]], requires_grad=True)
    target = torch.tensor([[0.0, 0.0, torch.nan], [0.0, 0.0, 0.0]])
    distance = squared_distance(logits, target, ragged=True)
    assert distance.item() == pytest.approx(((1 + 4) / 2 + (1 + 4 + 9) / 3) / 2)
    assert squared_distance(logits, target, True, summed=True).item() == pytest.approx((5 + 14) / 2)
    distance.backward()
    assert logits.grad is not None
    assert logits.grad[0, 2] == 0  # a column the target never had pulls nowhere
    assert logits.grad[1, 2] > 0


def test_without_gaps_a_ragged_distance_is_the_plain_one() -> None:
    generator = derive_generator(0, "values")
    logits, target = torch.randn(2, 6, 4, generator=generator)
    assert squared_distance(logits, target, True).item() == pytest.approx(mse_loss(logits, target).item())


def test_a_wider_memory_marks_what_its_rows_never_had() -> None:
    memory = Memory(Sample, 4, derive_generator(0, "memory"))
    memory.widen("logits", 3)  # nothing stored yet, nothing to mark
    assert not memory.ragged
    memory.add(Sample(torch.zeros(2, 1), torch.ones(2, 2)))
    memory.widen("logits", 3)
    memory.add(Sample(torch.zeros(2, 1), torch.ones(2, 3)))
    assert memory.ragged
    assert memory.rows.logits.isnan().sum(1).tolist() == [1, 1, 0, 0]
    other = Memory(Sample, 4, derive_generator(0, "memory"))
    other.load_state_dict(memory.state_dict())
    assert other.ragged


@pytest.mark.parametrize("taken_out", [1, 7])
def test_a_memory_with_gaps_fills_them_without_showing_what_is_not_there(taken_out: int) -> None:
    memory = Memory(Sample, 10, derive_generator(0, "memory"))
    memory.add(Sample(torch.arange(1.0, 31)[:, None], torch.ones(30, 2)))
    memory.keep(torch.arange(taken_out, 10))
    assert len(memory) == 10 - taken_out
    sizes = []
    for start in range(31, 2031, 20):
        memory.add(Sample(torch.arange(float(start), start + 20)[:, None], torch.ones(20, 2)))
        sizes.append(len(memory))
        stored = memory.rows.images.flatten()
        assert stored.min() > 0  # never an empty slot
        assert len(stored.unique()) == len(stored)
    assert sizes == sorted(sizes)
    assert sizes[-1] == 10


def test_a_memory_gets_more_or_less_room_and_keeps_its_rows() -> None:
    memory = Memory(Sample, 10, derive_generator(0, "memory"))
    memory.add(Sample(torch.arange(1.0, 31)[:, None], torch.ones(30, 2)))
    before = set(memory.rows.images.flatten().tolist())
    memory.resize(15)
    assert set(memory.rows.images.flatten().tolist()) == before
    memory.resize(4)
    assert len(memory) == memory.capacity == 4
    assert set(memory.rows.images.flatten().tolist()) < before
    memory.add(Sample(torch.full((500, 1), 99.0), torch.ones(500, 2)))
    assert len(memory) == 4


@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {}) for name in GROWING), *((name, {"average": 0.9}) for name in ("er", "derpp", "ser"))],
)
def test_methods_go_on_when_the_head_grows(name: str, settings: dict[str, Any], stream: Stream) -> None:
    """Two classes first, then two more, then old ones again; the state saves and loads on the way."""
    method = growing_method(name, stream, **settings)
    for index in range(3):
        if index:
            grow_and_compare(method, 2 * index + 2, stream.test_view(stream[index].train.inputs))
        learn_task(method, stream[index], stream)
    assert method.predict(stream.test_view(stream.test(0).inputs)).shape[1] == 6
    other = growing_method(name, stream, **settings)
    other.grow(6, derive_generator(0, "growth"))
    other.load_state_dict(method.state_dict())
    assert torch.equal(weights(other), weights(method))
    narrow = growing_method(name, stream, **settings)  # as in a new process, which then grows
    narrow.load_state_dict(method.state_dict())
    grow_and_compare(narrow, 8, stream.test_view(stream[0].train.inputs))
    learn_task(narrow, stream[0], stream)


def grow_and_compare(method: Method, num_classes: int, inputs: Tensor) -> None:
    before = method.predict(inputs)
    method.grow(num_classes, derive_generator(num_classes, "growth"))
    assert torch.equal(method.predict(inputs)[:, : before.shape[1]], before)


def learn_task(method: Method, task: Task, stream: Stream) -> None:
    optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1)
    view, order = stream.train_view(derive_generator(0, "views")), derive_generator(task.index, "order")
    terms = train_task(method, task, view, optimizer, epochs=3, batch_size=10, generator=order)
    assert all(value == value for epoch in terms for value in epoch.values())


def test_a_frozen_net_narrower_than_the_live_one_loads(stream: Stream) -> None:
    method = growing_method("ser", stream)
    method.end_task(stream[0])
    method.grow(4, derive_generator(0, "growth"))
    other = growing_method("ser", stream)
    other.grow(4, derive_generator(5, "growth"))
    other.load_state_dict(method.state_dict())
    assert other.state_dict()["old_net.copy.head.bias"].shape == (2,)
    split = Split(stream[0].train.inputs, stream[0].train.labels % 4)
    task = Task(1, (0, 1), split, split)
    optimizer = torch.optim.SGD(other.net.parameters(), lr=0.1)
    train_task(
        other,
        task,
        stream.test_view,
        optimizer,
        epochs=1,
        batch_size=10,
        generator=derive_generator(0, "order"),
    )


def growing_method(name: str, stream: Stream, **settings: Any) -> Method:
    kind = METHODS[name].net
    net = make_net(num_classes=2)
    if kind is not None:
        net = build_net(kind, (1, 6, 6), 2, derive_generator(0, "net"), width=8)
    net.head = GrowingHead.of(net.head)
    settings = settings | ({"memory_size": 12} if METHODS[name].has_memory else {})
    return build_method(name, net, make_problem(stream), **settings)
