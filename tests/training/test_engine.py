"""The two loops: order, schedule, non-finite losses, pure evaluation, a user's own parts."""

from typing import Any

import pytest
import torch
from support.tiny_stream import make_net, make_problem, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.data.streams import Stream
from strongreplay.methods import Method
from strongreplay.methods.base import descend
from strongreplay.methods.ser import SER
from strongreplay.methods.sgd import SGD
from strongreplay.protocol import Batch, Split, Terms
from strongreplay.training import engine
from strongreplay.training.engine import NonFiniteError, evaluate, train_task
from strongreplay.training.events import Listener, Position
from strongreplay.training.rates import stepped
from strongreplay.training.streaming import stream_batches


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Diary(Method):
    """Writes down what it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.batches = nn.Linear(1, 1), list[Batch]()

    @property
    def rows(self) -> list[list[int]]:
        return [batch.rows.tolist() for batch in self.batches]

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        self.batches.append(batch)
        return {"current": torch.tensor(1.0)}


class Heard(Listener):
    """Writes down what is reported."""

    def __init__(self) -> None:
        self.positions, self.epochs = list[Position](), list[tuple[dict[str, float], float]]()

    def on_step(self, position: Position, terms: Terms) -> None:
        self.positions.append(position)

    def on_epoch(self, position: Position, terms: dict[str, float], rate: float, seconds: float) -> None:
        self.epochs.append((terms, rate))


def test_every_sample_is_seen_once_an_epoch_in_a_new_order_and_the_last_batch_is_kept(stream: Stream) -> None:
    diary, heard, view = Diary(), Heard(), stream.test_view
    history = train_task(
        diary, stream[0], stream.test_view, torch.optim.SGD(diary.parameters()), epochs=2, batch_size=32,
        generator=generator(), listener=heard,
    )  # fmt: skip
    assert [len(rows) for rows in diary.rows] == [32, 32, 16] * 2
    for batch in diary.batches:
        assert torch.equal(batch.images, stream[0].train.inputs[batch.rows])
        assert torch.equal(batch.inputs, view(batch.images))
    first, second = ([row for rows in part for row in rows] for part in (diary.rows[:3], diary.rows[3:]))
    assert sorted(first) == sorted(second) == list(range(80))
    assert first != second
    assert history == [{"current": 1.0}] * 2
    assert heard.positions[-1] == Position(task=0, epoch=1, step=2, num_steps=3, steps_done=6)
    assert heard.epochs == [({"current": 1.0}, 0.001)] * 2


def test_a_batch_has_the_ids_of_its_rows_where_the_split_has_ids(stream: Stream) -> None:
    train = stream[0].train
    named = Split(train.inputs, train.labels, torch.arange(1000, 1000 + len(train)))
    for split in (train, named):
        diary = Diary()
        train_task(
            diary, stream[0].with_train(split), stream.test_view, torch.optim.SGD(diary.parameters()),
            epochs=1, batch_size=32, generator=generator(),
        )  # fmt: skip
        for batch in diary.batches:
            expected = None if split.ids is None else (1000 + batch.rows).tolist()
            assert (None if batch.ids is None else batch.ids.tolist()) == expected


def test_milestones_count_finished_epochs(stream: Stream) -> None:
    method = SGD(make_net(), make_problem(stream))
    optimizer, heard = torch.optim.SGD(method.parameters(), lr=1.0), Heard()
    train_task(
        method, stream[0], stream.test_view, optimizer, epochs=3, batch_size=80, generator=generator(),
        rate=stepped(1.0, [2], 0.1), listener=heard,
    )  # fmt: skip
    assert [rate for _, rate in heard.epochs] == [1.0, 1.0, pytest.approx(0.1)]


@pytest.mark.parametrize(("size", "sizes"), [(32, [32, 32]), (80, [80]), (100, [80])])
def test_a_short_last_batch_is_dropped_only_where_there_is_a_whole_one(
    size: int, sizes: list[int], stream: Stream
) -> None:
    diary = Diary()
    train_task(
        diary, stream[0], stream.test_view, torch.optim.SGD(diary.parameters(), lr=0.1), epochs=1,
        batch_size=size, generator=generator(), drop_last=True,
    )  # fmt: skip
    assert [len(rows) for rows in diary.rows] == sizes


def test_a_method_may_take_fewer_samples_from_the_stream(stream: Stream) -> None:
    class Half(Diary):
        def stream_batch_size(self, batch_size: int) -> int:
            return batch_size // 2

    diary = Half()
    train_task(
        diary, stream[0], stream.test_view, torch.optim.SGD(diary.parameters(), lr=0.1), epochs=1,
        batch_size=32, generator=generator(),
    )  # fmt: skip
    assert [len(rows) for rows in diary.rows] == [16] * 5


def test_a_loss_that_is_not_finite_stops_and_says_where(stream: Stream) -> None:
    method = SGD(make_net(), make_problem(stream))
    optimizer = torch.optim.SGD(method.parameters(), lr=1e30)
    with pytest.raises(
        NonFiniteError, match=r"task 1, epoch 1, step [234]: the loss term 'current' is (nan|inf)"
    ):
        train_task(
            method, stream[0], stream.test_view, optimizer, epochs=3, batch_size=16, generator=generator()
        )


def test_class_il_and_task_il_from_one_pass() -> None:
    class Fixed(Method):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(1, 1)
            self.calls = 0

        def predict(self, inputs: Tensor) -> Tensor:
            self.calls += 1
            return inputs

    scores = torch.tensor([[5.0, 1, 0, 2]])
    method, split = Fixed(), Split(scores, torch.tensor([3]))
    before = scores.clone()
    assert evaluate(method, split, lambda x: x, (0, 1, 2, 3), (2, 3), (3,), (0, 1)) == [0, 100, 100, 0]
    assert method.calls == 1
    assert torch.equal(scores, before)


def test_evaluation_does_not_depend_on_the_batch_size(stream: Stream) -> None:
    method = SGD(make_net(), make_problem(stream))
    sizes = (1, 7, 40, 1000)
    results = [
        evaluate(method, stream.test(0), stream.test_view, (0, 1, 2), batch_size=size) for size in sizes
    ]
    assert results.count(results[0]) == len(sizes)


def test_a_users_own_module_and_method_drop_in(stream: Stream) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.Tanh(), nn.Linear(16, 6))
    ser = SER(net, make_problem(stream))

    class Mine(Method):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
            return descend(optimizer, {"loss": cross_entropy(self.net(batch.inputs), batch.labels)})

    for method in (ser, Mine(make_net())):
        before = weights(method.net)
        for task in stream:
            optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1)
            train_task(
                method, task, stream.test_view, optimizer, epochs=3, batch_size=16, generator=generator()
            )
        assert not torch.equal(before, weights(method.net))
        assert evaluate(method, stream.test(2), stream.test_view, (4, 5))[0] > 80


def test_a_method_without_observe_says_so(stream: Stream) -> None:
    class Nothing(Method):
        pass

    with pytest.raises(NotImplementedError, match="Nothing must define observe"):
        Nothing().observe(Batch(*[torch.zeros(1)] * 4), torch.optim.SGD(make_net().parameters()))


def test_a_step_makes_no_host_sync(stream: Stream) -> None:
    """With tensors that refuse to be read, a whole step of each of these methods goes through."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class NoReads(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert func not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default), func
            return func(*args, **(kwargs or {}))

    from support.steps import build, first_batch

    no_reads: Any = NoReads
    for name in ("sgd", "er", "der", "derpp", "ser"):
        method = build(name, make_problem(stream))
        optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1)
        method.observe(first_batch(stream), optimizer)
        method.end_task(stream[0])
        batch = first_batch(stream, 1)
        with no_reads():
            method.observe(batch, optimizer)


def test_data_that_are_too_large_for_the_device_move_batch_by_batch(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to the bit; a device of another kind shows that no more than a batch ever moves."""
    results = []
    for limit in (1 << 30, 0):
        monkeypatch.setattr(engine, "RESIDENT_BYTES", limit)
        method = SER(make_net(), make_problem(stream))
        optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1)
        for task in stream:
            train_task(
                method, task, stream.test_view, optimizer, epochs=2, batch_size=16, generator=generator()
            )
        results.append(weights(method.net))
    assert torch.equal(*results)
    split = stream[0].train
    assert engine.place(split, torch.device("meta")) is split
    monkeypatch.setattr(engine, "RESIDENT_BYTES", 1 << 30)
    assert engine.place(split, torch.device("meta")).inputs.device.type == "meta"
    moved = list(stream_batches(split.inputs, torch.arange(3).split(2), torch.device("meta")))
    assert [(batch.device.type, len(batch)) for batch in moved] == [("meta", 2), ("meta", 1)]
