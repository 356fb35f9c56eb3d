"""ser run on a user's own data or function: records, compare, other data, other code."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from strongreplay.cli import app
from strongreplay.errors import ConfigError
from strongreplay.runs.config import config_of, resolve
from strongreplay.runs.estimate import num_steps
from strongreplay.runs.run import run
from strongreplay.storage.records import record_path, write_record

NAMES = ("ant", "bee", "cat", "dog")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(NAMES):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for row in range(15):
            pixels = np.random.default_rng(row).integers(0, 40, (8, 8, 3), np.uint8)
            pixels[number * 2 : number * 2 + 2] += 200
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{row}.png")
    return tmp_path / "photos"


def test_photos_go_through_a_run(photos: Path, tmp_path: Path) -> None:
    config = resolve("folder:photos", "er", 20, 0, {"data.num_tasks": 2, "train.epochs": 10})
    assert config.net.name == "cnn"  # chosen by the shape, as ser learn does
    assert config.data.hash is not None
    assert num_steps(config) == 2 * 10 * 1
    record = run(config)
    assert record.results["labels"] == list(NAMES)
    assert (record.score("class-il", "average_accuracy") or 0) > 50
    path = write_record(tmp_path / "out", record)
    assert path.parent.parent.name == "folder-photos"
    again = config_of(json.loads(path.read_text())["config"], "")
    assert again.to_dict() == config.to_dict()
    assert json.dumps(run(again).results) == json.dumps(record.results)


def test_other_photos_under_the_same_name_are_another_run(photos: Path, tmp_path: Path) -> None:
    config = resolve("folder:photos", "er", 20)
    (photos / "ant" / "0.png").unlink()
    other = resolve("folder:photos", "er", 20)
    assert record_path(tmp_path, config.to_dict()) != record_path(tmp_path, other.to_dict())
    with pytest.raises(ConfigError, match=r"the data of folder:photos have changed since this run was made"):
        config_of(config.to_dict(), "")


@pytest.mark.slow
def test_the_commands_take_own_data(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call, out = CliRunner().invoke, str(tmp_path / "out")
    place = f"folder:{tmp_path.name}/photos"  # with a slash in it
    monkeypatch.chdir(tmp_path.parent)
    words = ["run", place, "--tasks", "2", "-m", "er,sgd", "--memory", "20", "--out", out]
    words += ["--device", "cpu", "--set", "train.epochs=2"]
    made = call(app, words)
    assert made.exit_code == 0, made.output
    records = [path.relative_to(out).parts[0] for path in Path(out).rglob("seed-*.json")]
    assert records == [f"folder-{tmp_path.name}-photos"] * 2
    assert "recorded already" in call(app, words).output
    compared = call(app, ["compare", out])
    assert compared.exit_code == 0, compared.output
    assert place in compared.output
    page = call(app, ["report", out, "--out", str(tmp_path / "page.html")])
    assert page.exit_code == 0, page.output
    many = call(app, ["run", place, "--tasks", "9", "--out", out])
    assert isinstance(many.exception, ConfigError)  # which the command turns into exit code 2
    assert "4 classes cannot be divided into 9 tasks; use 1 to 4 tasks" in str(many.exception)


def test_a_function_of_the_users_own_is_known_by_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = """
import torch
from strongreplay import Split
def my_stream(seed):
    labels = torch.arange(4).repeat(20)
    split = Split(torch.nn.functional.one_hot(labels, 5).float(), labels)
    return split, split
"""
    Path("mine.py").write_text(text)
    config = resolve("mine.py:my_stream", "er", 20, 0, {"data.num_tasks": 2})
    record = run(config)
    assert len(record.matrix("class-il")) == 2
    assert config_of(config.to_dict(), "").to_dict() == config.to_dict()
    Path("mine.py").write_text(text.replace("20", "30"))
    edited = resolve("mine.py:my_stream", "er", 20, 0, {"data.num_tasks": 2})
    assert record_path(tmp_path, edited.to_dict()) != record_path(tmp_path, config.to_dict())
    with pytest.raises(ConfigError, match=r"have changed since this run was made|was edited"):
        config_of(config.to_dict(), "")
