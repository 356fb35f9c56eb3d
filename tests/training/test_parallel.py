"""Several ranks mean the same as one process: real processes that exchange tensors through gloo."""

import os
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.compare import assert_same
from support.ranks import distance, in_ranks, load, save
from support.steps import auxiliary_for
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import first_tasks
from strongreplay.errors import ConfigError, RunError
from strongreplay.methods import METHODS
from strongreplay.nets import build_net, seeded_init
from strongreplay.nets.features import name_head
from strongreplay.protocol import derive_generator
from strongreplay.runs.config import RunConfig, resolve
from strongreplay.runs.run import Interrupted, StreamTrainer
from strongreplay.testing import NUM_CLASSES, MethodCase, small_stream
from strongreplay.training.engine import train_task
from strongreplay.training.events import Listener, Position
from strongreplay.training.parallel import LostRank, Ranks, device_of, join_file
from strongreplay.training.shared_rows import share_rows

CPU = torch.device("cpu")
ON_MLP = [name for name, row in METHODS.items() if row.net is None]
# In float64, with batch norm: sums of gradients by backward and by autograd.grad, per-sample gradients,
# averaged copies, an old net that normalises by the batch, dropout, layers that are looked at, layers that
# are made later.
IN_DOUBLE = [("resnet18", name) for name in ("ser", "gem", "oewc", "clser", "co2l")]
IN_DOUBLE += [("lvt", "lvt"), ("mlp", "pass"), ("mlp", "abd")]
ON_CNN = "er-ace xder mir ewc rwalk scommer pass dernet abd dgr dmc gd foster pnn dri"
IN_DOUBLE += [("cnn", name) for name in ON_CNN.split()]
# Co2L multiplies rounding, in one process too; docs/devices.md says by how much.
BOUNDS = {"resnet18 co2l": 1e-7}
QUICK = {
    "memory_size": 30, "probe_epochs": 2, "bic_epochs": 2, "head_epochs": 2, "compress_epochs": 2,
    "anchor_steps": 2, "generator_width": 8, "code_size": 20,
}  # fmt: skip


def quick_settings(method: str) -> dict[str, Any]:
    return {key: value for key, value in QUICK.items() if key in METHODS[method].config.model_fields}


def config_for(method: str, **settings: Any) -> RunConfig:
    """Two tasks of split-digits; batches of 63 rows divide by three, but not by two."""
    small = {"data.tasks": 2, "train.epochs": 1, "train.first_epochs": None, "train.batch_size": 63}
    of_method = {f"method.{key}": value for key, value in quick_settings(method).items()}
    return resolve(
        "split-digits",
        method,
        settings=small | {"net.width": 16} | auxiliary_for(method) | of_method | settings,
    )


def train(config: RunConfig, ranks: Ranks | None = None) -> dict[str, Any]:
    trainer = StreamTrainer(config, None, CPU, ranks=ranks)
    trainer.go()
    scores = {name: table.rows for name, table in trainer.scores.items()}
    return {"state": dict(trainer.method.state_dict()), "terms": trainer.terms, "scores": scores}


def in_double(images: Tensor) -> Tensor:
    return images.double() / 255 - 0.3


def enlarged(images: Tensor) -> Tensor:
    """So large that batch norm has many values of each channel in the last stage."""
    return in_double(images).repeat_interleave(3, -1).repeat_interleave(3, -2)


def train_in_double(net_name: str, name: str, ranks: Ranks | None = None) -> dict[str, Any]:
    """Two tasks in batches of 27, 27 and 26 rows. At a higher rate, training itself multiplies rounding."""
    view, side = (enlarged, 18) if net_name in ("resnet18", "lvt") else (in_double, 6)

    def net() -> nn.Module:
        width = 4 if view is enlarged else 16
        made = build_net(net_name, (1, side, side), NUM_CLASSES, derive_generator(0, "net"), width=width)
        return share_rows(made.double(), NUM_CLASSES, ranks or Ranks())

    stream = replace(small_stream(), train_view=lambda generator: view, test_view=view)
    method = MethodCase(METHODS[name], quick_settings(name), net, stream).make().double()
    order = derive_generator(0, "order")
    for task in first_tasks(stream, 2):
        optimizer = torch.optim.SGD(method.net.parameters(), lr=0.01)
        train_task(method, task, view, optimizer, epochs=1, batch_size=27, generator=order)
    return dict(method.state_dict())


