"""ser predict and ser evaluate as a person or a script meets them."""

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.commands import NAMES, Said, Ser, ser, write_digits

from strongreplay.cli.predict import one_line
from strongreplay.data import datasets
from strongreplay.models.learn import LearnRequest, learn
from strongreplay.models.store import Store

__all__ = ["ser"]  # a fixture
CPU = ["--device", "cpu", "--threads", "1"]
SETTINGS = {"net.name": "mlp", "train.epochs": 25, "train.lr": 0.1, "learner.memory": 60}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_digits(folder / "may", [0, 1, 2], count=30)
    write_digits(folder / "june", [3, 4], count=30)
    write_digits(folder / "test", [0, 1, 2, 3, 4], start=60, count=10)
    write_digits(folder / "foreign", [0, 5], start=60, count=4)
    return folder


@pytest.fixture(scope="module")
def state(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two versions; nobody changes them."""
    folder = tmp_path_factory.mktemp("model") / "state"
    for month in ("may", "june"):
        order = LearnRequest(photos / month, settings=SETTINGS if month == "may" else {}, accept=True)
        assert learn(folder, order, torch.device("cpu")).version
    return folder


@pytest.fixture(scope="module")
def of_features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 64 features with the numbers 0 to 2 for labels."""
    folder = tmp_path_factory.mktemp("features")
    inputs, labels = features(0, 90)
    np.savez(folder / "train.npz", inputs=inputs, labels=labels)
    learn(folder / "state", LearnRequest(folder / "train.npz", settings=SETTINGS), torch.device("cpu"))
    return folder / "state"


def features(start: int, stop: int) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], list[int]]:
    split = datasets.load("digits", Path())[0]
    rows = (split.labels < 3).nonzero().flatten()[start:stop]
    return split.inputs[rows].flatten(1).numpy().astype(np.float32), split.labels[rows].tolist()


def rows_of(said: Said) -> list[list[str]]:
    return [line.split("\t") for line in said.out.splitlines()]


def test_a_line_for_each_image_with_label_and_probability(ser: Ser, photos: Path, state: Path) -> None:
    said = ser("predict", state, photos / "test", *CPU, "--batch-size", "7")
    assert said.code == 0, said.err
    rows = rows_of(said)
    assert [row[0] for row in rows] == [str(path) for path in sorted((photos / "test").rglob("*.png"))]
    assert {row[1] for row in rows} <= set(NAMES[:5])
    assert all(0 < float(row[2]) <= 1 for row in rows)
    right = sum(Path(row[0]).parent.name == row[1] for row in rows)
    assert right > 25  # of 50: the lines belong to the images they name
    assert said.err == ""


def test_the_likeliest_classes_come_in_order_and_no_more_than_there_are(
    ser: Ser, photos: Path, state: Path
) -> None:
    file = next((photos / "test" / "zero").iterdir())
    three = rows_of(ser("predict", state, file, "--top", "3", *CPU))[0]
    values = [float(value) for value in three[2::2]]
    assert len(three) == 7
    assert values == sorted(values, reverse=True)
    found = json.loads(ser("predict", state, file, "--top", "99", "--json", *CPU).out)
    assert (found["path"], found["label"]) == (str(file), three[1])
    assert [label for label, _ in found["top"]][:3] == three[1::2]
    assert sorted(label for label, _ in found["top"]) == sorted(NAMES[:5])
    assert sum(value for _, value in found["top"]) == pytest.approx(1)


def test_another_version_answers_as_it_did_then(ser: Ser, photos: Path, state: Path) -> None:
    said = ser("predict", state, photos / "test", "--version", "v1", "--json", *CPU)
    assert {json.loads(line)["label"] for line in said.out.splitlines()} <= set(NAMES[:3])
    missing = ser("predict", state, photos / "test", "--version", "v9", *CPU)
    assert missing.code == 2
    assert "no version 'v9'; there are: v1, v2" in missing.err


def test_what_cannot_be_read_is_told_and_the_rest_goes_on(
    ser: Ser, photos: Path, state: Path, tmp_path: Path
) -> None:
    good = next((photos / "test" / "zero").iterdir())
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:60])
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "empty").mkdir()
    names = ["cut.png", "notes.txt", "empty", "missing.png"]
    said = ser("predict", state, good, *(tmp_path / name for name in names), good, *CPU)
    assert said.code == 1
    assert [row[0] for row in rows_of(said)] == [str(good), str(good)]
    faults = said.err.splitlines()
    assert len(faults) == 4
    for name in names:
        assert sum(name in fault for fault in faults) == 1


