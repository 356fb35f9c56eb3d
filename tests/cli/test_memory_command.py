"""ser memory: list, show, export and forget, on images and on features."""

import csv
import json
import os
import pty
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
import torch
from PIL import Image
from support.kept_models import make_model, ser, some_digits, teach, write_folder

from strongreplay.errors import ConfigError, RunError
from strongreplay.models.memory_view import Remembered, all_images, read_parts, samples_of
from strongreplay.models.store import WORK, Store
from strongreplay.models.write_samples import LONGEST, folder_name, write_samples
from strongreplay.report.contact_sheet import FRAME, IN_ROW, draw_sheet


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("made"), {"learner.store": "png"})


@pytest.fixture(scope="module")
def of_features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    state = tmp_path_factory.mktemp("features") / "model"
    features = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    teach(state, (features, ["a", "b"] * 20), settings={"learner.memory": 20})
    return state


@pytest.fixture
def state(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "model")
    return tmp_path / "model"


def kept(state: Path) -> list[Remembered]:
    return samples_of(read_parts(Store(state), None)[1])


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_list_names_every_sample_and_where_it_came_from(state: Path) -> None:
    told = json.loads(ser("memory", state, "list", "--json").out)
    assert [one["id"] for one in told] == [one.id for one in kept(state)]
    for one in told:
        assert one["source"].startswith(f"{one['label']}/photo-{one['label']}-")
        assert one["version"] == f"v{one['lesson']}"
        assert one["kind"] in ("replay", "held-out")
        assert one["bytes"] > 400
    assert {one["version"] for one in told} == {"v1", "v2"}


def test_list_is_cut_short_and_can_be_narrowed(state: Path) -> None:
    short, whole = ser("memory", state, "list"), ser("memory", state, "list", "--all")
    assert short.lines[0] == "40 samples remembered by v2"
    assert short.out.count(".png") == 20
    assert "20 more; --all shows them all" in short.lines
    assert whole.out.count(".png") == 40
    twos = json.loads(ser("memory", state, "list", "--label", "two", "--json").out)
    assert {one["label"] for one in twos} == {"two"}
    first = json.loads(ser("memory", state, "list", "--version", "v1", "--json").out)
    assert {one["version"] for one in first} == {"v1"}
    refused = json.loads(ser("memory", state, "list", "--version", "candidate", "--json").out)
    assert {one["version"] for one in refused if one["label"] == "three"} == {"candidate"}


def test_bytes_of_samples_are_those_of_the_tensors(of_features: Path) -> None:
    parts = read_parts(Store(of_features), None)[1]
    memory = parts["memory"]
    tensors = [memory["samples"]["images"], *memory["columns"].values()]
    replayed = [one.bytes for one in samples_of(parts) if one.kind == "replay"]
    assert sum(replayed) == sum(tensor.nbytes for tensor in tensors)


def test_show_draws_a_row_for_each_class_with_frames_around_what_is_held_out(
    state: Path, tmp_path: Path
) -> None:
    said = ser("memory", state, "show", "-o", tmp_path / "all.png")
    assert said.lines == [f"picture: {tmp_path / 'all.png'} (40 images)"]
    with Image.open(tmp_path / "all.png") as picture:
        pixels = np.asarray(picture)
    assert pixels.shape[0] == 36 * 4 + 4  # a heading and three classes
    assert (pixels == FRAME).all(2).sum() > 8 * 32 * 4  # eight frames of two pixels
    ser("memory", state, "show", "--label", "two", "-o", tmp_path / "two.png")
    with Image.open(tmp_path / "two.png") as picture:
        assert picture.height == 36 * 2 + 4


def test_the_images_on_a_sheet_are_those_that_were_given(tmp_path: Path) -> None:
    images = np.zeros((4, 3, 40, 40), np.uint8)
    images[:, 0] = np.array([50, 100, 150, 200])[:, None, None]  # red: no shade of the text
    assert draw_sheet(images, ["a", "b", "a", "b"], [False] * 4, tmp_path / "s.png") == 4
    with Image.open(tmp_path / "s.png") as picture:
        pixels = np.asarray(picture)
    for value in (50, 100, 150, 200):
        assert (pixels == (value, 0, 0)).all(2).sum() == 40 * 40
    places = {
        value: np.argwhere((pixels == (value, 0, 0)).all(2))[0].tolist() for value in (50, 100, 150, 200)
    }
    assert places[50][0] == places[150][0] < places[100][0] == places[200][0]


