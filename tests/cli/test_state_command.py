"""ser state and ser resume on what is not a stopped run: said in words, with no traceback."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes import run_ser

from strongreplay.storage.files import manifest_sum
from strongreplay.storage.state import write_checkpoint

CONFIG = {"stream": "s[bold]", "seed": 0, "method": {"name": "[/red]\u202eser", "memory_size": 5}}
ABOUT = {"config": CONFIG, "recipe": "published", "step": 3, "steps_expected": 9, "task": 1, "tasks": 2}
ABOUT |= {"threads": 1, "device": "cpu", "config_hash": "x"}


def ser(*words: object) -> tuple[int, str]:
    done = run_ser(None, *map(str, words))
    text = done.stdout + done.stderr
    assert "Traceback" not in text, text
    return done.returncode, " ".join(text.split())


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """What a stopped update of a kept model leaves."""
    folder = tmp_path / "model" / "work"
    write_checkpoint(folder, {"x": torch.ones(2)}, {"lesson": "abc", "step": 7})
    return folder


@pytest.mark.slow
def test_a_stopped_update_is_named_as_what_it_is(work: Path) -> None:
    for words in (["state", "inspect", work], ["resume", work]):
        code, text = ser(*words)
        assert code == 1
        assert (
            f"a stopped update of the model in {work.parent}, not of a run; resume it with the same" in text
        )
    assert ser("state", "verify", work) == (0, f"{work / 'state-000001'}: good")


def test_a_kept_model_is_no_folder_of_runs(work: Path) -> None:
    (work.parent / "current").write_text("v1\n")
    code, text = ser("state", "inspect", work.parent)
    assert code == 1
    assert "a kept model and no runs; see: ser status" in text


def test_names_are_text_and_not_markup(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "seed-0.state", {"x": 1}, ABOUT)
    code, text = ser("state", "inspect", tmp_path)
    assert code == 0
    assert r"run s[bold] [/red]\u202eser, memory 5, seed 0" in text


ABSURD: dict[str, Any] = {
    "config": [1],
    "recipe": 7,
    "step": "three",
    "threads": 10**9,
    "device": None,
    "tasks": {"a": 1},
}


@pytest.mark.slow
def test_absurd_values_with_sums_that_fit_are_named(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "seed-0.state", {"x": 1}, ABOUT)
    manifest = json.loads((path / "manifest.json").read_text()) | ABSURD
    (path / "manifest.json").write_text(json.dumps(manifest | {"sum": manifest_sum(manifest)}))
    for words in (["state", "inspect", tmp_path], ["resume", tmp_path]):
        code, text = ser(*words)
        assert code == 1
        assert all(f"{key}: " in text for key in ABSURD), text
