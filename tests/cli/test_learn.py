"""ser learn as a person meets it: updates, refusals, mistakes, kills."""

import io
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import QUICK, Ser, contents, write_digits

from strongreplay.cli import main
from strongreplay.data import datasets
from strongreplay.models.store import WORK, Store


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_digits(folder / "may", [0, 1, 2])
    write_digits(folder / "june", [3, 4])
    write_digits(folder / "guard", [0, 1], start=40)
    return folder


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def forgetful(ser: Ser, photos: Path, state: Path) -> Path:
    """A model without replay: whatever comes next, it forgets what it knew."""
    words = ["--method", "sgd", "--val", "0.4", "--set", "train.momentum=0.9"]
    assert ser("learn", state, "--data", photos / "may", *QUICK, *words, "--epochs", "8").code == 0
    return state


def net_of(folder: Path, version: str = "v0001") -> list[str]:
    """What names the tensors of the net and of the memory by their content."""
    parts = json.loads((folder / "versions" / f"{version}.json").read_text())["parts"]
    return [parts[name]["object"] for name in ("net", "memory", "held")]


def test_the_first_update_makes_the_model_and_the_next_one_adds_to_it(
    ser: Ser, photos: Path, state: Path
) -> None:
    first = ser("learn", state, "--data", photos / "may", *QUICK, "--memory", "30")
    assert first.code == 0, first.err
    assert "read 36 samples of 3 classes, 3 of them new" in first.err
    last = first.out.splitlines()[-1]
    assert last.startswith(
        "v1 is in use: 3 classes, 3 new ([bold]x, zero, zwei 二), 33 samples learnt, 3 held"
    )
    second = ser("learn", state, "--data", photos / "june", "--max-drop", "100", "--threads", "1")
    assert second.code == 0, second.err
    assert second.out.splitlines()[-1].startswith("v2 is in use: 5 classes, 2 new (-three, four)")
    row = next(line for line in second.out.splitlines() if line.strip().startswith("[bold]x"))
    assert row.split()[1] == "held-out"
    plan = Store(state).read(parts=["model"])[1]["model"]["plan"]
    assert (plan["learner"]["memory"], plan["net"]["name"], plan["train"]["epochs"]) == (30, "mlp", 3)


@pytest.mark.parametrize("net", ["cnn", "resnet18"])
def test_ewc_learns_colour_photos_on_convolutional_nets(
    ser: Ser, tmp_path: Path, state: Path, net: str
) -> None:
    may = write_digits(tmp_path / "may", [0, 1, 2], mode="RGB")
    june = write_digits(tmp_path / "june", [3, 4], mode="RGB")
    of_net = ["--method", "ewc", "--net", net, "--set", "net.width=8", "--side", "16"]
    for photos, words in ((may, of_net), (june, ["--max-drop", "100"])):
        said = ser("learn", state, "--data", photos, "--epochs", "1", "--threads", "1", *words)
        assert said.code == 0, said.err
    assert "v2 is in use: 5 classes, 2 new (-three, four)" in said.out


def test_what_was_learnt_last_is_not_learnt_twice_unless_asked_for(
    ser: Ser, photos: Path, state: Path
) -> None:
    words = ["learn", state, "--data", photos / "may", "--threads", "1"]
    assert ser(*words, "--net", "mlp", "--epochs", "1").code == 0
    before = contents(state)
    again = ser(*words)
    assert again.code == 0
    assert "v1 is in use and already learnt this; nothing was done" in again.out
    assert contents(state) == before
    assert ser(*words, "--again", "--max-drop", "100").code == 0
    assert Store(state).current == "v2"


def test_json_is_all_there_is_on_stdout(ser: Ser, photos: Path, state: Path) -> None:
    words = ["learn", state, "--data", photos / "may", "--guard", photos / "guard", *QUICK, "--json"]
    found = ser(*words).json
    assert (found["version"], found["changed"], found["learnt"], found["held_out"]) == ("v1", True, 33, 3)
    assert found["classes"] == found["new_classes"] == ["[bold]x", "zero", "zwei 二"]
    guarded = {entry["label"]: entry for entry in found["changes"]}
    assert guarded["zero"]["where"] == "guard"
    assert (guarded["zero"]["count"], guarded["zero"]["before"]) == (12, None)
    assert sum(entry["count"] for entry in found["fresh"]) == 3
    assert ser(*words).json["changed"] is False


