"""Methods and nets of a user's own file: settings, identity of the record, what is told on a change."""

import sys
from pathlib import Path

import pytest
import torch

from strongreplay.errors import ConfigError
from strongreplay.runs.config import config_of, resolve
from strongreplay.runs.run import run
from strongreplay.storage.records import record_path, safe_name

METHOD = '''
"""A method of a user's own."""
from pydantic import Field
from torch.nn.functional import cross_entropy
from strongreplay.methods.base import Method, ReplayConfig, descend


class Mine(Method):
    """Plain training with a factor."""

    label = "MINE-1"

    class Config(ReplayConfig):
        factor: float = Field(1.0, gt=0, description="of the loss")

    def __init__(self, net, problem, config):
        super().__init__()
        self.net, self.config = net, config

    def observe(self, batch, optimizer):
        loss = cross_entropy(self.net(batch.inputs), batch.labels)
        return descend(optimizer, {"x": self.config.factor * loss})
'''
NET = """
from torch import nn

def make_net(input_shape, num_classes, hidden: int = 20, bias=True):
    '''One hidden layer.'''
    size = 1
    for side in input_shape:
        size *= side
    layers = nn.Linear(size, hidden, bias), nn.ReLU(), nn.Linear(hidden, num_classes)
    return nn.Sequential(nn.Flatten(), *layers)

def broken(input_shape, num_classes):
    return 1 / 0
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(METHOD)
    (tmp_path / "nets.py").write_text(NET)


QUICK = {"data.tasks": 1, "train.epochs": 1}


def test_the_settings_of_a_users_method_are_checked_and_kept() -> None:
    config = resolve("split-digits", "mine.py:Mine", 30, 0, QUICK | {"method.factor": "2.5"})
    held = config.to_dict()
    assert held["method"] == {"name": "mine.py:Mine", "memory_size": 30, "replay_size": None, "factor": 2.5}
    assert held["code"] == {"method": config.row.source_hash}
    assert config_of(held, config.source) == config
    assert config.source == "defaults of the method; nothing published"
    with pytest.raises(ConfigError, match=r"method\.factor must be > 0\.0, got '-1'"):
        resolve("split-digits", "mine.py:Mine", settings={"method.factor": "-1"})
    with pytest.raises(ConfigError, match=r"unknown setting 'method\.facto'; did you mean 'method\.factor'"):
        resolve("split-digits", "mine.py:Mine", settings={"method.facto": "1"})


def test_built_in_code_leaves_the_configuration_as_it_was() -> None:
    assert "code" not in resolve("split-digits", "ser").to_dict()


@pytest.mark.slow
def test_a_run_tells_the_label_and_the_record_has_a_plain_name(tmp_path: Path) -> None:
    config = resolve("split-digits", "mine.py:Mine", 30, 0, QUICK)
    path = record_path(tmp_path, config.to_dict())
    assert path.parent.name.startswith("Mine-m30-")
    assert run(config).measured["label"] == "MINE-1"
    assert "label" not in run(resolve("split-digits", "sgd", None, 0, QUICK)).measured


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mine.py:ERACE", "ERACE"), ("a/b/mine.py:ERACE", "ERACE"), ("seq-cifar10", "seq-cifar10"),
     ("derpp", "derpp"),     ("folder:../PHOTOS", "folder-..-PHOTOS"), ("../..", "unnamed")],
)  # fmt: skip
def test_names_in_paths_are_safe(name: str, expected: str) -> None:
    assert safe_name(name) == expected


def test_edited_code_is_another_record_and_an_old_state_does_not_go_on_with_it(tmp_path: Path) -> None:
    first = resolve("split-digits", "mine.py:Mine", 30)
    (tmp_path / "mine.py").write_text(METHOD.replace("gt=0", "ge=0"))
    second = resolve("split-digits", "mine.py:Mine", 30)
    assert record_path(tmp_path, first.to_dict()) != record_path(tmp_path, second.to_dict())
    assert first.row.source_hash != second.row.source_hash, "a config keeps the version it was made with"
    held = first.to_dict() | {"code": {"method": "000000000000"}}
    with pytest.raises(ConfigError, match=r"mine\.py was edited: this run is of version 000000000000"):
        config_of(held, "")
    (tmp_path / "mine.py").unlink()
    with pytest.raises(ConfigError, match=r"no file mine\.py in "):
        config_of(held, "")


@pytest.mark.slow
def test_a_users_net_has_its_own_options_and_is_part_of_the_identity() -> None:
    config = resolve("split-digits", "er", 30, 0, QUICK | {"net.name": "nets.py:make_net", "net.hidden": "7"})
    assert config.net.options == {"hidden": 7, "bias": True}
    assert set(config.code) == {"net"}
    assert config_of(config.to_dict(), config.source) == config
    first, second = run(config), run(config)
    assert first.results == second.results
    state = torch.default_generator.get_state()
    run(config)
    assert torch.equal(state, torch.default_generator.get_state())


@pytest.mark.slow
def test_a_method_that_needs_features_takes_a_users_net() -> None:
    settings = QUICK | {"net.name": "nets.py:make_net", "net.head": "3"}
    record = run(resolve("split-digits", "icarl", 30, 0, settings))
    assert record.config["net"]["head"] == "3"
    found = run(resolve("split-digits", "icarl", 30, 0, QUICK | {"net.name": "nets.py:make_net"}))
    assert found.results == record.results, "where there is one layer to find, it need not be named"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"net.name": "nets.py:broken"},
            r"nets\.py:broken cannot be built: .*nets\.py, line 13: ZeroDivisionError",
        ),
        ({"net.name": "nets.py:make_net", "net.head": "fc"}, r"net\.head=fc is no linear layer"),
        (
            {"net.name": "nets.py:make_net", "net.width": 3},
            r"net\.width is not an option of nets\.py:make_net",
        ),
        ({"net.name": "nets.py:nothing"}, r"unknown net 'nothing'"),
        ({"net.name": "mlp", "net.head": "fc"}, r"net\.head is not an option of mlp"),
    ],
)
def test_what_is_wrong_with_a_net_is_told(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(resolve("split-digits", "er", 30, 0, QUICK | settings))


def test_a_class_that_is_no_method_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("class Thing: pass\ndef function(): pass\n")
    with pytest.raises(
        ConfigError, match=r"other\.py:Thing must be a class derived from strongreplay\.Method"
    ):
        resolve("split-digits", "other.py:Thing")
    with pytest.raises(ConfigError, match="got a function"):
        resolve("split-digits", "other.py:function")
