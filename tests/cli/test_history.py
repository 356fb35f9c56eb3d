"""ser status, history, diff and rollback: what a person and a machine are told of a kept model."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.kept_models import CPU, make_model, ser, teach, write_folder
from torch import nn

from strongreplay.cli.status import make_classes_table
from strongreplay.data.user_data import digests
from strongreplay.learner import Learner
from strongreplay.models.inspect import read_history, read_status
from strongreplay.models.memory_view import all_images, read_parts, samples_of
from strongreplay.models.parts import model_of
from strongreplay.models.store import CANDIDATE, Store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("made"))


@pytest.fixture
def state(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "model"))


def test_status_tells_classes_memory_versions_and_what_waits(state: Path) -> None:
    said = ser("status", state)
    assert said.code == 0, said.err
    assert said.lines[0].startswith("v2 is in use, written ")
    assert said.lines[0].endswith("learnt from v1 with february")
    assert "net mlp width 16, method ser, takes images of 1 x 20 x 20; 2 updates so far" in said.lines
    rows = {
        line.split()[0]: line.split() for line in said.lines if line.startswith(("one ", "zero ", "two "))
    }
    assert [rows[name][1:3] for name in ("one", "zero", "two")] == [["v1", "40"], ["v1", "20"], ["v2", "20"]]
    text = " ".join(said.out.split())
    assert "memory: budget 40 samples, stored as raw; 32 samples to replay, room for 32" in text
    assert "8 held out" in text
    assert "2 versions (* in use)" in text
    assert any(line.startswith("v2 * ") for line in said.lines)
    assert "a refused update of march from v2 waits" in text
    assert "an update was stopped after step 2" in text


def test_status_for_machines_agrees_with_what_is_stored(state: Path) -> None:
    said = ser("status", state, "--json")
    told = json.loads(said.out)
    assert said.err == ""
    parts = read_parts(Store(state), None)[1]
    samples = samples_of(parts)
    for one in told["classes"]:
        own = [sample for sample in samples if sample.label == one["label"]]
        assert one["replay"] == sum(sample.kind == "replay" for sample in own)
        assert one["held_out"] == sum(sample.kind == "held-out" for sample in own)
        assert one["bytes"] == sum(sample.bytes for sample in own)
    entries = Store(state).manifest("v2")["parts"]
    assert told["memory"]["replay"]["bytes"] == entries["memory"]["bytes"]
    assert told["memory"]["held-out"]["bytes"] == entries["held"]["bytes"]
    objects = {entry["object"]: entry["bytes"] for entry in entries.values()}  # equal parts are there once
    assert told["versions"][1]["bytes"] == sum(objects.values())
    assert told["bytes"] == sum(path.stat().st_size for path in state.rglob("*") if path.is_file())
    assert told["candidate"]["data"] == "march"
    assert told["stopped"]["step"] == 2


def test_accuracy_in_status_is_that_of_all_held_out_samples_after_the_last_update(state: Path) -> None:
    about = Store(state).read("v2", parts=())[0].about
    told = {one.label: one for one in read_status(Store(state)).classes}
    (change,) = [change for change in about["changes"] if change["label"] == "one"]
    (fresh,) = [entry for entry in about["fresh"] if entry[0] == "one"]
    assert told["one"].judged_by == change["count"] + fresh[2]
    right = change["after"] * change["count"] / 100 + fresh[1]
    assert told["one"].accuracy == pytest.approx(100 * right / told["one"].judged_by)
    assert told["two"].measured_in == "v2"


def test_after_a_rollback_status_tells_of_that_line_alone(state: Path) -> None:
    ser("rollback", state, "v1")
    told = json.loads(ser("status", state, "--json").out)
    assert told["version"] == "v1"
    assert {one["label"]: one["samples"] for one in told["classes"]} == {"zero": 20, "one": 20}
    assert len(told["versions"]) == 2


def test_what_older_versions_would_have_told_is_marked(tmp_path: Path) -> None:
    state = tmp_path / "model"
    for number in range(4):
        folder = write_folder(tmp_path / str(number), (number,), 0, 6)
        teach(state, folder, max_drop=200.0, keep=1)
    said = ser("status", state)
    assert any(line.startswith("zero v3 or before ") for line in said.lines)
    assert any(line.startswith("three v4 ") for line in said.lines)
    assert "samples are counted since v3; older versions are gone" in said.lines
    told = json.loads(ser("history", state, "--json").out)
    assert [act["act"] for act in told].count("prune") == 2
    assert told[0]["new_classes"] is None  # its version is gone
    assert told[-2]["new_classes"] == ["three"]


def test_a_hundred_classes_stay_readable(tmp_path: Path) -> None:
    draws, labels = np.random.default_rng(0), [f"[bold]{number}[/] ø" for number in range(100)]
    features = draws.normal(size=(300, 4)).astype(np.float32)
    state = tmp_path / "model"
    teach(state, (features, labels * 3), settings={"learner.memory": 300, "train.epochs": 1})
    short, whole = ser("status", state), ser("status", state, "--all")
    assert "100 classes, the worst first" in short.out
    assert short.out.count("[bold]") == 20
    assert "80 more; --all shows them all" in short.out
    assert whole.out.count("[bold]") == 100
    assert "takes 4 features" in short.out


def test_tables_fit_eighty_columns(state: Path) -> None:
    status = read_status(Store(state))
    long = replace(status.classes[0], label="a very long name of a class that goes on and on " * 3)
    told = replace(status, classes=(long, *status.classes[1:]))
    lines = make_classes_table(told, everything=True).layout(80)
    assert max(map(len, lines)) <= 80
    assert "".join(line.split("  ")[0].replace(" ", "") for line in lines).count("goesonandon") == 3
    assert not any("…" in line for line in lines)


def test_a_damaged_version_is_told_and_the_rest_shown(state: Path) -> None:
    path = state / "versions" / "v0001.json"
    path.write_bytes(path.read_bytes()[:-9])
    said = ser("status", state)
    assert said.code == 0
    assert "note: " in said.err
    assert "v0001.json" in said.err
    assert any(line.startswith("one v2 or before") for line in said.lines)


def test_a_model_without_memory_has_a_status(tmp_path: Path) -> None:
    state = tmp_path / "model"
    teach(state, write_folder(tmp_path / "a", (0, 1), 0, 8), settings={"learner.method": "sgd"})
    teach(state, write_folder(tmp_path / "b", (2,), 0, 8), max_drop=200.0)
    assert "memory: no sample to replay" in ser("status", state).out
    assert ser("diff", state, "v1", "v2").code == 0
    assert ser("memory", state, "list").code == 0


def test_history_tells_every_act_with_what_it_did(state: Path) -> None:
    ser("rollback", state, "v1")
    ser("memory", state, "forget", "--label", "zero", "--yes")
    told = json.loads(ser("history", state, "--json").out)
    assert [act["act"] for act in told] == ["learn", "learn", "refuse", "rollback", "forget"]
    assert told[0]["new_classes"] == ["one", "zero"]
    assert told[0]["old_before"] is None
    about = Store(state).read("v2", parts=())[0].about
    assert told[1]["old_after"] == pytest.approx(np.mean([change["after"] for change in about["changes"]]))
    assert told[2]["new_classes"] == ["three"]
    assert told[3]["from"] == "v2"
    said = ser("history", state)
    assert said.lines[0] == "5 acts, the newest first"
    assert any("forget v1" in line and "in v1, v2, candidate" in line for line in said.lines)
    assert any("rollback v1 from v2" in line for line in said.lines)
    assert any("learn v2 february, 40 samples two" in line for line in said.lines)


def test_a_long_history_shows_the_last_acts(state: Path) -> None:
    for number in range(30):
        Store(state).rollback(f"v{1 + number % 2}", {"act": "rollback", "from": "v1"})
    assert "13 more; --all shows them all" in ser("history", state).out
    assert ser("history", state, "--all").out.count("rollback") == 30


def test_diff_names_classes_memory_weights_and_settings(state: Path) -> None:
    told = json.loads(ser("diff", state, "v1", "v2", "--json").out)
    assert told["new_classes"] == ["two"]
    assert told["gone_classes"] == []
    sources = [
        {(one.source, one.kind) for one in samples_of(read_parts(Store(state), name)[1])}
        for name in ("v1", "v2")
    ]
    came = sum(one["replay_came"] + one["held_out_came"] for one in told["memory"])
    went = sum(one["replay_went"] + one["held_out_went"] for one in told["memory"])
    assert (came, went) == (len(sources[1] - sources[0]), len(sources[0] - sources[1]))
    nets = [Store(state).read(name, parts=("net",))[1]["net"] for name in ("v1", "v2")]
    layer = told["weights"][0]["layer"]
    first, second = (
        torch.cat(
            [net[f"{layer}.{own}"][: len(nets[0][f"{layer}.{own}"])].flatten() for own in ("weight", "bias")]
        )
        for net in nets
    )
    assert told["weights"][0]["change"] == pytest.approx(
        ((second - first).norm() / first.norm()).item(), 1e-4
    )
    shares = [one["change"] for one in told["weights"]]
    assert shares == sorted(shares, reverse=True)
    assert told["settings"] == {}


def test_diff_judges_both_by_the_same_samples_that_neither_replays(state: Path) -> None:
    told = {one["label"]: one for one in json.loads(ser("diff", state, "v1", "v2", "--json").out)["accuracy"]}
    assert set(told) == {"zero", "one"}
    held, replayed = dict[str, tuple[Any, Any]](), set[str]()
    for name in ("v1", "v2"):
        parts = read_parts(Store(state), name)[1]
        images = all_images(parts)
        for sample, digest, image in zip(samples_of(parts), digests(images), images, strict=True):
            if sample.kind == "replay":
                replayed.add(digest)
            else:
                held[digest] = (sample.label, image)
    ones = torch.stack(
        [image for digest, (label, image) in held.items() if label == "one" and digest not in replayed]
    )
    assert told["one"]["count"] == len(ones)
    for name, key in (("v1", "before"), ("v2", "after")):
        answers = model_of(Store(state).read(name)[1], CPU).answers(ones)
        assert told["one"][key] == pytest.approx(100 * answers.count("one") / len(ones))


def test_diff_takes_the_candidate_and_the_same_version_twice(state: Path) -> None:
    said = ser("diff", state, "v2", CANDIDATE)
    assert "new classes: three" in said.lines
    same = ser("diff", state, "v2", "v2")
    assert "new classes: none" in same.lines
    assert "memory: the same samples" in same.lines
    assert "settings: the same" in same.lines
    assert "0.00 %" in same.out


def test_diff_names_settings_that_were_changed(state: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "may", (5,), 0, 8)
    teach(state, folder, settings={"train.epochs": 1}, max_drop=200.0, restart=True)
    assert "setting train.epochs: 2 → 1" in ser("diff", state, "v2", "v3").lines


def test_a_net_of_ones_own_is_told_about_but_not_judged(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    learner = Learner(nn.Linear(4, 3), epochs=1, memory=20)
    for labels in (["a", "b"], ["c", "d"]):
        learner.learn(draws.normal(size=(20, 4)).astype(np.float32), labels * 10)
        learner.save(tmp_path / "model")
    assert "net own" in ser("status", tmp_path / "model").out
    said = ser("diff", tmp_path / "model", "v1", "v2")
    assert "new classes: c, d" in said.lines
    assert "a net of its user's own answers in Python alone" in said.out
    assert "head" in said.out


def test_rollback_is_told_and_undone(state: Path) -> None:
    said = ser("rollback", state, "v1")
    assert said.lines == ["v1 is in use now", f"undo with: ser rollback {state} v2"]
    assert "--restart" in said.err
    assert Store(state).current == "v1"
    assert ser("rollback", state, "v1").out == "v1 is in use already\n"
    assert ser("rollback", state, "v2").code == 0
    assert Store(state).current == "v2"
    assert [line["act"] for line in Store(state).history()].count("rollback") == 2


def test_rollback_mends_a_damaged_name_of_the_version_in_use(state: Path) -> None:
    (state / "current").write_text("nonsense")
    assert ser("status", state).code == 1
    assert ser("rollback", state, "v2").code == 0
    assert Store(state).current == "v2"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["status", "{none}"], 1, "no model is kept there"),
        (["history", "{none}"], 1, "no model is kept there"),
        (["diff", "{none}", "v1", "v2"], 1, "no model is kept there"),
        (["rollback", "{none}", "v1"], 1, "no model is kept there"),
        (["rollback", "{state}", "v9"], 2, "no version 'v9'; there are: v1, v2, candidate"),
        (["rollback", "{state}", "candidate"], 2, "put in use by accepting it"),
        (["diff", "{state}", "v1", "v9"], 2, "no version 'v9'"),
    ],
)
def test_mistakes_are_told_and_change_nothing(
    state: Path, tmp_path: Path, words: list[str], code: int, message: str
) -> None:
    history = (state / "history.jsonl").read_bytes()
    said = ser(*(word.format(none=tmp_path / "none", state=state) for word in words))
    assert said.code == code
    assert message in " ".join(said.err.split())
    assert said.out == ""
    assert not (tmp_path / "none").exists()
    assert (state / "history.jsonl").read_bytes() == history


def test_acts_of_versions_that_are_gone_are_still_told(state: Path) -> None:
    Store(state).prune(1)
    assert [entry.act for entry in read_history(Store(state))][:3] == ["learn", "learn", "refuse"]


@pytest.mark.parametrize(
    ("words", "default"),
    [
        ("run", "[default: (PyTorch's choice)]"),
        ("resume", "[default: (the same)]"),
        ("compare", "[default: (in the first folder)]"),
        ("export", "[default: (the one in use)]"),
        ("memory STATE list", "[default: (the one in use)]"),
        ("data check", "[default: (all that are there)]"),
    ],
)
def test_help_tells_defaults_that_are_no_values(
    words: str, default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Square brackets in a help text would be taken for markup and vanish."""
    monkeypatch.setenv("COLUMNS", "200")
    assert default in ser(*words.split(), "--help").out