def test_a_refused_update_changes_nothing_and_can_be_accepted_later(
    ser: Ser, photos: Path, forgetful: Path
) -> None:
    kept = contents(forgetful, "candidate", "history", "objects")
    words = ["learn", forgetful, "--data", photos / "june", "--threads", "1"]
    refused = ser(*words)
    assert refused.code == 3, refused.err
    for piece in ("refused: more than 10 points were lost by", "still is v1", "candidate.json", "--accept"):
        assert piece in refused.out
    assert contents(forgetful, "candidate", "history", "objects") == kept
    assert Store(forgetful).verify() == []
    told = ser(*words, "--json")
    assert (told.code, told.json["refused"], told.json["version"]) == (3, True, "v1")
    assert set(told.json["fallen"]) <= {"zero", "[bold]x", "zwei 二"}
    net = json.loads((forgetful / "candidate.json").read_text())["parts"]["net"]["object"]
    accepted = ser("learn", forgetful, "--accept")
    assert accepted.code == 0, accepted.err
    assert accepted.out.splitlines()[-1].startswith("v2 is in use: 5 classes, 2 new")
    assert Store(forgetful).manifest("v2")["parts"]["net"]["object"] == net  # not trained again
    nothing = ser("learn", forgetful, "--accept")
    assert nothing.code == 1
    assert "no refused update waits there" in nothing.err


def test_an_update_that_diverges_is_refused_and_the_model_in_use_stays(
    ser: Ser, photos: Path, made: Path, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    said = ser("learn", made, "--data", photos / "june", "--lr", "1e38", "--device", "cpu")
    assert said.code == 1
    assert "lower train.lr" in said.err
    assert "Traceback" not in said.err
    assert not (made / WORK).exists()
    assert {path: path.read_bytes() for path in before} == before
    assert Store(made).current == "v1"
    assert ser("learn", tmp_path / "new", "--data", photos / "june", "--lr", "1e38", *QUICK).code == 1
    assert not (tmp_path / "new" / "current").exists()


def test_the_limit_decides_and_a_guard_is_judged_anew(ser: Ser, photos: Path, forgetful: Path) -> None:
    words = ["learn", forgetful, "--data", photos / "june", "--threads", "1"]
    assert ser(*words).code == 3
    guarded = ser(*words, "--guard", photos / "guard", "--json")
    assert guarded.code == 3
    assert {entry["where"] for entry in guarded.json["changes"]} == {"held-out", "guard"}
    assert ser(*words, "--max-drop", "100").code == 0


def test_the_gate_may_be_overruled_from_the_start(ser: Ser, photos: Path, forgetful: Path) -> None:
    done = ser("learn", forgetful, "--data", photos / "june", "--accept", "--threads", "1", "--json")
    assert (done.code, done.json["version"], done.json["passed"]) == (0, "v2", False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--net", "cnn"], "net.name was fixed as 'mlp' when the model was made, got 'cnn'"),
        (["--seed", "3"], "learner.seed was fixed as 0"),
        (["--side", "16"], "side was fixed as 8"),
        (["--classes", "a,b"], "learner.classes was fixed as None"),
        (["--tune", "head"], "net.tune was fixed as None when the model was made, got 'head'"),
        (["--weights", "x"], "net.weights was fixed as None"),
        (["--set", "net.body_rate=0.5"], "net.body_rate was fixed as None"),
        (["--set", "net.head=fc"], "net.head is not an option of mlp"),
        (["--set", "method.average=none"], "method.average was fixed as 0.99 when the model was made"),
        (["--epochs", "0"], "train.epochs must be >= 1"),
        (["--memory", "much"], "memory must be a number of samples or of bytes"),
        (["--set", "train.epoch=1"], "unknown setting 'train.epoch'; did you mean 'train.epochs'?"),
        (["--max-drop", "nan"], "--max-drop must be points >= 0, got nan"),
        (["--max-drop", "-1"], "--max-drop must be points >= 0, got -1"),
        (["--device", "abacus"], "device 'abacus' is not available"),
    ],
)
def test_settings_that_are_wrong_or_fixed_are_refused(
    words: list[str], message: str, ser: Ser, photos: Path, made: Path
) -> None:
    before = contents(made)
    told = ser("learn", made, "--data", photos / "june", *words)
    assert told.code == 2
    assert message in told.err
    assert contents(made) == before