def test_paths_come_from_stdin_too(
    ser: Ser, photos: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = sorted((photos / "test" / "zwei 二").iterdir())[:3]
    text = "\n".join(map(str, some)) + "\n\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert [row[0] for row in rows_of(ser("predict", state, "-", *CPU))] == [str(path) for path in some]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"missing.png\n")))
    said = ser("predict", state, "-", "--json", *CPU)
    assert (said.code, json.loads(said.out).keys()) == (1, {"path", "error"})


@pytest.mark.slow
def test_each_line_of_stdin_is_answered_at_once(photos: Path, state: Path, tmp_path: Path) -> None:
    """Also a line that names no image: who waits for its answer would wait forever."""
    first, second = (str(path) for path in sorted((photos / "test" / "zwei 二").iterdir())[:2])
    (tmp_path / "cut.png").write_bytes(Path(first).read_bytes()[:60])
    bad = [str(tmp_path / "missing.png"), str(tmp_path / "cut.png")]
    some = [first, *bad, second]
    command = [sys.executable, "-m", "strongreplay", "predict", str(state), "-", *CPU]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as coprocess:
        assert coprocess.stdin is not None
        assert coprocess.stdout is not None
        for path in some:
            coprocess.stdin.write(f"{path}\n")
            coprocess.stdin.flush()
            name, label, _ = coprocess.stdout.readline().split("\t")  # waits forever if it is not flushed
            assert (name, label == "") == (path, path in bad)
        coprocess.stdin.close()
        assert coprocess.wait(60) == 1


def test_a_line_stays_a_line_whatever_a_file_is_called(
    ser: Ser, photos: Path, state: Path, tmp_path: Path
) -> None:
    name = "a\tb\nc\\d\x1b[31m\udcff.png"
    shutil.copy(next((photos / "test" / "zero").iterdir()), tmp_path / name)
    rows = rows_of(ser("predict", state, tmp_path, *CPU))
    assert len(rows) == 1
    assert rows[0][0].endswith(r"a\tb\nc\\d\x1b[31m\udcff.png")
    found = json.loads(ser("predict", state, tmp_path, "--json", *CPU).out)
    assert found["path"] == str(tmp_path / name)
    assert one_line("zwei 二") == "zwei 二"


def test_arrays_of_features_and_of_images(
    ser: Ser, photos: Path, state: Path, of_features: Path, tmp_path: Path
) -> None:
    inputs, labels = features(90, 120)
    np.save(tmp_path / "x.npy", inputs)
    np.savez(tmp_path / "x.npz", features=inputs)
    said = ser("predict", of_features, tmp_path / "x.npy", "--batch-size", "8", *CPU)
    assert said.code == 0, said.err
    rows = rows_of(said)
    assert [row[0] for row in rows] == [f"{tmp_path / 'x.npy'}#{row}" for row in range(30)]
    assert sum(row[1] == str(label) for row, label in zip(rows, labels, strict=True)) > 25
    packed = ser("predict", of_features, tmp_path / "x.npz", "--json", *CPU)
    assert [str(json.loads(line)["label"]) for line in packed.out.splitlines()] == [row[1] for row in rows]
    assert isinstance(json.loads(packed.out.splitlines()[0])["label"], int)

    some = sorted((photos / "test").rglob("*.png"))[:5]
    np.save(tmp_path / "images.npy", np.stack([np.asarray(Image.open(path)) for path in some]))
    as_array, as_files = (
        rows_of(ser("predict", state, *paths, *CPU)) for paths in ([tmp_path / "images.npy"], some)
    )
    assert [row[1:] for row in as_array] == [row[1:] for row in as_files]


def test_arrays_that_do_not_fit_are_told(ser: Ser, of_features: Path, tmp_path: Path) -> None:
    inputs, _ = features(0, 9)
    inputs[5, 3] = np.nan
    np.save(tmp_path / "nan.npy", inputs)
    np.save(tmp_path / "narrow.npy", inputs[:, :9])
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "broken.npz").write_bytes(b"PK")
    for name, piece in {
        "nan.npy": "rows 4 to 7: data #1: features must be finite",
        "narrow.npy": "features must have 64 columns, got 9",
        "objects.npy": "objects.npy",
        "broken.npz": "broken.npz",
    }.items():
        said = ser("predict", of_features, tmp_path / name, "--batch-size", "4", *CPU)
        assert said.code == 1
        assert piece in said.err
        assert len(said.err.splitlines()) == 1


def test_no_model_there_is_a_clear_message(ser: Ser, photos: Path, tmp_path: Path) -> None:
    for words in (["predict", tmp_path, photos / "test"], ["evaluate", tmp_path, "--data", photos / "test"]):
        said = ser(*words)
        assert said.code == 1
        assert "no model is kept there; make one with `ser learn`" in said.err


