"""A finished run whose record cannot be written is not lost: its state or its record is kept."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from strongreplay.errors import RunError
from strongreplay.runs.config import RunConfig, config_of, resolve
from strongreplay.runs.grid import RunOptions, attempt, make_run
from strongreplay.runs.run import Interrupted, run, state_folder
from strongreplay.storage.checkpoints import checkpoints
from strongreplay.storage.records import read_record, record_path
from strongreplay.storage.state import read_newest, write_checkpoint
from strongreplay.training.events import Listener


@pytest.fixture
def config() -> RunConfig:
    return resolve("split-digits", "sgd", settings={"data.tasks": 1, "train.epochs": 1, "net.width": 8})


def test_the_state_is_kept_and_the_same_command_goes_on(config: RunConfig, tmp_path: Path) -> None:
    path, options = record_path(tmp_path, config.to_dict()), RunOptions(tmp_path, Path(), "cpu")
    path.mkdir(parents=True)  # a folder stands where the record belongs
    with pytest.raises(
        RunError, match=r"seed-0.json: the record .* cannot be written \(Is a directory\); its"
    ):
        make_run(config, options)
    assert len(checkpoints(state_folder(tmp_path, config))) == 1
    path.rmdir()
    (state_folder(tmp_path, config) / "state-old").mkdir()  # a user's own copy
    steps = list[Any]()

    class Counting(Listener):
        def on_step(self, position: Any, terms: Any) -> None:
            steps.append(position)

    make_run(config, options, [Counting()])
    assert steps == []  # nothing is learnt again
    assert read_record(path).results == run(config).results
    assert [one.name for one in state_folder(tmp_path, config).iterdir()] == ["state-old"]
    other = config_of(config.to_dict() | {"seed": 1}, config.source)
    make_run(other, options)
    assert not state_folder(tmp_path, other).exists()


def test_a_full_disk_leaves_the_record_elsewhere(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, spare = tmp_path / "out", tmp_path / "spare"
    spare.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spare))
    write, places = os.write, dict[int, str]()
    opened = os.open

    def note(path: Any, *args: Any, **more: Any) -> int:
        handle = opened(path, *args, **more)
        places[handle] = str(path)
        return handle

    def fill(handle: int, data: Any) -> int:
        if places.get(handle, "").startswith(str(out)):
            raise OSError(28, "No space left on device")
        return write(handle, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", note)
        patch.setattr(os, "write", fill)
        kind, text = attempt(config, RunOptions(out, Path(), "cpu"), Listener())
    assert kind == "failed"
    (kept,) = spare.iterdir()
    assert "No space left on device" in text
    assert f"the record is kept as {kept}" in text
    assert read_record(kept).results == run(config).results


ABSURD: dict[str, Any] = {
    "index": [-1, 99, "one", 10**30, None],
    "learnt": ["yes", 2],
    "terms": ["x", [1], [[{"loss": "low"}]]],
    "scores": [[], {"": 7}, {"": [{}, [3]]}, {"": [{"class-il": "all"}, []]}],
    "started": [7],
    "measured": [[], {"train": 3}, {"train": {}}, {"train": {"seconds": "1", "peak_memory_bytes": 1}}],
    "method": [[], {"net": 1}],
    "generators": [{}, {"order": 1}],
}


PROGRESS: dict[str, Any] = {
    "epoch": [-1, "two"],
    "step": [-3, None],
    "order": [torch.ones(3), "x", torch.zeros(5056, dtype=torch.int64)],
    "names": [[["a", "b"]] * 9, "x", [[1]]],
    "values": [torch.empty(0), 7],
    "history": [[1], {"a": 1}],
}


@pytest.mark.slow
def test_progress_with_absurd_content_is_refused_when_it_is_loaded(config: RunConfig, tmp_path: Path) -> None:
    class Impatient(Listener):
        steps = 0

        def on_step(self, position: Any, terms: Any) -> None:
            self.steps += 1

        def wants_stop(self) -> bool:
            return self.steps == 3

    with pytest.raises(Interrupted):
        run(config, out=tmp_path, listeners=[Impatient()])
    place = state_folder(tmp_path, config)
    found = read_newest(place)
    assert found is not None
    assert found.tree["progress"]["step"] == 3
    about = {name: value for name, value in found.manifest.items() if name not in ("files", "sum")}
    for key, values in PROGRESS.items():
        for value in values:
            write_checkpoint(place, found.tree | {"progress": found.tree["progress"] | {key: value}}, about)
            with pytest.raises(RunError, match=r"does not fit this run \(.*; remove .*seed-0.state"):
                run(config, out=tmp_path, resume=True)


@pytest.mark.parametrize("key", ABSURD)
def test_a_state_with_absurd_content_is_refused_when_it_is_loaded(
    key: str, config: RunConfig, tmp_path: Path
) -> None:
    run(config, out=tmp_path, keep_state=True)
    place = state_folder(tmp_path, config)
    found = read_newest(place)
    assert found is not None
    about = {name: value for name, value in found.manifest.items() if name not in ("files", "sum")}
    for value in ABSURD[key]:
        write_checkpoint(place, found.tree | {key: value}, about)
        with pytest.raises(RunError, match=r"does not fit this run \(.*; remove .*seed-0.state"):
            run(config, out=tmp_path, resume=True)


@pytest.mark.parametrize("label", [-1, 10])
def test_a_memory_with_labels_of_no_class_is_refused_when_it_is_loaded(label: int, tmp_path: Path) -> None:
    settings = {"data.tasks": 1, "train.epochs": 1, "net.width": 8}
    config = resolve("split-digits", "er", 20, settings=settings)
    run(config, out=tmp_path, keep_state=True)
    place = state_folder(tmp_path, config)
    found = read_newest(place)
    assert found is not None
    labels = found.tree["method"]["memory.labels"].clone()
    labels[0] = label
    about = {name: value for name, value in found.manifest.items() if name not in ("files", "sum")}
    write_checkpoint(place, found.tree | {"method": found.tree["method"] | {"memory.labels": labels}}, about)
    with pytest.raises(RunError, match=r"does not fit this run \(memory: its labels must be 0 to 9"):
        run(config, out=tmp_path, resume=True)
