"""Errors in a user's method or net: one line that names its file and line, and the other runs go on."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from support.commands import Ser
from support.repository import in_repository

pytestmark = pytest.mark.slow  # each test starts several processes

METHOD = """
from strongreplay import Method
from beside import divide


class Faulty(Method):
    def __init__(self, net, problem):
        super().__init__()
        self.net = net

    def observe(self, batch, optimizer):
        CODE
"""
NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.fc = nn.Linear(64, classes)

    def forward(self, inputs):
        return self.fc(inputs)  # not flat


def make_net(input_shape, num_classes):
    return Net(num_classes)
"""
BESIDE = "def divide():\n    return 1 / 0\n"
QUICK = ["--set", "train.epochs=1", "--set", "data.tasks=1", "--threads", "1", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "nets.py").write_text(NET)
    return tmp_path


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("return batch.nothing", "mine.py, line 12: AttributeError: 'Batch' object has no attribute"),
        ("return divide()", "beside.py, line 2: ZeroDivisionError: division by zero; fix the file"),
        ("return __import__('json').loads('{')", "mine.py, line 12: JSONDecodeError: "),
        ("return self.net(batch.inputs[:, :, :4])", "mine.py, line 12: RuntimeError: mat1 and mat2"),
        ("open('absent.txt')", "mine.py, line 12: FileNotFoundError: "),
    ],
)
def test_a_fault_in_observe_is_told_in_one_line(code: str, told: str, folder: Path, ser: Ser) -> None:
    (folder / "mine.py").write_text(METHOD.replace("CODE", code))
    said = ser("run", "split-digits", "-m", "mine.py:Faulty,sgd", *QUICK)
    assert said.code == 1
    (line,) = [line for line in said.err.splitlines() if "failed: " in line]
    assert line.startswith(f"split-digits mine.py:Faulty seed 0: failed: {folder}/{told}")
    assert "error: 1 of 2 runs failed; see above" in said.err
    (record,) = (folder / "runs").rglob("seed-0.json")
    assert record.parent.name.startswith("sgd-"), "the other run went on"


def test_a_fault_in_a_net_is_told_in_one_line(folder: Path, ser: Ser) -> None:
    said = ser("run", "split-digits", "-m", "sgd", "--net", "nets.py:make_net", *QUICK)
    assert said.code == 1
    assert f"failed: {folder}/nets.py, line 11: RuntimeError: mat1 and mat2" in said.err


def test_a_users_method_in_processes_gives_what_one_job_gives_and_a_fault_is_told(
    folder: Path, ser: Ser
) -> None:
    shutil.copy(in_repository("examples/er_ace.py"), folder)
    (folder / "mine.py").write_text(METHOD.replace("CODE", "return divide()"))
    words = ["run", "split-digits", "--memory", "20", *QUICK, "-m"]
    said = ser(*words, "er_ace.py:ERACE,mine.py:Faulty", "--jobs", "2", "-o", "two")
    assert said.code == 1
    assert f"Faulty seed 0: failed: {folder}/beside.py, line 2: ZeroDivisionError" in said.err
    assert ser(*words, "er_ace.py:ERACE", "-o", "one").code == 0
    (first,), (second,) = (list((folder / out).rglob("seed-0.json")) for out in ("one", "two"))
    assert first.relative_to(folder / "one") == second.relative_to(folder / "two")
    one, two = (json.loads(path.read_text()) for path in (first, second))
    assert (one["config"], one["results"]) == (two["config"], two["results"])


def test_a_fault_of_ours_keeps_its_traceback(folder: Path, ser: Ser, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("strongreplay.methods.sgd.SGD.observe", fail)
    with pytest.raises(KeyError, match="ours"):
        ser("run", "split-digits", "-m", "sgd", *QUICK)