def test_answering_reads_neither_memory_nor_held_out_samples(
    ser: Ser, photos: Path, state: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "state"
    shutil.copytree(state, copied)
    store = Store(copied)
    for part in ("memory", "held"):
        store.objects.file(store.manifest(None)["parts"][part]["object"]).unlink()
    before, after = (ser("predict", folder, photos / "test", *CPU).out for folder in (state, copied))
    assert before == after != ""


@pytest.mark.slow
def test_a_cold_start_loads_nothing_heavy_and_a_closed_pipe_ends_it_quietly(
    photos: Path, state: Path
) -> None:
    code = (
        "import sys, strongreplay.cli\n"
        "sys.argv[0] = 'ser'\n"
        "try: strongreplay.cli.main()\n"
        "finally:\n"
        "  heavy = {'scipy', 'sklearn', 'matplotlib', 'pandas', 'rich.progress'} & set(sys.modules)\n"
        "  methods = [name for name in sys.modules if name.startswith('strongreplay.methods.')]\n"
        "  print('heavy:', heavy, sorted(methods), file=sys.stderr)"
    )
    words = ["predict", str(state), str(photos / "test"), "--batch-size", "1", *CPU]
    command, pipe = [sys.executable, "-c", code, *words], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout
        assert process.stderr
        assert "\t" in process.stdout.readline()
        process.stdout.close()
        names = ("averaged", "base", "row", "samples", "ser", "table")
        methods = [f"strongreplay.methods.{name}" for name in names]
        assert process.stderr.read() == f"heavy: set() {methods}\n"
        assert process.wait(60) == 0


def test_accuracy_by_class_mistakes_and_what_has_changed(ser: Ser, photos: Path, state: Path) -> None:
    said = ser("evaluate", state, "--data", photos / "test", *CPU)
    assert said.code == 0, said.err
    found = ser("evaluate", state, "--data", photos / "test", "--json", *CPU).json
    assert (found["version"], found["against"], found["samples"]) == ("v2", "v1", 50)
    right = sum(entry["right"] for entry in found["classes"])
    assert found["accuracy"] == pytest.approx(2 * right)
    assert f"v2: {right} of 50 right" in said.out
    assert "on the 3 classes that v1 knew" in said.out
    by_label = {entry["label"]: entry for entry in found["classes"]}
    assert by_label["four"]["before"] is None
    assert by_label["zero"]["before"] is not None
    answered = ser("predict", state, photos / "test", *CPU)
    expected = sum(Path(row[0]).parent.name == row[1] for row in rows_of(answered))
    assert right == expected
    assert sum(count for *_, count in found["confusion"]) == 50
    row = next(line for line in said.out.splitlines() if line.strip().startswith("[bold]x"))
    assert re.search(r"10 +[\d.]+ +[\d.]+ +[+-][\d.]+", row)


def test_against_may_be_chosen(ser: Ser, photos: Path, state: Path) -> None:
    words = ["evaluate", state, "--data", photos / "test", "--json", *CPU]
    alone, first = ser(*words, "--against", "none").json, ser(*words, "--version", "v1").json
    assert alone["against"] is None
    assert (first["version"], first["against"]) == ("v1", None)
    assert set(first["unknown"]) == {"-three", "four"}
    same = ser(*words, "--against", "v2").json
    assert same["accuracy_old"] == same["accuracy_old_before"] == same["accuracy"]


def test_labels_that_are_not_known_are_named_and_count_as_wrong(ser: Ser, photos: Path, state: Path) -> None:
    said = ser("evaluate", state, "--data", photos / "foreign", *CPU)
    assert said.code == 0, said.err
    assert "1 class of 4 samples not known to v2, counted as wrong: five" in said.out
    found = ser("evaluate", state, "--data", photos / "foreign", "--json", *CPU).json
    assert found["unknown"] == ["five"]
    assert found["accuracy"] <= 50


def test_numbers_are_found_by_the_names_of_folders(ser: Ser, of_features: Path, tmp_path: Path) -> None:
    inputs, labels = features(90, 120)
    np.savez(tmp_path / "x.npz", inputs=inputs, labels=[str(label) for label in labels])
    found = ser("evaluate", of_features, "--data", tmp_path / "x.npz", "--json", *CPU).json
    assert found["unknown"] == []
    assert found["accuracy"] > 80


def test_the_confusion_is_drawn(ser: Ser, photos: Path, state: Path, tmp_path: Path) -> None:
    words = ["evaluate", state, "--data", photos / "test", *CPU, "--confusion"]
    said = ser(*words, tmp_path / "c.png")
    assert said.code == 0, said.err
    assert said.err == ""  # letters that the font does not have are nobody's business
    with Image.open(tmp_path / "c.png") as image:
        assert min(image.size) > 400
    assert ser(*words, tmp_path / "c.txt").code == 2
    assert ser(*words, tmp_path / "missing" / "c.png").code == 1


def test_a_class_of_many_is_in_the_picture_if_it_is_mistaken() -> None:
    from strongreplay.report.confusion import MOST, choose

    names = list(range(3 * MOST))
    chosen = choose(names, {(7, 250): 3, (7, 7): 1, (9, 9): 99})
    assert len(chosen) == MOST
    assert {7, 250} <= set(chosen)
    assert chosen == sorted(chosen)


def test_an_unreadable_folder_is_told(ser: Ser, photos: Path, state: Path) -> None:
    said = ser("evaluate", state, "--data", photos / "nowhere", *CPU)
    assert said.code == 1
    assert "nowhere" in said.err