class AsksAt(Listener):
    """Asks for a stop after a step."""

    def __init__(self, step: int) -> None:
        self.step, self.done = step, 0

    def on_step(self, position: Position, terms: Any) -> None:
        self.done = position.steps_done

    def wants_stop(self) -> bool:
        return 0 < self.step <= self.done


def stop_by_the_second(ranks: Ranks, folder: Path) -> None:
    """Only the second rank wants a stop; the first one never does."""
    listener = AsksAt(0 if ranks.is_first else 3)
    config = config_for("er", **{"train.epochs": 100})  # longer than the time between two questions
    trainer = StreamTrainer(config, None, CPU, [listener], ranks=ranks)
    with pytest.raises(Interrupted) as caught:
        trainer.go()
    save(folder, "stopped", ranks, [trainer.steps_done, str(caught.value)])


def train_all(ranks: Ranks, folder: Path) -> None:
    for name in ON_MLP:
        save(folder, name, ranks, train(config_for(name), ranks))
    for net, name in IN_DOUBLE:
        save(folder, f"{net} {name}", ranks, train_in_double(net, name, ranks))
    save(folder, "bf16", ranks, train(config_for("ser", **{"train.precision": "bf16"}), ranks)["state"])
    stop_by_the_second(ranks, folder)


class OwnNet(nn.Module):
    """A user's net without a body of its own: batch norm, dropout, and a head at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm = nn.Linear(12, 20), nn.BatchNorm1d(20)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(20, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.last(self.drop(self.norm(self.wide(inputs)).relu()))
        return logits


def step_through(net: nn.Module, num_rows: int) -> list[Tensor]:
    """Outputs, and gradients of weights and inputs, of two passes with one loss."""
    inputs = torch.rand(num_rows, 12, generator=torch.Generator().manual_seed(1)).double().requires_grad_()
    labels = torch.arange(num_rows) % 5
    with seeded_init(torch.Generator().manual_seed(3)):  # the dropout draws from the global generator
        logits = net(inputs)
        loss = cross_entropy(logits, labels) + cross_entropy(net(2 * inputs), labels)
    parts = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
    loss.backward()
    assert inputs.grad is not None
    kept = [value.detach() for value in net.state_dict().values()]
    return [
        logits.detach(),
        inputs.grad,
        *parts,
        *(p.grad for p in net.parameters() if p.grad is not None),
        *kept,
    ]


def own_net(ranks: Ranks | None = None) -> nn.Module:
    with seeded_init(torch.Generator().manual_seed(2)):
        net = OwnNet().double()
    return deepcopy(share_rows(net, 5, ranks)) if ranks else net


def lose_the_last(ranks: Ranks, folder: Path) -> None:
    """The others notice that a rank is gone, and no thread of theirs is left that could abort their exit."""
    before = len(os.listdir("/proc/self/task"))
    trio, _ = join_file(folder / "lost", ranks.rank, ranks.size, "cpu")
    trio.wait_for_all()
    assert len(os.listdir("/proc/self/task")) > before
    if ranks.rank == ranks.size - 1:
        trio.leave()
    else:
        with pytest.raises(LostRank, match="another process of this run has ended"):
            trio.wait_for_all()
    assert len(os.listdir("/proc/self/task")) == before


def train_on_three(ranks: Ranks, folder: Path) -> None:
    lose_the_last(ranks, folder)
    for name in ("ser", "hal"):
        save(folder, f"three {name}", ranks, train(config_for(name, **{"train.batch_size": 64}), ranks))
    sent = []
    for num_rows in (5, 6, 7, 9):
        before = ranks.bytes_sent
        apart = distance(step_through(own_net(), num_rows), step_through(own_net(ranks), num_rows))
        sent.append((apart, ranks.bytes_sent - before))
    save(folder, "own net", ranks, sent)
    with pytest.raises(RunError, match="task 1: 1 of 3 entries differ between the 3 ranks, first /a"):
        ranks.expect_equal("task 1", {"a": torch.full((3,), ranks.rank), "b": torch.ones(2)})


def work_of_three(ranks: Ranks, folder: Path) -> None:
    """What three ranks do, and then two of them: processes start once, which takes longer than most work."""
    train_on_three(ranks, folder)
    if ranks.rank < 2:
        pair, _ = join_file(folder / "pair", ranks.rank, 2, "cpu")
        train_all(pair, folder)
        pair.wait_for_all()


@pytest.mark.slow
def test_every_method_on_two_or_three_ranks_means_the_same_as_in_one_process(tmp_path: Path) -> None:
    assert in_ranks(3, tmp_path, work_of_three) == [0, 0, 0]
    check_two(tmp_path)
    check_three(tmp_path)


def same_on_all(folder: Path, name: str, size: int) -> Any:
    """What the first of so many ranks found; the others found the same bits, memory included."""
    first, *others = (load(folder, name, rank) for rank in range(size))
    for other in others:
        assert_same(first, other)
    return first


def check_two(folder: Path) -> None:
    both = partial(same_on_all, folder, size=2)
    apart = {name: distance(train(config_for(name)), both(name)) for name in ON_MLP}
    assert {name: far for name, far in apart.items() if far > 1e-6} == {}
    apart = {
        f"{net} {name}": distance(train_in_double(net, name), both(f"{net} {name}"))
        for net, name in IN_DOUBLE
    }
    assert {name: far for name, far in apart.items() if far > BOUNDS.get(name, 1e-12)} == {}
    alone = train(config_for("ser", **{"train.precision": "bf16"}))["state"]
    assert distance(alone["net.head.weight"], both("bf16")["net.head.weight"]) < 1e-2
    steps, text = both("stopped")
    assert steps >= 3
    assert text.startswith(f"stopped after step {steps} of ")  # the same on both


def check_three(folder: Path) -> None:
    for name in ("ser", "hal"):
        alone = train(config_for(name, **{"train.batch_size": 64}))  # does not divide by three
        assert distance(alone, same_on_all(folder, f"three {name}", 3)) < 1e-6
    whole, *shared = load(folder, "own net", 2)
    assert whole == (0.0, 0)  # five rows are too few for three ranks: each computes all, and sends nothing
    for apart, sent in shared:
        assert apart < 1e-12
        assert sent > 0


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Sequential(nn.Linear(12, 5), nn.Linear(5, 5)), "several linear layers have an output"),
        (lambda: nn.Linear(12, 4), "no linear layer has an output for each of 5 classes"),
    ],
)
def test_a_net_whose_features_are_unknown_is_refused(make: Callable[[], nn.Module], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"several devices need to know where the features.*{reason}"):
        share_rows(make(), 5, Ranks(0, 2))


def test_a_head_whose_weights_the_body_uses_is_refused() -> None:
    net = nn.Sequential()
    net.body, net.last = nn.Linear(5, 5), nn.Linear(5, 5)
    net.body.weight = net.last.weight
    with pytest.raises(ConfigError, match=r"body\.weight is also a weight of last"):
        share_rows(name_head(net, "last"), 5, Ranks(0, 2))


def test_one_rank_changes_nothing() -> None:
    net = OwnNet()
    assert share_rows(net, 5, Ranks()) is net
    assert type(net) is OwnNet


def test_a_rank_needs_a_device_of_its_own() -> None:
    assert device_of("cpu", 7) == CPU
    with pytest.raises(ConfigError, match="device 'cpu:0' is one device; several ranks need --device cuda"):
        device_of("cpu:0", 0)
