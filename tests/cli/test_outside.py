"""Methods and nets outside the package, from the command line: run, killed, resumed, compared, reported."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.processes import SER, kill_at_first_checkpoint, run_ser
from support.repository import in_repository

RUN = ["run", "split-digits", "-m", "er_ace.py:ERACE", "--memory", "30", "--threads", "1", "--device", "cpu"]


def ser(folder: Path, *words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A package that is installed in `path` needs a new process."""
    if path is None:
        return run_ser(folder, *words)
    places = [os.environ.get("PYTHONPATH", ""), str(path)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))}
    return subprocess.run([*SER, *words], capture_output=True, text=True, cwd=folder, timeout=240, env=env)


def result_of(folder: Path, out: str) -> dict[str, object]:
    (path,) = (folder / out).rglob("seed-0.json")
    found: dict[str, object] = json.loads(path.read_text())["results"]
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the example that was killed and resumed, and one that was not."""
    folder = tmp_path_factory.mktemp("outside")
    shutil.copy(in_repository("examples/er_ace.py"), folder)
    whole = ser(folder, *RUN, "--set", "train.epochs=5", "-o", "whole")
    assert whole.returncode == 0, whole.stderr
    kill_at_first_checkpoint(folder, "out", *RUN, "--set", "train.epochs=5", "--checkpoint-every", "20")
    return folder


@pytest.mark.slow
def test_a_killed_run_of_a_users_method_ends_as_if_it_had_never_stopped(finished: Path) -> None:
    source = (finished / "er_ace.py").read_text()
    (finished / "er_ace.py").write_text(source + "\n# edited\n")
    edited = ser(finished, "resume", "out")
    assert edited.returncode == 2
    assert "er_ace.py was edited: this run is of version" in edited.stderr
    assert "Traceback" not in edited.stderr
    elsewhere = ser(finished / "out", "resume", ".")
    assert elsewhere.returncode == 2
    assert "no file er_ace.py in" in elsewhere.stderr
    (finished / "er_ace.py").write_text(source)
    resumed = ser(finished, "resume", "out")
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming after step" in resumed.stderr
    assert result_of(finished, "out") == result_of(finished, "whole")


@pytest.mark.slow
def test_it_is_recorded_under_a_plain_name_and_found_again(finished: Path) -> None:
    (path,) = (finished / "whole").rglob("seed-0.json")
    assert path.parent.name.startswith("ERACE-m30-")
    record = json.loads(path.read_text())
    assert record["config"]["method"]["name"] == "er_ace.py:ERACE"
    assert set(record["config"]["code"]) == {"method"}
    again = ser(finished, *RUN, "--set", "train.epochs=5", "-o", "whole")
    assert "recorded already" in again.stderr


@pytest.mark.slow
def test_it_is_compared_and_reported_like_any_other(finished: Path) -> None:
    others = ["-m", "er,sgd", "--memory", "30", "--set", "train.epochs=5", "-o", "whole", "--threads", "1"]
    assert ser(finished, "run", "split-digits", *others).returncode == 0
    compared = ser(finished, "compare", "whole")
    assert compared.returncode == 0, compared.stderr
    rows = [line.split()[0] for line in compared.stdout.splitlines() if line.strip()]
    assert {"ER-ACE", "ER", "SGD"} <= set(rows)
    reported = ser(finished, "report", "whole", "--out", "page.html")
    assert reported.returncode == 0, reported.stderr
    page = (finished / "page.html").read_text()
    assert "ER-ACE" in page
    shown = ser(finished, "show", "whole")
    assert "er_ace.py:ERACE" in shown.stdout


@pytest.mark.slow
def test_edited_code_runs_again(finished: Path, tmp_path: Path) -> None:
    shutil.copy(in_repository("examples/er_ace.py"), tmp_path)
    quick = [*RUN, "--set", "train.epochs=1", "--set", "data.tasks=1"]
    assert ser(tmp_path, *quick).returncode == 0
    (tmp_path / "er_ace.py").write_text((tmp_path / "er_ace.py").read_text().replace("-1e9", "-2e9"))
    again = ser(tmp_path, *quick)
    assert "recorded already" not in again.stderr
    assert len(list((tmp_path / "runs").rglob("seed-0.json"))) == 2


@pytest.mark.slow
def test_what_is_wrong_with_a_file_is_told_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "er_ace.py").write_text("import torch\n1 / 0\n")
    told = ser(tmp_path, *RUN)
    assert told.returncode == 2
    assert "er_ace.py, line 2: ZeroDivisionError" in told.stderr
    assert "Traceback" not in told.stderr


PACKAGE = '''
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from strongreplay import Method, Split, descend


class Tiny(Method):
    """The smallest method there is."""

    def __init__(self, net, problem):
        super().__init__()
        self.net = net

    def observe(self, batch, optimizer):
        return descend(optimizer, {"current": cross_entropy(self.net(batch.inputs), batch.labels)})


def make_net(input_shape, num_classes, width=8):
    """One hidden layer of a few units."""
    layers = nn.LazyLinear(width), nn.ReLU(), nn.Linear(width, num_classes)
    net = nn.Sequential(nn.Flatten(), *layers)
    net(torch.zeros(1, *input_shape))
    return net


def make_stream(seed):
    # four classes that one number tells apart
    labels = torch.arange(4).repeat(20)
    split = Split(torch.nn.functional.one_hot(labels, 5).float(), labels)
    return split, split
'''
POINTS = """[strongreplay.methods]
tiny = tiny_cl:Tiny
gone = tiny_cl:Gone
[strongreplay.nets]
tiny-net = tiny_cl:make_net
[strongreplay.streams]
tiny-stream = tiny_cl:make_stream
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder where the package is installed."""
    place = tmp_path / "site"
    info = place / "tiny_cl-0.3.dist-info"
    info.mkdir(parents=True)
    (place / "tiny_cl.py").write_text(PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-cl\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text(POINTS)
    return place


@pytest.mark.slow
def test_an_installed_package_joins_lists_and_runs(tmp_path: Path, place: Path) -> None:
    methods = ser(tmp_path, "list", "methods", path=place)
    assert any(
        line.startswith("tiny ") and "The smallest method" in line for line in methods.stdout.splitlines()
    )
    assert "passed over: method gone of tiny-cl 0.3 cannot be loaded" in methods.stderr
    assert "One hidden layer of a few units." in ser(tmp_path, "list", "nets", path=place).stdout
    assert "tiny-stream" in ser(tmp_path, "list", "streams", path=place).stdout
    words = [
        "split-digits",
        "-m",
        "tiny",
        "--net",
        "tiny-net",
        "--set",
        "data.tasks=1",
        "--set",
        "net.width=5",
    ]
    told = ser(tmp_path, "run", *words, path=place)
    assert told.returncode == 0, told.stderr
    (record,) = (tmp_path / "runs").rglob("seed-0.json")
    held = json.loads(record.read_text())["config"]
    assert held["code"] == {"method": "tiny-cl 0.3", "net": "tiny-cl 0.3"}
    assert held["net"]["width"] == 5


def test_a_stream_of_an_installed_package_runs_by_its_name(tmp_path: Path, place: Path) -> None:
    told = ser(tmp_path, "run", "tiny-stream", "--tasks", "2", "-m", "er", "--memory", "20", path=place)
    assert told.returncode == 0, told.stderr
    (path,) = (tmp_path / "runs").rglob("seed-0.json")
    record = json.loads(path.read_text())
    assert path.parent.parent.name == record["config"]["stream"] == "tiny-stream"
    assert record["config"]["data"]["hash"] == "tiny-cl 0.3"
    assert len(record["results"]["accuracy"]["class-il"]["matrix"]) == 2
