"""A record tells which version of our code made it; what differs is told, and what is edited runs again."""

import json
import subprocess
from pathlib import Path

import pytest

from strongreplay.runs import source_hash
from strongreplay.runs.config import RunConfig, resolve
from strongreplay.runs.grid import sort_out
from strongreplay.runs.run import run
from strongreplay.runs.source_hash import ROOT, code_hash, common_files, is_being_edited, own_files, substance
from strongreplay.storage.records import write_record

SOURCE = '''"""What it is."""

# Why.
VALUE = "# not a comment"  # which


def f(x: int) -> int:
    """Twice.

    Really.
    """
    return 2 * x
'''
PARTS = (("methods", "sgd"), ("nets", "mlp"))  # of the run that is asked about


def test_comments_and_docstrings_do_not_count_and_all_else_does() -> None:
    assert substance(SOURCE) == 'VALUE = "# not a comment"\ndef f(x: int) -> int:\n    return 2 * x'
    assert substance(SOURCE) == substance(SOURCE.replace("Twice.", "Two times.").replace("# Why.", ""))
    assert substance(SOURCE) != substance(SOURCE.replace("2 * x", "3 * x"))


def test_the_files_of_a_method_are_its_own_and_what_it_imports_in_its_room() -> None:
    names = {path.name for path in own_files("strongreplay.methods.er")}
    assert names == {"er.py", "averaged.py", "base.py", "samples.py"}
    assert own_files("mine") == ()
    assert {path.name for path in own_files("strongreplay.nets.mlp")} >= {"mlp.py", "classifier.py"}
    assert all(path.is_file() for path in common_files())
    assert ROOT / "nets" / "numerics.py" in common_files(), "it decides precision and compilation"
    assert not any("report" in path.parts or "cli" in path.parts for path in common_files())


def test_methods_have_different_hashes_and_seeds_the_same() -> None:
    hashes = {code_hash(resolve("split-digits", name)) for name in ("er", "ser", "sgd")}
    assert len(hashes) == 3
    assert code_hash(resolve("split-digits", "er", seed=3)) in hashes


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[RunConfig, Path]:
    config = resolve("split-digits", "sgd", settings={"data.tasks": 1, "train.epochs": 1})
    return config, write_record(tmp_path, run(config))


def change_code(path: Path, code: str | None) -> None:
    held = json.loads(path.read_text())
    held["measured"]["versions"]["code"] = code
    path.write_text(json.dumps(held))


def test_a_record_of_other_code_is_kept_and_told_of_in_one_line(recorded: tuple[RunConfig, Path]) -> None:
    config, path = recorded
    out = path.parents[2]
    assert json.loads(path.read_text())["measured"]["versions"]["code"] == code_hash(config)
    skipped, absent, told = sort_out([config], out)
    assert (len(skipped), absent, told) == (1, [], [])
    change_code(path, "other")
    skipped, absent, told = sort_out([config], out)
    assert (len(skipped), len(absent)) == (1, 0)
    assert told == [
        "note: 1 of 1 records were made by other code than this; they are kept, --again makes them again"
    ]
    change_code(path, None)  # as version 0.1 wrote it
    assert sort_out([config], out)[2] == []
    assert len(sort_out([config], out, again=True)[1]) == 1


def test_a_method_or_net_that_is_being_edited_is_run_again(
    recorded: tuple[RunConfig, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, path = recorded
    change_code(path, "other")
    monkeypatch.setattr("strongreplay.runs.jobs.is_being_edited", lambda config: True)
    skipped, absent, told = sort_out([config], path.parents[2])
    assert (len(skipped), len(absent)) == (0, 1)
    assert told == ["split-digits sgd seed 0: its method or net is being edited; running again"]
    change_code(path, code_hash(config))
    assert len(sort_out([config], path.parents[2])[0]) == 1, "what was run since the edit is recorded"


@pytest.mark.parametrize("edited", ["methods/sgd.py", "nets/mlp.py"])
def test_git_tells_whether_a_file_is_being_edited(
    edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    paths = {f"strongreplay.{room}.{name}": tmp_path / room / f"{name}.py" for room, name in PARTS}
    for (room, name), path in zip(PARTS, paths.values(), strict=True):
        path.parent.mkdir()
        path.write_text((ROOT / room / f"{name}.py").read_text())
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(source_hash, "own_files", lambda module: (paths[module],))
    config = resolve("split-digits", "sgd")
    assert not is_being_edited(config, tmp_path)
    source_hash._has_changes.cache_clear()
    (tmp_path / edited).write_text("changed")
    assert is_being_edited(config, tmp_path)
    source_hash._has_changes.cache_clear()
    assert not is_being_edited(config, tmp_path / "nowhere")