def test_many_samples_of_a_class_are_thinned_out_and_one_class_alone_is_not(tmp_path: Path) -> None:
    images, path = np.zeros((200, 1, 8, 8), np.uint8), tmp_path / "s.png"
    framed = [False] * 150 + [True] * 50
    assert draw_sheet(images, ["a", "b"] * 100, framed, path) == 2 * IN_ROW
    with Image.open(path) as picture:
        assert (np.asarray(picture) == FRAME).all(2).any()
    assert draw_sheet(images, ["a"] * 200, framed, path) == 200
    names = [f"{number} {'long' * 50}" for number in range(150)]
    assert draw_sheet(images[:150], names, framed[:150], path) == 100
    with pytest.raises(RunError, match="cannot be written"):
        draw_sheet(images, ["a"] * 200, framed, tmp_path / "none" / "s.png")


def test_features_cannot_be_seen(of_features: Path, tmp_path: Path) -> None:
    said = ser("memory", of_features, "show", "-o", tmp_path / "m.png")
    assert said.code == 0
    assert "there is nothing to see" in said.out
    assert not (tmp_path / "m.png").exists()


def test_export_writes_every_sample_once_with_its_class_and_source(state: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = ser("memory", state, "export", out)
    assert said.lines == [f"{out}: 40 samples of v2, see manifest.csv"]
    with (out / "manifest.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    parts = read_parts(Store(state), None)[1]
    for row, one, image in zip(rows, samples_of(parts), all_images(parts), strict=True):
        assert (row["id"], row["label"], row["source"]) == (str(one.id), one.label, one.source)
        assert (row["update"], row["kind"]) == (str(one.update), one.kind)
        assert row["path"].startswith(f"{one.label}/")
        with Image.open(out / row["path"]) as picture:
            assert np.array_equal(np.asarray(picture), image[0].numpy())
    assert len({row["path"] for row in rows}) == 40
    assert len(list(out.rglob("*.png"))) == 40


def test_what_was_exported_can_be_learnt(of_features: Path, state: Path, tmp_path: Path) -> None:
    ser("memory", state, "export", tmp_path / "images")
    assert teach(tmp_path / "again", tmp_path / "images").version
    assert ser("memory", of_features, "export", tmp_path / "features").code == 0
    names = sorted(path.name for path in (tmp_path / "features").iterdir())
    assert names == ["features.npz", "manifest.csv"]
    with np.load(tmp_path / "features" / "features.npz") as held:
        parts = read_parts(Store(of_features), None)[1]
        assert np.array_equal(held["inputs"], all_images(parts).numpy())
        assert held["labels"].tolist() == [one.label for one in samples_of(parts)]
    assert teach(tmp_path / "anew", tmp_path / "features" / "features.npz").version


@pytest.mark.parametrize(
    "label",
    [
        "..",
        ".",
        "../../etc",
        "/root",
        "a/b",
        "a\\b",
        "con",
        "NUL.txt",
        "x.",
        " x ",
        "100%",
        "%2E",
        "~",
        "a:b",
        "é ø",
        "犬",
        "*?",
        7,
    ],
)
def test_names_of_classes_become_safe_folders_and_come_back(label: str | int, tmp_path: Path) -> None:
    sample = Remembered(1, label, "s", 1, "replay", 4)
    out = tmp_path / "out"
    write_samples(out, [sample], torch.zeros(1, 1, 2, 2, dtype=torch.uint8))
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    assert unquote(folder.name) == str(label)
    assert folder.name not in (".", "..")
    assert not set(folder.name) & set('/\\:*?"<>|')
    assert folder.name[-1] not in ". "
    assert folder.name.partition(".")[0].lower() not in ("con", "nul")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    with (out / "manifest.csv").open(newline="", encoding="utf-8") as file:
        assert next(csv.DictReader(file))["label"] == str(label)


def test_names_that_are_too_long_stay_different() -> None:
    names = [folder_name("é/" * 300 + end) for end in "ab"]
    assert names[0] != names[1]
    assert all(len(name.encode()) <= LONGEST and "%~" in name for name in names)


def test_export_refuses_a_place_that_is_taken(state: Path, tmp_path: Path) -> None:
    full, file = tmp_path / "full", tmp_path / "file"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    file.write_text("mine")
    for place in (full, file):
        before = everything(tmp_path)
        assert ser("memory", state, "export", place).code == 2
        assert everything(tmp_path) == before
    with pytest.raises(RunError, match="could not be written"):
        write_samples(file / "inside", [], torch.empty(0, 1, 2, 2))
    (tmp_path / "empty").mkdir()
    assert ser("memory", state, "export", tmp_path / "empty").code == 0


def test_a_sample_that_is_kept_twice_is_written_twice(tmp_path: Path) -> None:
    sample = Remembered(4, "a", "s", 1, "replay", 4)
    write_samples(tmp_path / "out", [sample, sample], torch.zeros(2, 3, 2, 2, dtype=torch.uint8))
    assert len(list((tmp_path / "out" / "a").iterdir())) == 2


def test_forget_says_what_goes_and_what_stays(state: Path) -> None:
    sources = {one.source for one in kept(state) if one.label == "two"}
    said = ser("memory", state, "forget", "--label", "two", "--yes")
    assert said.code == 0, said.err
    assert "to be forgotten: " in said.err
    assert sum(source in said.err for source in sources) == len(sources)
    assert "an update that was stopped holds samples too" in said.err
    assert said.lines[0].startswith("forgotten: ")
    assert said.lines[0].endswith("in v2, candidate")
    assert "a stopped update, which held samples too, was removed; learn its data again" in said.lines
    assert "weights, which were trained on them, do not change" in said.out
    assert {one.label for one in kept(state)} == {"zero", "one"}
    assert not (state / WORK).exists()


def test_forget_says_that_copies_go_too(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", (0, 1), 0, 10)
    (folder / "one" / "again.png").write_bytes((folder / "zero" / "photo-zero-2.png").read_bytes())
    teach(tmp_path / "model", folder, settings={"learner.memory": 60})
    said = ser("memory", tmp_path / "model", "forget", "--source", "zero/photo-zero-2.png", "--yes")
    assert said.code == 0, said.err
    assert "to be forgotten: 2 samples, in v1" in said.err
    assert "zero/photo-zero-2.png" in said.err
    assert "one/again.png" in said.err
    assert "1 sample of these has the pixels of one you named" in said.err
    assert "forgotten: 2 samples, in v1" in said.out
    assert not {"zero/photo-zero-2.png", "one/again.png"} & {one.source for one in kept(tmp_path / "model")}


def test_forget_takes_several_names_of_every_kind(state: Path) -> None:
    before = kept(state)
    chosen: list[Any] = [before[0], before[1], next(one for one in before if one.label == "two")]
    said = ser(
        "memory", state, "forget", "--source", before[0].source, "--id", before[1].id, "--label", "two", "-y"
    )
    assert said.code == 0, said.err
    left = kept(state)
    assert left
    assert not {one.id for one in chosen} & {one.id for one in left}
    assert {one.id for one in left} == {
        one.id for one in before if one.label != "two" and one.id not in {sample.id for sample in chosen}
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing is named to be forgotten"),
        (["--label", "nine", "--yes"], "no remembered sample has such a label"),
        (["--label", "two"], "this cannot be undone; confirm with --yes"),  # stdin is no terminal
    ],
)
def test_forget_changes_nothing_unless_all_is_clear(
    state: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(state)
    with open(os.devnull) as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        said = ser("memory", state, "forget", *words)
    assert said.code == 2
    assert message in said.err
    assert everything(state) == before


def test_forget_asks_on_a_terminal(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(state)
    for answer, code in (("n", 1), ("y", 0)):
        ours, theirs = pty.openpty()
        os.write(ours, f"{answer}\n".encode())
        with os.fdopen(theirs) as terminal:
            monkeypatch.setattr(sys, "stdin", terminal)
            said = ser("memory", state, "forget", "--label", "two")
        os.close(ours)
        assert said.code == code, said.err
        assert "Forget them for good?" in said.err + said.out
        assert (everything(state) == before) is (answer == "n")


def test_mistakes_are_told(state: Path, tmp_path: Path) -> None:
    said = ser("memory", state, "list", "--label", "tow")
    assert said.code == 2
    assert "did you mean 'two'?" in said.err
    assert ser("memory", tmp_path / "none", "list").code == 1
    assert "no model is kept there" in ser("memory", tmp_path / "none", "forget", "--id", "1", "-y").err
    assert not (tmp_path / "none").exists()
    assert ser("memory", state, "list", "--version", "v9").code == 2
    with pytest.raises(ConfigError, match="not empty"):
        write_samples(state, [], torch.empty(0, 1, 2, 2))


def test_labels_with_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    images, labels = some_digits((0, 1), 0, 8)
    names = ["[red]fox[/red]" if label else "ça va" for label in labels]
    teach(tmp_path / "model", (images, names), settings={"learner.memory": 10})
    said = ser("memory", tmp_path / "model", "list", "--all")
    assert "[red]fox[/red]" in said.out
    assert "ça va" in said.out
