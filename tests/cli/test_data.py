"""ser data: where the folder comes from, and what get, list and check say."""

import gzip
import hashlib
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from strongreplay.cli.data import app
from strongreplay.cli.options import choose_data_folder
from strongreplay.data.datasets import DATASETS
from strongreplay.data.formats import idx_archives
from strongreplay.errors import ConfigError, DataError

CONTENTS = {
    "train-images-idx3-ubyte": struct.pack(">4I", 0x803, 20, 4, 4) + bytes(320),
    "train-labels-idx1-ubyte": struct.pack(">2I", 0x801, 20) + bytes(range(10)) * 2,
    "t10k-images-idx3-ubyte": struct.pack(">4I", 0x803, 10, 4, 4) + bytes(160),
    "t10k-labels-idx1-ubyte": struct.pack(">2I", 0x801, 10) + bytes(range(10)),
}


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def published(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on a server of its own, from which a small MNIST is fetched."""
    site = tmp_path_factory.mktemp("site")
    sums: dict[str, tuple[str, str | None]] = {}
    for name, content in CONTENTS.items():
        packed = gzip.compress(content)
        (site / f"{name}.gz").write_bytes(packed)
        sums[name] = (hashlib.md5(packed).hexdigest(), None)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site))) as http:
        archives = idx_archives("mnist", (f"http://127.0.0.1:{http.server_address[1]}",), sums, (20, 10), 4)
        row = replace(DATASETS["mnist"], shape=(1, 4, 4), num_train=20, num_test=10, archives=archives)
        monkeypatch.setitem(DATASETS, "mnist", row)
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield site
        http.shutdown()
        thread.join()


def ser_data(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_folder_is_the_option_else_the_variable_else_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRONGREPLAY_DATA", "~/variable")
    assert choose_data_folder(Path("option")) == Path("option")
    assert choose_data_folder(Path("~/option")) == Path.home() / "option"
    assert choose_data_folder(None) == Path.home() / "variable"
    monkeypatch.setenv("STRONGREPLAY_DATA", "")
    assert choose_data_folder(None).name == "strongreplay"


def test_get_then_list_then_check(tmp_path: Path, published: Path) -> None:
    result = ser_data("get", "mnist", "digits", "--data", tmp_path)
    assert result.exit_code == 0, result.output
    assert f"mnist: downloaded {tmp_path / 'mnist/train-images-idx3-ubyte.gz'}" in result.output
    assert "digits is embedded in scikit-learn; nothing to download" in result.output
    assert "\x1b" not in result.output
    assert f"mnist is already in {tmp_path}" in ser_data("get", "mnist", "--data", tmp_path).output

    lines = {
        line.split(" ")[0]: line.split() for line in ser_data("list", "--data", tmp_path).output.splitlines()
    }
    assert lines["mnist"][-4:] == ["present", "mnist", *lines["mnist"][-2:]]
    assert lines["mnist"][-1] in ("bytes", "kB")
    assert lines["cifar10"][-1] == "absent"
    assert lines["digits"][-4:] == ["present", "embedded", "in", "scikit-learn"]
    assert lines["data"] == ["data", "folder:", str(tmp_path)]

    result = ser_data("check", "--data", tmp_path)
    assert result.exit_code == 0, result.output
    assert "checksum is right" in result.output
    assert "20 train and 10 test images in 10 classes" in result.output
    assert "cifar10" not in result.output


def test_list_tells_of_incomplete_data(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist/train-images-idx3-ubyte").write_bytes(b"x")
    assert "incomplete" in ser_data("list", "--data", tmp_path).output


def test_check_fails_when_something_is_wrong(tmp_path: Path, published: Path) -> None:
    ser_data("get", "mnist", "--data", tmp_path)
    (tmp_path / "mnist/t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    result = ser_data("check", "mnist", "--data", tmp_path)
    assert result.exit_code == 1
    assert "WRONG" in result.output
    assert "mnist/t10k-labels-idx1-ubyte.gz" in result.output
    result = ser_data("check", "cifar10", "--data", tmp_path)
    assert result.exit_code == 1
    assert f"cifar10 not found; run: ser data get cifar10 --data {tmp_path}" in result.output


def test_errors_reach_the_main_program(tmp_path: Path, published: Path) -> None:
    for command in ("get", "check"):
        error = ser_data(command, "digits", "mnits", "--data", tmp_path).exception
        assert isinstance(error, ConfigError)
        assert str(error) == "unknown dataset 'mnits'; did you mean 'mnist'? See: ser data list"
    (published / "t10k-labels-idx1-ubyte.gz").unlink()
    error = ser_data("get", "mnist", "--data", tmp_path).exception
    assert isinstance(error, DataError)
    assert "t10k-labels-idx1-ubyte.gz could not be downloaded" in str(error)


def test_torch_is_not_needed_for_help() -> None:
    code = "import sys, strongreplay.cli.data; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
