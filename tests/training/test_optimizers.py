"""Optimisers made from settings: kinds, groups, a limit to the gradient, momentum that is carried over."""

import subprocess
import sys
from inspect import unwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_stream import make_net, make_problem, weights
from torch import Tensor
from torch.optim import SGD, Adam, AdamW

from strongreplay.data.streams import Stream
from strongreplay.errors import ConfigError
from strongreplay.methods.gradients import is_plain
from strongreplay.runs.config import resolve
from strongreplay.runs.run import run
from strongreplay.storage.records import fingerprint
from strongreplay.training.optimizers import carry_over, load_state, make_optimizer, set_rate
from strongreplay.training.settings import TrainConfig


def parameter(*values: float) -> Tensor:
    return torch.tensor(values, requires_grad=True)


@pytest.mark.parametrize(
    ("settings", "kind", "group"),
    [
        ({}, SGD, {"lr": 0.1, "momentum": 0.0, "nesterov": False}),
        ({"optimizer": "sgd", "momentum": 0.9, "nesterov": True}, SGD, {"momentum": 0.9, "nesterov": True}),
        ({"optimizer": "adam", "lr": 0.01}, Adam, {"lr": 0.01, "betas": (0.9, 0.999)}),
        (
            {"optimizer": "adamw", "betas": (0.8, 0.9), "weight_decay": 0.2},
            AdamW,
            {"betas": (0.8, 0.9), "weight_decay": 0.2},
        ),
    ],
)
def test_settings_choose_the_optimiser(
    settings: dict[str, Any], kind: type[torch.optim.Optimizer], group: dict[str, Any]
) -> None:
    made = make_optimizer([parameter(1.0)], TrainConfig(**settings))
    assert isinstance(made, kind)
    assert type(made).__name__ == kind.__name__
    assert unwrap(type(made).step) is unwrap(kind.step)
    assert {key: made.param_groups[0][key] for key in group} == group


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train.optimizer": "adam", "train.momentum": 0.9}, "train.momentum is of sgd"),
        ({"train.betas": "0.9,0.99"}, "train.betas needs train.optimizer=adam or adamw"),
        ({"train.optimizer": "adam", "train.betas": "0.9,1"}, "train.betas must be two numbers"),
        ({"train.clip_norm": 0}, "train.clip_norm must be > 0"),
        ({"train.optimizer": "lion"}, "train.optimizer must be 'sgd', 'adam' or 'adamw'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("split-digits", "sgd", settings=settings)


def test_the_name_of_a_record_stays_where_nothing_of_this_is_set() -> None:
    config = resolve("split-digits", "ser", 20).to_dict()
    assert not {"optimizer", "betas", "clip_norm"} & config["train"].keys()
    other = resolve("split-digits", "ser", 20, settings={"train.optimizer": "adam"}).to_dict()
    assert other["train"]["optimizer"] == "adam"
    assert fingerprint(config) != fingerprint(other)


def test_a_gradient_longer_than_the_limit_is_shortened_before_the_step() -> None:
    first, second = parameter(0.0), parameter(0.0)
    made = make_optimizer([first, second], TrainConfig(lr=1.0, clip_norm=1.0))
    for gradient, step in ((3.0, 0.6), (0.3, 0.3)):
        before = first.item()
        first.grad, second.grad = torch.tensor([gradient]), torch.tensor([4 * gradient / 3])
        made.step()
        assert before - first.item() == pytest.approx(step, rel=1e-4)
    assert not is_plain(made)
    assert is_plain(make_optimizer([first], TrainConfig()))


def test_a_group_scales_the_rate() -> None:
    groups = [{"params": [parameter(1.0)]}, {"params": [parameter(1.0)], "lr_scale": 0.5}]
    made = make_optimizer(groups, TrainConfig(lr=0.2))
    assert [group["lr"] for group in made.param_groups] == [0.2, 0.1]
    set_rate(made, 0.4)
    assert [group["lr"] for group in made.param_groups] == [0.4, 0.2]


def test_momentum_is_carried_over_to_parameters_that_stay() -> None:
    old, new, train = parameter(1.0), parameter(1.0), TrainConfig(momentum=0.9)
    before = make_optimizer([old], train)
    old.grad = torch.ones(1)
    before.step()
    after = make_optimizer([old, new], train)
    carry_over(before, after)
    assert after.state[old]["momentum_buffer"].item() == 1.0
    assert new not in after.state


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_run_learns_with_it_and_goes_on_with_it(optimizer: str, tmp_path: Any) -> None:
    settings = {
        "data.tasks": 2, "train.epochs": 2, "train.lr": 0.003, "train.optimizer": optimizer,
        "train.clip_norm": 1.0, "train.keep_momentum": True,
    }  # fmt: skip
    from strongreplay.testing.device import StopAfter
    from strongreplay.training.trainer import Interrupted

    config = resolve("split-digits", "er", 30, settings=settings)
    straight = run(config)
    for steps in (7, 60):  # in the first task, and in the second
        with pytest.raises(Interrupted):
            run(config, out=tmp_path, resume=True, listeners=[StopAfter(steps)])
    assert run(config, out=tmp_path, resume=True).results == straight.results
    accuracy = straight.score("class-il", "average_accuracy")
    assert accuracy is not None
    assert accuracy > 60


def test_a_method_takes_steps_with_any_of_them(stream: Stream) -> None:
    from strongreplay.methods.sgd import SGD as Plain
    from strongreplay.protocol import Batch

    for name in ("sgd", "adam", "adamw"):
        method = Plain(make_net(), make_problem(stream))
        before = weights(method.net)
        optimizer = make_optimizer(method.net.parameters(), TrainConfig(optimizer=name))
        train = stream[0].train
        method.observe(
            Batch(torch.arange(80), train.inputs, stream.test_view(train.inputs), train.labels), optimizer
        )
        assert not torch.equal(before, weights(method.net))


def test_a_state_that_does_not_fit_is_refused_when_it_is_loaded() -> None:
    made = make_optimizer([parameter(1.0, 2.0)], TrainConfig(lr=0.1, momentum=0.9))
    first = made.param_groups[0]["params"][0]
    first.grad = torch.ones(2)
    made.step()
    right = made.state_dict()

    def changed(group: dict[str, Any], momentum: object) -> dict[str, Any]:
        return {
            "state": {0: {"momentum_buffer": momentum}},
            "param_groups": [right["param_groups"][0] | group],
        }

    load_state(made, changed({"lr": 1}, torch.zeros(2)))
    assert made.param_groups[0]["lr"] == 1
    for wrong in (
        changed({"momentum": "x"}, torch.zeros(2)),
        changed({"nesterov": 1}, torch.zeros(2)),
        changed({}, torch.zeros(3)),
        changed({}, "x"),
    ):
        with pytest.raises(ValueError, match="optimiser: "):
            load_state(made, wrong)


def test_training_does_not_import_the_compiler_and_takes_the_same_steps(tmp_path: Path) -> None:
    script = """
import sys, torch
from strongreplay.training.optimizers import make_optimizer
from strongreplay.training.settings import TrainConfig
for name, kind in (("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
    ours, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, 8)) for _ in range(2))
    optimizer = make_optimizer([ours], TrainConfig(optimizer=name, lr=0.1, weight_decay=0.01))
    optimizer.load_state_dict(optimizer.state_dict())
    for _ in range(3):
        optimizer.zero_grad()
        (ours**2).sum().backward()
        optimizer.step()
    if name == "sgd":
        assert "torch._dynamo" not in sys.modules
    plain = kind([theirs], lr=0.1, weight_decay=0.01)
    for _ in range(3):
        plain.zero_grad()
        (theirs**2).sum().backward()
        plain.step()
    assert torch.equal(ours, theirs), name
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, cwd=tmp_path)
