"""Kept models with sums that fit and absurd content: one of our errors at every command."""

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.kept_models import make_model, ser, write_folder

from strongreplay.models.manifest import signed
from strongreplay.models.store import Store
from strongreplay.storage.state import pack


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("kept"))


def forge(state: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest in use and sign it again."""
    store = Store(state)
    path = store.path_of(store.current)
    manifest = {key: value for key, value in json.loads(path.read_text()).items() if key != "sum"}
    change(manifest)
    path.write_bytes(signed(manifest))


def about(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["about"].update(changes)


def settings(**changes: Any) -> Callable[[dict[str, Any]], None]:
    """Other values in the part `model`; those are plain and stand in the manifest itself."""

    def change(manifest: dict[str, Any]) -> None:
        pairs = manifest["parts"]["model"]["tree"]["dict"]
        for pair in pairs:
            if pair[0] in changes:
                pair[1] = pack(changes[pair[0]])[0]

    return change


FORGED: dict[str, Callable[[dict[str, Any]], None]] = {
    "about empty": lambda manifest: manifest.update(about={}),
    "lesson a list": about(lesson=[1]),
    "labels a number": about(labels=7),
    "chunk a text": about(chunk="x"),
    "changes a list of numbers": about(changes=[1, 2]),
    "changes with other names": about(changes=[{"label": "a"}]),
    "fresh of texts": about(fresh=[["a", "b", "c"]]),
    "samples of texts": about(
        chunk={"fingerprint": "x", "samples": [["a", "b"]], "learnt": 1, "held_out": 1}
    ),
    "notes a number": about(notes=3),
    "seconds a text": about(seconds="long"),
    "max_drop a text": about(max_drop="x"),
    "no parts": lambda manifest: manifest.update(parts={}),
    "no net": lambda manifest: manifest["parts"].pop("net"),
    "net of the memory": lambda manifest: manifest["parts"].update(net=manifest["parts"]["memory"]),
    "held of the net": lambda manifest: manifest["parts"].update(held=manifest["parts"]["net"]),
    "memory of the net": lambda manifest: manifest["parts"].update(memory=manifest["parts"]["net"]),
    "method of the net": lambda manifest: manifest["parts"].update(method=manifest["parts"]["net"]),
    "capacity 10^7": settings(capacity=10**7),
    "capacity a text": settings(capacity="many"),
    "shape of texts": settings(shape=["a"]),
    "another shape": settings(shape=[3, 7, 7]),
    "labels missing": settings(labels=[]),
    "mean of another length": settings(mean=[0.5] * 9),
    "plan empty": settings(plan={}),
    "plan of lists": settings(plan={"learner": []}),
    "generators empty": settings(generators={}),
    "next_id a text": settings(next_id="x"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORGED)
def test_every_command_says_what_is_wrong(name: str, model: Path, tmp_path: Path) -> None:
    state = tmp_path / "model"
    shutil.copytree(model, state)
    forge(state, FORGED[name])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = write_folder(tmp_path / "data", (0,), 0, 2)
    commands: list[list[object]] = [
        ["learn", state, "--data", data, "--restart"],
        ["predict", state, data],
        ["evaluate", state, "--data", data],
        ["status", state],
        ["diff", state, "v1", "v2"],
        ["history", state],
        ["memory", state, "list"],
    ]
    codes = [ser(*words).code for words in commands]  # a traceback would fail the test
    assert 1 in codes, codes
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 500_000  # kB
    assert ser("rollback", state, "v1").code == 0  # another version is still good
    assert ser("status", state).code == 0


def test_absurd_lines_of_the_history_are_named_and_left_out(model: Path, tmp_path: Path) -> None:
    state = tmp_path / "model"
    shutil.copytree(model, state)
    store = Store(state)
    good = store.acts.lines.read_bytes()
    absurd: list[dict[str, Any]] = [
        {},
        {"when": 7, "act": "learn", "version": "v1"},
        {"when": "now", "act": ["learn"], "version": "v1"},
        {"when": "now", "act": "learn", "version": {"a": 1}},
        {"when": "now", "act": "learn", "version": "../v1"},
    ]
    lines = [signed(line) for line in absurd]
    store.acts.lines.write_bytes(b"\n".join(lines) + b"\n" + good)
    for words in (["history", state], ["status", state], ["memory", state, "list"]):
        assert ser(*words).code == 0
    said = ser("history", state)
    assert said.err.count("not about an act") == len(absurd)


def test_a_model_that_was_not_forged_passes(model: Path, tmp_path: Path) -> None:
    state = tmp_path / "model"
    shutil.copytree(model, state)
    forge(state, lambda manifest: None)
    assert ser("status", state).code == 0
    assert torch.is_tensor(Store(state).read()[1]["held"]["columns"])
