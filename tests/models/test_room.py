"""Room in a memory: a row's bytes are those of its columns, whatever columns a method keeps."""

from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import torch
from conftest import assert_same
from kept_models import SIDE, some_digits, stop_in_the_middle, teach
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.errors import ConfigError, RunError
from strongreplay.memory import Memory
from strongreplay.methods import METHODS, Method, MethodConfig
from strongreplay.methods.base import descend
from strongreplay.models.erasure import forget
from strongreplay.models.memory_view import read_parts, samples_of
from strongreplay.models.store import Store
from strongreplay.protocol import Batch, Problem, Terms

BUDGET, REPLAYED = "20kB", 16_000  # four fifths of the budget


class Sample(NamedTuple):
    images: Tensor
    labels: Tensor
    weights: Tensor  # (N, 3) float64: a column that no method of the package has


class WeightedConfig(MethodConfig):
    memory_size: int = 10


class Weighted(Method):
    """Replays samples by a weight of its own."""

    passes_ids = True

    def __init__(self, net: nn.Module, problem: Problem, config: WeightedConfig) -> None:
        super().__init__()
        self.net, self.view = net, problem.train_view
        self.memory = Memory(Sample, config.memory_size, problem.generator("memory"))

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        terms = {"current": cross_entropy(self.net(batch.inputs), batch.labels)}
        if len(self.memory):
            replayed = self.memory.sample(len(batch))
            losses = cross_entropy(self.net(self.view(replayed.images)), replayed.labels, reduction="none")
            terms["replay"] = (losses * replayed.weights.mean(1).to(losses.dtype)).mean()
        terms = descend(optimizer, terms)
        weights = torch.ones(len(batch), 3, dtype=torch.float64)
        self.memory.add(Sample(batch.images, batch.labels, weights), batch.ids if self.passes_ids else None)
        return terms


class Nameless(Weighted):
    passes_ids = False


@pytest.fixture(autouse=True)
def own_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    class Row:
        config, has_memory, grows, scenarios = WeightedConfig, True, True, ("class-il",)

        def __init__(self, build: type[Method]) -> None:
            self.build = build

    for name, build in (("weighted", Weighted), ("nameless", Nameless)):
        monkeypatch.setitem(cast(dict[str, Any], METHODS), name, Row(build))


def test_a_method_with_a_column_of_its_own_is_kept_within_its_budget(tmp_path: Path) -> None:
    state = tmp_path / "model"
    settings = {"learner.method": "weighted", "learner.memory": BUDGET, "learner.store": "raw"}
    assert teach(state, some_digits((0, 1), 0, 40), settings=settings).version
    assert teach(state, some_digits((2,), 0, 40), max_drop=200.0).version
    parts = read_parts(Store(state), None)[1]
    row = SIDE * SIDE + 8 + 3 * 8
    assert parts["model"]["capacity"] == REPLAYED // row
    replayed = [one for one in samples_of(parts) if one.kind == "replay"]
    assert len(replayed) == REPLAYED // row
    assert {one.bytes for one in replayed} == {row}
    assert parts["memory"]["columns"]["weights"].shape == (len(replayed), 3)
    gone = next(one.id for one in replayed if one.label == 2)
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


def test_a_first_update_that_was_stopped_has_the_same_room_when_it_goes_on(tmp_path: Path) -> None:
    settings, data = {"learner.method": "weighted", "learner.memory": BUDGET}, some_digits((0, 1), 0, 40)
    stop_in_the_middle(tmp_path / "stopped", data, settings=settings)
    for name in ("whole", "stopped"):
        assert teach(tmp_path / name, data, settings=settings).version
    whole, stopped = (Store(tmp_path / name).read()[1] for name in ("whole", "stopped"))
    assert_same(whole, stopped)


def test_a_method_that_passes_no_ids_is_refused_at_its_first_step(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"memory\.add\(rows, batch\.ids\)"):
        teach(tmp_path / "model", some_digits((0, 1), 0, 20), settings={"learner.method": "nameless"})
    assert not Store(tmp_path / "model").names()


@pytest.mark.parametrize(("memory", "message"), [("300B", "no room for one sample of 432"), (0, "no room")])
def test_a_budget_without_room_for_one_sample_is_refused(
    memory: int | str, message: str, tmp_path: Path
) -> None:
    settings = {"learner.method": "weighted", "learner.memory": memory}
    with pytest.raises(ConfigError, match=message):
        teach(tmp_path / "model", some_digits((0, 1), 0, 20), settings=settings)