@pytest.fixture(scope="module")
def made(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that tests look at and do not change."""
    folder = tmp_path_factory.mktemp("made") / "state"
    run_child(folder, photos / "may", "--net", "mlp", "--epochs", "1").join(60)
    assert Store(folder).current == "v1"
    return folder


def damage(folder: Path, kind: str) -> Path:
    """Data with something wrong."""
    data = folder / "data"
    if kind == "missing":
        return data
    data.mkdir()
    if kind == "empty folder":
        return data
    if kind == "text file":
        (data / "notes.txt").write_text("not a manifest")
        return data / "notes.txt"
    if kind == "npz":
        (data / "x.npz").write_bytes(b"PK but no archive")
        return data / "x.npz"
    write_digits(data / "photos", [0, 1], count=3)
    file = next((data / "photos" / "zero").iterdir())
    file.write_bytes(file.read_bytes()[:60] if kind == "corrupt image" else b"")
    return data / "photos"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "data"),
        ("empty folder", "must hold a folder for each class"),
        ("text file", "must begin with the header path,label"),
        ("npz", "x.npz"),
        ("corrupt image", ".png"),
        ("zero bytes", "is not an image"),
    ],
)
def test_bad_data_are_named_and_change_nothing(
    kind: str, message: str, ser: Ser, made: Path, tmp_path: Path
) -> None:
    data, before = damage(tmp_path, kind), contents(made)
    told = ser("learn", made, "--data", data)
    assert told.code == 1
    assert message in " ".join(told.err.split())
    assert contents(made) == before
    assert ser("learn", tmp_path / "new" / "state", "--data", data).code == 1
    assert not (tmp_path / "new").exists()


def test_a_guard_that_is_learnt_too_is_pointed_out(ser: Ser, photos: Path, state: Path) -> None:
    told = ser("learn", state, "--data", photos / "may", "--guard", photos / "may", *QUICK)
    assert told.code == 0, told.err
    assert "note: guard: 36 of 36 samples are in the training data too" in told.out


def test_help_tells_what_happens_without_an_option(ser: Ser) -> None:
    told = " ".join(ser("learn", "--help").out.split())
    for piece in (
        "[default: (auto)]",
        "[default: (5000,64MB)]",
        "[default: (10)]",
        "[default: (0.1)]",
    ):
        assert piece in told


def test_the_model_is_not_its_own_data(ser: Ser, made: Path) -> None:
    for data in (made, made / "objects"):
        told = ser("learn", made, "--data", data)
        assert told.code == 2
        assert "the folder of the model" in told.err
    assert "--data must name what is to be learnt" in ser("learn", made).err


def test_photos_in_place_of_a_model_are_left_alone(ser: Ser, photos: Path, tmp_path: Path) -> None:
    """A folder named as ours for stopped updates is somebody's own unless only updates are in it."""
    own = tmp_path / "jobs"
    shutil.copytree(photos / "june" / "four", own / WORK)
    before = contents(own)
    told = ser("learn", own, "--data", photos / "may", *QUICK)
    assert told.code == 1
    assert "holds other things and no model" in told.err
    assert contents(own) == before


def test_a_second_writer_is_kept_off(ser: Ser, photos: Path, made: Path) -> None:
    with Store(made).locked():
        told = ser("learn", made, "--data", photos / "june", "--threads", "1")
    assert told.code == 1
    assert f"process {os.getpid()} on" in told.err


def test_features_and_numbers_as_labels(ser: Ser, tmp_path: Path, state: Path) -> None:
    split = datasets.load("digits", Path())[0]
    rows = (split.labels < 3).nonzero().flatten()[:60]
    features = split.inputs[rows].flatten(1).numpy().astype("float32")
    np.savez(tmp_path / "x.npz", inputs=features, labels=split.labels[rows].numpy())
    words = ["learn", state, "--data", tmp_path / "x.npz", "--classes", "0,1,2,3", *QUICK, "--json"]
    assert ser(*words).json["classes"] == [0, 1, 2, 3]
    assert Store(state).read(parts=["model"])[1]["model"]["shape"] == [64]


def test_a_manifest_works_as_a_folder_does(ser: Ser, photos: Path, state: Path) -> None:
    lines = [
        f"may/{path.parent.name}/{path.name},{path.parent.name}" for path in (photos / "may").rglob("*.png")
    ]
    (photos / "list.csv").write_text("\n".join(["path,label", *lines]))
    assert ser("learn", state, "--data", photos / "list.csv", *QUICK, "--json").json["learnt"] == 33


def test_many_classes_are_cut_short_unless_all_are_asked_for(ser: Ser, tmp_path: Path, state: Path) -> None:
    labels = np.repeat(np.arange(100), 5)
    np.savez(tmp_path / "x.npz", inputs=np.random.default_rng(0).random((500, 4)), labels=labels)
    words = ["learn", state, "--data", tmp_path / "x.npz", *QUICK, "--epochs", "1"]
    short = ser(*words)
    assert "80 more; --all shows them all" in short.out
    assert "100 new (0, 1, 2, 3, 4 and 95 more)" in short.out
    assert ser(*words, "--again", "--max-drop", "100", "--all").out.count("held-out") == 100


# Killed

LONG = ["--net", "mlp", "--epochs", "500", "--seed", "7"]


def child(words: list[str], log: Path) -> None:
    sys.argv = ["ser", *words]
    with log.open("w", buffering=1) as file, redirect_stderr(file), redirect_stdout(io.StringIO()):
        main()


def run_child(state: Path, data: Path, *words: str) -> Any:
    """The command in a process of its own, which need not import everything first."""
    log = state.parent / f"{state.name}.log"
    log.unlink(missing_ok=True)
    line = ["learn", str(state), "--data", str(data), "--threads", "1", "--device", "cpu", *words]
    process = multiprocessing.get_context("fork").Process(target=child, args=(line, log))
    process.start()
    return process


def wait_for(log: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while not (log.exists() and text in log.read_text()):
        assert time.monotonic() < deadline, f"not said within a minute: {text}"
        time.sleep(0.005)


@pytest.mark.slow
def test_stopped_and_killed_and_repeated_it_ends_with_the_same_model(
    ser: Ser, photos: Path, tmp_path: Path
) -> None:
    state, log = tmp_path / "state", tmp_path / "state.log"
    process = run_child(state, photos / "may", *LONG)
    wait_for(log, "of them new")
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 130, log.read_text()
    assert "run the same command again to resume" in log.read_text()
    assert [path.name for path in state.iterdir()] == [WORK]
    other = ser("learn", state, "--data", photos / "june", *QUICK)
    assert other.code == 1
    assert "an update with other data or settings was stopped here" in other.err

    process = run_child(state, photos / "may", *LONG)
    wait_for(log, "resuming the stopped update after step")
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert not Store(state).exists

    process = run_child(state, photos / "may", *LONG)
    wait_for(log, "resuming the stopped update")
    os.kill(process.pid, signal.SIGTERM)
    process.join(60)
    assert process.exitcode == 143, log.read_text()

    words = ["--data", photos / "may", *LONG, "--threads", "1", "--device", "cpu"]
    resumed = ser("learn", state, *words)
    assert resumed.code == 0, resumed.err
    assert not (state / WORK).exists()
    assert ser("learn", tmp_path / "whole", *words).code == 0
    assert net_of(state) == net_of(tmp_path / "whole")


def test_a_stopped_update_can_be_forgotten(ser: Ser, photos: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    process = run_child(state, photos / "may", *LONG)
    wait_for(tmp_path / "state.log", "of them new")
    os.kill(process.pid, signal.SIGTERM)
    process.join(60)
    assert process.exitcode == 143
    done = ser("learn", state, "--data", photos / "june", *QUICK, "--restart")
    assert done.code == 0, done.err
    assert Store(state).current == "v1"
    assert not (state / WORK).exists()
