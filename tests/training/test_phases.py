"""Phases: results equal to those of version 0.1, stops inside every phase, and what a phase may ask for."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.compare import assert_same
from support.processes import in_a_process
from support.rounding import machine_kind
from support.tiny_stream import make_net, make_problem, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.data.streams import Stream
from strongreplay.errors import RunError
from strongreplay.methods.base import MAIN, Method, Phase, descend
from strongreplay.methods.sgd import SGD
from strongreplay.nets import Classifier
from strongreplay.protocol import Batch, Split, Task, Terms
from strongreplay.runs.config import RunConfig, resolve
from strongreplay.runs.run import run, state_folder
from strongreplay.storage.state import Tree, read_newest
from strongreplay.training.engine import train_task
from strongreplay.training.events import Listener, Position
from strongreplay.training.settings import TrainConfig
from strongreplay.training.trainer import Trainer

sys.path.append(str(Path(__file__).parents[1] / "fixtures"))
from write_phases import CASES, FILE, outcome

WRITTEN = json.loads(FILE.read_text()).get(machine_kind())
SMALL = {"data.tasks": 2, "train.epochs": 1, "train.batch_size": 64, "net.width": 16}
IN_PHASES: dict[str, dict[str, Any]] = {
    "lwf": {"method.warmup_epochs": 2},
    "ert": {"method.bic_epochs": 3, "method.bic_batch_size": 8},
    "hal": {"method.finetune_steps": 3, "method.anchor_steps": 4},
    "gd": {"method.head_epochs": 2, "data.auxiliary": "digits", "data.tasks": 3},
    "co2l": {"method.probe_epochs": 3, "method.probe_batch_size": 64},
    "dernet": {"method.warmup_epochs": 2, "method.head_epochs": 3, "data.tasks": 3},
    "foster": {"method.compress_epochs": 3, "data.tasks": 3},
    "dmc": {
        "method.student_epochs": 3,
        "method.auxiliary_size": 100,
        "data.auxiliary": "digits",
        "data.tasks": 3,
    },
    "dri": {"method.generator": "gan", "method.gan_steps": 5, "data.tasks": 3},
    "abd": {"method.generator_steps": 5},
}


@pytest.mark.slow
@pytest.mark.skipif(WRITTEN is None, reason="another processor or torch rounds differently")
@pytest.mark.parametrize("name", CASES)
def test_runs_come_to_what_version_0_1_came_to(name: str) -> None:
    assert outcome(*CASES[name]) == WRITTEN[name]


# Stops


class Phases(Listener):
    """Writes down the phases, and kills the process after a step of one of them."""

    def __init__(self, die_in: str = "", at: int = 0) -> None:
        self.names, self.die_in, self.left = list[str](), die_in, at

    def on_phase(self, task: int, phase: str) -> None:
        self.names.append(phase)

    def on_step(self, position: Position, terms: Terms) -> None:
        if position.phase == self.die_in:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def config_for(method: str) -> RunConfig:
    memory = {} if method in ("lwf", "dmc", "abd") else {"method.memory_size": 30}
    return resolve("split-digits", method, settings=SMALL | memory | IN_PHASES[method])


def go(config: RunConfig, out: Path, *listeners: Listener) -> Any:
    return run(
        config, out=out, checkpoint_every="1", resume=True, keep_state=True, listeners=listeners
    ).results


def final_state(config: RunConfig, out: Path) -> Tree:
    found = read_newest(state_folder(out, config))
    assert found is not None
    return {key: value for key, value in found.tree.items() if key not in ("started", "measured")}


@pytest.mark.slow
@pytest.mark.parametrize("method", IN_PHASES)
def test_a_run_killed_inside_any_phase_goes_on_to_the_bit(method: str, tmp_path: Path) -> None:
    config, seen = config_for(method), Phases()
    straight = go(config, tmp_path / "straight", seen)
    others = list(dict.fromkeys(name for name in seen.names if name != MAIN))
    assert others
    out = tmp_path / "killed"
    for name in (*others, MAIN):
        for at in (1, 2):  # the second time from a state inside the phase
            listener = Phases(name, at)
            code = in_a_process(lambda listener=listener: go(config, out, listener))  # type: ignore[misc]
            assert code == -signal.SIGKILL, f"{name}, {at}"
    assert json.dumps(go(config, out)) == json.dumps(straight)
    assert_same(final_state(config, tmp_path / "straight"), final_state(config, out))


# What a phase may ask for


class Staged(Method):
    """A main phase, then one that trains the head alone on chosen samples, by groups and with Adam."""

    net: Classifier

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()
        self.shown: list[int] = []
        self.begun = 0

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        return descend(optimizer, {"loss": cross_entropy(self.net(batch.inputs), batch.labels)})

    def count(self, batch: Batch, optimizer: Optimizer) -> Terms:
        assert isinstance(optimizer, torch.optim.Adam)
        assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.05]
        self.shown += batch.labels.tolist()
        return self.observe(batch, optimizer)

    def begin(self) -> None:
        self.begun += 1

    def phases(self, task: Task) -> list[Phase]:
        head = self.net.head
        groups = [{"params": [head.weight]}, {"params": [head.bias], "lr_scale": 0.5}]
        second = Phase(
            "balance",
            2,
            self.count,
            data=lambda: task.train.take(torch.arange(8)),
            parameters=groups,
            optimizer=lambda given: torch.optim.Adam(given, lr=7.0),
            rate=lambda epoch, part: 0.1,
            batch_size=3,
            weights=torch.tensor([1.0] + [0.0] * 7),
            begin=self.begin,
        )
        return [Phase(MAIN, None, self.observe), second]


def make_trainer(method: Method, stream: Stream, listeners: list[Listener], **train: Any) -> Trainer:
    settings = TrainConfig(**{"lr": 0.1, "batch_size": 32} | train)
    generators = {"order": torch.Generator().manual_seed(0)}
    view = stream.test_view
    return Trainer(method, view, view, settings, generators, listeners=listeners, num_tasks=len(stream))


def test_a_phase_has_its_own_data_order_parameters_optimiser_and_rate(stream: Stream) -> None:
    method, seen = Staged(), Phases()
    body = weights(method.net.body)
    terms = make_trainer(method, stream, [seen], epochs=3).learn(stream[0])
    assert seen.names == [MAIN, "balance"]
    assert len(terms) == 3  # a record keeps those of the main phase
    assert method.shown == [int(stream[0].train.labels[0])] * 16
    assert method.begun == 1
    assert not torch.equal(body, weights(method.net.body))
    trained, plain = weights(method.net.body), Staged()
    plain.phases = lambda task: Method.phases(plain, task)  # type: ignore[method-assign]
    make_trainer(plain, stream, [], epochs=3).learn(stream[0])
    assert torch.equal(trained, weights(plain.net.body))
    assert not torch.equal(method.net.head.weight, plain.net.head.weight)


def test_phases_with_one_name_are_refused(stream: Stream) -> None:
    method = SGD(make_net(), make_problem(stream))
    method.phases = lambda task: [Phase(MAIN, 1, method.observe)] * 2  # type: ignore[method-assign]
    with pytest.raises(RunError, match=r"SGD.phases: names must differ, got main, main"):
        make_trainer(method, stream, []).learn(stream[0])


def test_a_phase_without_samples_has_no_step_but_begins(stream: Stream) -> None:
    method, begun = SGD(make_net(), make_problem(stream)), list[bool]()
    nothing = Split(torch.empty(0, 1, 6, 6), torch.empty(0, dtype=torch.int64))

    def never(batch: Batch, optimizer: Optimizer) -> Terms:
        raise AssertionError("no batch was expected")

    empty = Phase("empty", 3, never, data=nothing, begin=lambda: begun.append(True))
    method.phases = lambda task: [empty, Phase(MAIN, None, method.observe)]  # type: ignore[method-assign]
    assert len(make_trainer(method, stream, []).learn(stream[0])) == 1
    assert begun == [True]


def test_frozen_parts_of_a_net_stay_frozen_in_the_main_phase(stream: Stream) -> None:
    method = SGD(make_net(), make_problem(stream))
    body: nn.Module = method.net.body  # type: ignore[assignment]
    body.requires_grad_(False)
    before = weights(body)
    make_trainer(method, stream, []).learn(stream[0])
    assert torch.equal(before, weights(body))
    assert not any(parameter.requires_grad for parameter in body.parameters())


def test_train_task_trains_all_phases(stream: Stream) -> None:
    method = Staged()
    head: Tensor = method.net.head.weight.detach().clone()
    history = train_task(
        method, stream[0], stream.test_view, torch.optim.SGD(method.net.parameters(), lr=0.1), epochs=1,
        batch_size=32, generator=torch.Generator(),
    )  # fmt: skip
    assert len(history) == 1
    assert len(method.shown) == 16
    assert not torch.equal(head, method.net.head.weight)
