"""Groups of records, their summaries and pictures, without torch."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.records import make_record

from strongreplay.report.curves import accuracy_curves, curves_of
from strongreplay.report.page_tables import peak_memory
from strongreplay.report.summary import summarise
from strongreplay.report.tables import group_records
from strongreplay.runs.config import resolve
from strongreplay.storage.records import RunRecord


def test_mean_and_sample_deviation_by_hand() -> None:
    summary = summarise([80.0, 82.0, 84.0])
    assert summary is not None
    assert (summary.mean, summary.deviation, summary.count) == (82, 2, 3)
    assert summary.half_width == pytest.approx(4.303 * 2 / 3**0.5, abs=1e-3)  # Student's table, two degrees
    assert str(summary) == "82.00 ± 4.97"
    assert summary.text(count=True) == "82.00 ± 4.97 (3)"
    assert str(summarise([80.0])) == "80.00"
    assert summarise([None]) is None


def test_seeds_of_one_configuration_form_a_group_and_twins_are_told_apart() -> None:
    records = [make_record("ser", seed, 80 + seed) for seed in (2, 0, 1)]
    records += [make_record("ser", 0, 70, alpha=3), make_record("er", 0, 60), make_record("ser", 0, 99)]
    groups = group_records(records)
    assert [(g.method, len(g.records)) for g in groups] == [("er", 1), ("ser", 1), ("ser", 3)]
    groups = groups[::-1]
    assert [record.seed for record in groups[0].records] == [0, 1, 2]
    assert groups[0].records[0].score("class-il", "average_accuracy") == 80  # the same seed twice counts once
    assert groups[1].name == "SER (alpha=3)"
    assert groups[2].name == "ER"
    score = groups[0].score("class-il", "average_accuracy")
    assert score is not None
    assert score.mean == 81
    assert groups[0].score("domain-il", "average_accuracy") is None
    assert curves_of(groups[0], "class-il")[0].tolist() == [90, 80]


def test_twins_of_a_run_of_the_paper_have_the_name_of_their_recipe_or_of_what_differs_from_it() -> None:
    place, accuracy = ("p-mnist", "ser", 200, 0), make_record().results
    configs = [
        resolve(*place),
        resolve(*place, recipe_name="tuned"),
        resolve(*place, {"method.alpha": 9.0}),
        resolve(*place, {"method.early": None, "method.alpha": 9.0}, recipe_name="tuned"),
    ]
    records = [RunRecord(config.to_dict(), accuracy, {}) for config in configs]
    names = {group.name for group in group_records(records)}
    rest = "SER (replay_size=200, alpha=9.0, beta=0.01, train.lr=0.15)"
    assert names == {"SER (published)", "SER (tuned)", "SER (alpha=9.0)", rest}
    assert group_records(records[1:2])[0].name == "SER", "nothing to tell apart"
    alone = {group.name for group in group_records(records[1:3])}
    assert alone == {
        "SER (replay_size=200, alpha=4.0, beta=0.01, early=True, train.lr=0.15)",
        "SER (alpha=9.0, beta=0.2, train.lr=0.1)",
    }


def test_records_and_summaries_are_readable_in_a_notebook() -> None:
    assert repr(make_record("ser", 3, 81.5)).endswith("seed 3: class-il 81.50 %, task-il 81.50 %)")
    assert repr(replace(make_record(), results={"accuracy": {}})).endswith(": no scores)")
    assert str(summarise([80.0, 82.0, 84.0])) == "82.00 ± 4.97"


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    groups = group_records([make_record(method, seed) for method in ("er", "ser") for seed in (0, 1)])
    path = accuracy_curves(groups, tmp_path / "new" / "picture.png")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_reports_and_records_never_import_torch() -> None:
    code = (
        "import sys, strongreplay.cli, strongreplay.storage.records, strongreplay.runs.recipes;"
        "import strongreplay.storage.checkpoints, strongreplay.storage.files, strongreplay.storage.lock;"
        "import strongreplay.metrics;"
        "import strongreplay.report.figures, strongreplay.report.page, strongreplay.report.markdown;"
        "found = {'torch', 'matplotlib.pyplot'} & set(sys.modules);"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_peaks_of_records_from_before_they_were_their_own_are_not_shown() -> None:
    phases = {"train": {"seconds": 1.0, "peak_memory_bytes": 2**30}}
    old = replace(make_record("ser"), measured={"phases": phases, "versions": {"commit": "f4ea9d69ae46"}})
    new = replace(old, measured={"phases": phases, "versions": {"code": "6c9efc7b02c7"}})
    assert (old.has_own_peak, new.has_own_peak) == (False, True)
    assert peak_memory(group_records([old])[0]) is None
    assert peak_memory(group_records([new])[0]) == 2**30
