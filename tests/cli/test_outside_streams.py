"""Streams of a user's own photos, tables, arrays and code: killed, resumed, equal to whole runs."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.commands import Ser, write_digits
from support.processes import kill_at_first_checkpoint

pytestmark = pytest.mark.slow  # each test starts several processes

STREAM = """
import torch
from strongreplay import Split, derive_generator


def my_stream(seed):
    labels = torch.arange(4).repeat(20)
    noise = torch.rand(80, 6, generator=derive_generator(seed, "mine"))
    split = Split(torch.nn.functional.one_hot(labels, 6) + noise, labels)
    return split, split
"""
OPTIONS = ["--tasks", "2", "-m", "ser", "--memory", "20", "--threads", "1", "--device", "cpu"]
OPTIONS += ["--set", "train.epochs=15", "--set", "train.batch_size=4", "--checkpoint-every", "10"]


def results_in(folder: Path) -> dict[str, object]:
    (path,) = folder.rglob("seed-0.json")
    found: dict[str, object] = json.loads(path.read_text())["results"]
    return found


def write_sources(folder: Path) -> None:
    """The same digits as class folders, as a CSV list of files and as an .npz file; and a function."""
    write_digits(folder / "photos", range(4))
    (folder / "mine.py").write_text(STREAM)
    photos = sorted((folder / "photos").rglob("*.png"))
    rows = [f"{path.relative_to(folder)},{path.parent.name}" for path in photos]
    (folder / "list.csv").write_text("\n".join(["path,label", *rows]) + "\n", encoding="utf-8")
    inputs = np.stack([np.asarray(Image.open(path)) for path in photos])
    np.savez(folder / "arrays.npz", inputs=inputs, labels=np.array([path.parent.name for path in photos]))


@pytest.mark.parametrize("stream", ["folder:photos", "csv:list.csv", "npz:arrays.npz", "mine.py:my_stream"])
def test_a_killed_run_ends_as_if_it_had_never_stopped(
    stream: str, ser: Ser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_sources(tmp_path)
    kill_at_first_checkpoint(tmp_path, "killed", "run", stream, *OPTIONS)
    resumed = ser("resume", "killed")
    assert resumed.code == 0, resumed.err
    assert "resuming after step" in resumed.err
    assert ser("run", stream, *OPTIONS, "-o", "whole").code == 0
    assert results_in(tmp_path / "killed") == results_in(tmp_path / "whole")
