"""Room in a memory: a row's bytes are those of its columns, whatever columns a method keeps."""

from pathlib import Path

import pytest
from support.compare import assert_same
from support.kept_models import QUICK, SIDE, ser, some_digits, stop_in_the_middle, teach, write_folder

from strongreplay.errors import ConfigError, RunError
from strongreplay.models.erasure import forget
from strongreplay.models.memory_view import read_parts, samples_of
from strongreplay.models.store import Store

BUDGET, REPLAYED = "20kB", 16_000  # four fifths of the budget
OWN = '''
"""A user's file: a memory with a column that no method of the package has."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from strongreplay import Method, MethodConfig
from strongreplay.memory import Memory
from strongreplay.methods.base import descend


class Sample(NamedTuple):
    images: Tensor
    labels: Tensor
    weights: Tensor  # (N, 3) float64


class WeightedConfig(MethodConfig):
    memory_size: int = 10


class Weighted(Method):
    grows, passes_ids = True, True

    def __init__(self, net, problem, config: WeightedConfig):
        super().__init__()
        self.net, self.view = net, problem.train_view
        self.memory = Memory(Sample, config.memory_size, problem.generator("memory"))

    def observe(self, batch, optimizer):
        terms = {"current": cross_entropy(self.net(batch.inputs), batch.labels)}
        if len(self.memory):
            replayed = self.memory.sample(len(batch))
            losses = cross_entropy(self.net(self.view(replayed.images)), replayed.labels, reduction="none")
            terms["replay"] = (losses * replayed.weights.mean(1).to(losses.dtype)).mean()
        terms = descend(optimizer, terms)
        weights = torch.ones(len(batch), 3, dtype=torch.float64, device=batch.labels.device)
        rows = Sample(batch.images, batch.labels, weights)
        self.memory.add(rows, batch.ids if self.passes_ids else None)
        return terms


class Listed(Weighted):
    def __init__(self, net, problem, config: WeightedConfig):
        super().__init__(net, problem, config)
        del self.memory
        self.memory = []


class Nameless(Weighted):
    passes_ids = False

    def __init__(self, net, problem, config: WeightedConfig):
        super().__init__(net, problem, config)
'''


@pytest.fixture
def own(tmp_path: Path) -> str:
    """The path of a file with methods of a user's own."""
    path = tmp_path / "own_methods.py"
    path.write_text(OWN)
    return str(path)


def test_a_method_with_a_column_of_its_own_is_kept_within_its_budget(own: str, tmp_path: Path) -> None:
    state, words = tmp_path / "model", ["--method", f"{own}:Weighted", "--memory", BUDGET]
    words += [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
    first = ser("learn", state, "--data", write_folder(tmp_path / "one", (0, 1), 0, 40), *words)
    assert first.code == 0, first.err
    second = ser("learn", state, "--data", write_folder(tmp_path / "two", (2,), 0, 40), "--max-drop", 200)
    assert second.code == 0, second.err
    parts = read_parts(Store(state), None)[1]
    row = SIDE * SIDE + 8 + 3 * 8
    assert parts["model"]["capacity"] == REPLAYED // row
    replayed = [one for one in samples_of(parts) if one.kind == "replay"]
    assert len(replayed) == REPLAYED // row
    assert {one.bytes for one in replayed} == {row}
    assert parts["memory"]["columns"]["weights"].shape == (len(replayed), 3)
    gone = next(one.id for one in replayed if one.label == "two")
    forget(Store(state), ids=[gone])
    assert gone not in {one.id for one in samples_of(read_parts(Store(state), None)[1])}


@pytest.mark.parametrize(("method", "beside"), [("er", 8), ("ser", 8 + 4 * 12), ("der", 4 * 12)])
def test_the_first_update_has_as_many_rows_as_its_columns_leave_room_for(
    method: str, beside: int, tmp_path: Path
) -> None:
    """Logits have a column for each of two classes and of ten in reserve."""
    settings = {"learner.method": method, "learner.memory": BUDGET}
    teach(tmp_path / "model", some_digits((0, 1), 0, 60), settings=settings)
    parts = read_parts(Store(tmp_path / "model"), None)[1]
    assert parts["model"]["capacity"] == REPLAYED // (SIDE * SIDE + beside)


def test_a_first_update_that_was_stopped_has_the_same_room_when_it_goes_on(own: str, tmp_path: Path) -> None:
    settings = {"learner.method": f"{own}:Weighted", "learner.memory": BUDGET}
    data = some_digits((0, 1), 0, 40)
    stop_in_the_middle(tmp_path / "stopped", data, settings=settings)
    for name in ("whole", "stopped"):
        assert teach(tmp_path / name, data, settings=settings).version
    whole, stopped = (Store(tmp_path / name).read()[1] for name in ("whole", "stopped"))
    assert_same(whole, stopped)


def test_a_memory_of_another_kind_is_refused(own: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must be a strongreplay\.memory\.Memory with a column"):
        teach(tmp_path / "model", some_digits((0, 1), 0, 20), settings={"learner.method": f"{own}:Listed"})


def test_a_method_that_passes_no_ids_is_refused_at_its_first_step(own: str, tmp_path: Path) -> None:
    settings = {"learner.method": f"{own}:Nameless"}
    with pytest.raises(RunError, match=r"memory\.add\(rows, batch\.ids\)"):
        teach(tmp_path / "model", some_digits((0, 1), 0, 20), settings=settings)
    assert not Store(tmp_path / "model").names()


@pytest.mark.parametrize(("memory", "message"), [("300B", "no room for one sample of 432"), (0, "no room")])
def test_a_budget_without_room_for_one_sample_is_refused(
    memory: int | str, message: str, own: str, tmp_path: Path
) -> None:
    settings = {"learner.method": f"{own}:Weighted", "learner.memory": memory}
    with pytest.raises(ConfigError, match=message):
        teach(tmp_path / "model", some_digits((0, 1), 0, 20), settings=settings)
