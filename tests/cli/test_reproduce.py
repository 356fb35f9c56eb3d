"""ser reproduce as a person meets it, on cells of embedded data in the place of the paper's."""

import re
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console

from strongreplay.cli import main
from strongreplay.cli.reproduce import choose, config_for, fingerprints_now, standing_of
from strongreplay.errors import ConfigError
from strongreplay.progress import GridProgress
from strongreplay.runs.grid import Job
from strongreplay.runs.paper import PaperCell, items
from strongreplay.runs.recipes import PROTOCOLS

QUICK = (("train.epochs", 1),)
ER = PaperCell(
    "table2/split-digits/m20/er/class-il", "table2", "split-digits", "er", 20, "class-il",
    mean=99.0, deviation=0.1, count=5, settings=QUICK, note="a note",
)  # fmt: skip
TASK = replace(ER, name="table2/split-digits/m20/er/task-il", scenario="task-il", mean=1.0)
SGD = replace(ER, name="table2/split-digits/sgd/class-il", method="sgd", memory_size=None, mean=0.0)
DASH = replace(ER, name="table2/permuted-digits/m20/lwf/domain-il", stream="permuted-digits", method="lwf")
DASH = replace(DASH, scenario="domain-il", mean=None, deviation=None, why_none="needs task identities")
CELLS = (ER, TASK, SGD, DASH)


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A paper of four cells, and a folder to work in."""
    for module in ("markdown", "page", "protocols"):  # these keep the real cells, whoever imports them first
        import_module(f"strongreplay.report.{module}")
    for protocol in PROTOCOLS:
        items(protocol)  # kept for later tests: the real ones
    for module in ("reproduce", "reproduce_report"):
        monkeypatch.setattr(f"strongreplay.cli.{module}.items", lambda protocol="full": CELLS)
    monkeypatch.setattr("strongreplay.runs.paper.items", lambda protocol="full": CELLS)
    known = fingerprints_now()
    monkeypatch.setattr(
        "strongreplay.runs.paper.fingerprints", lambda protocol="full": known if protocol == "full" else {}
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ser(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ser", *words])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


@pytest.mark.slow
def test_from_nothing_to_a_verdict(
    paper: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("reproduce", "table2", "--seeds", "3", "--jobs", "2", "--device", "cpu")
    assert ser(monkeypatch, *command) == 0
    first = capsys.readouterr()
    assert "cells 3, runs 6: 0 recorded, 6 to make" in first.err
    assert first.err.count("split-digits er m20 seed") >= 3
    rows = {line.split()[0]: line for line in first.out.splitlines() if line.strip().startswith("table2/")}
    assert "below" in rows[ER.name]
    assert "99.00 ± 0.12 (5)" in rows[ER.name]
    assert "better" in rows[TASK.name]
    assert "no number" in rows[DASH.name]
    assert "needs task identities" in rows[DASH.name]

    assert ser(monkeypatch, *command) == 0
    assert "6 recorded, 0 to make" in capsys.readouterr().err

    (paper / "results" / "foreign.json").write_text("[]")
    assert ser(monkeypatch, "reproduce", "report", "--to", "made", "--figures") == 0
    told = capsys.readouterr()
    assert "passed over results/foreign.json" in told.err
    assert "4 cells: 1 below, 2 better, 1 no number" in told.out
    assert (paper / "made" / "verdicts.md").read_text().count(ER.name) == 1
    assert len((paper / "made" / "verdicts.csv").read_text().splitlines()) == 5
    assert r"\begin{tabular}" in (paper / "made" / "verdicts.tex").read_text()
    assert "<!doctype html>" in (paper / "made" / "report.html").read_text()[:200].lower()
    figures = {path.name for path in (paper / "made" / "figures").iterdir()}
    assert {"split-digits-m20-class-il-curves.png", "split-digits-m20-class-il-curves.svg"} <= figures

    assert ser(monkeypatch, "reproduce", "list", "--quick") == 0
    assert " 3 " in next(line for line in capsys.readouterr().out.splitlines() if line.startswith(ER.name))

    assert ser(monkeypatch, "show", ER.name) == 0
    shown = capsys.readouterr().out
    assert "difference -" in shown
    assert "method.memory_size=20 method.replay_size=" in shown  # as one types them
    assert " train.milestones= " in shown
    assert sum(f"seed-{seed}.json" in shown for seed in range(3)) == 3

    assert ser(monkeypatch, "show", ER.name.replace("/er/", "/re/")) == 2
    assert f"did you mean '{ER.name}'" in capsys.readouterr().err


def test_a_failing_run_is_told_by_the_exit_code(
    paper: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = replace(SGD, settings=(*QUICK, ("train.lr", 1e30)))
    monkeypatch.setattr("strongreplay.cli.reproduce.items", lambda protocol="full": (wild, SGD))
    assert ser(monkeypatch, "reproduce", "table2", "--seeds", "1", "--threads", "1", "--device", "cpu") == 1
    told = capsys.readouterr().err
    assert "split-digits sgd seed 0: failed: stopped at" in told
    assert "error: 1 of 2 runs failed" in told
    assert len(list((paper / "results").rglob("seed-0.json"))) == 1


def test_steps_and_hours_are_estimated(
    paper: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ser(monkeypatch, "reproduce", "list", "table2", "--only", "er") == 0
    told = capsys.readouterr()
    row = next(line for line in told.out.splitlines() if line.startswith(ER.name)).split()
    assert row[1:6] == ["99.00", "±", "0.12", "(5)", "0"]
    assert int(row[6]) > 10
    assert 0 < float(row[7]) < 1
    assert "published: mean ± 95 % interval (runs), in per cent" in told.out
    assert "hours: training of one seed" in told.err


def test_only_takes_one_word_of_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = choose("table2", "p-mnist, r-mnist, SER, m200")
    assert {(item.stream, item.method, item.memory_size) for item in chosen} == {
        ("p-mnist", "ser", 200), ("r-mnist", "ser", 200)
    }  # fmt: skip
    with pytest.raises(ConfigError, match="did you mean 'p-mnist'"):
        choose("table2", "p-mnsit")
    with pytest.raises(ConfigError, match="unknown target 'table9'"):
        choose("table9", "")
    assert config_for(chosen[0], 3).seed == 3
    assert capsys.readouterr().err == ""
    assert {item.method for item in choose("table2", "p-mnist,sgd,er,m200")} == {"er"}
    assert capsys.readouterr().err == "--only: nothing of sgd fits the other words; left out\n"
    with pytest.raises(ConfigError, match="--only sgd,m200: no cell fits all of it"):
        choose("table2", "sgd,m200")


def test_the_live_table_shows_what_is_recorded_beside_what_is_published(
    paper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(ER, 0)
    assert standing_of(list(CELLS), config, paper) == ("- / -", "99.00 ± 0.12 (5) / 1.00 ± 0.12 (5)")
    assert ser(monkeypatch, "reproduce", "table2", "--only", "er", "--seeds", "2", "--device", "cpu") == 0
    so_far, _ = standing_of(list(CELLS), config, Path("results"))
    assert re.fullmatch(r"\d\d\.\d\d ± \d+\.\d\d \(2\) / \d\d\.\d\d ± \d+\.\d\d \(2\)", so_far)
    job, console = Job.of(config), Console(width=150)
    job.done, job.total = 50, 200
    progress = GridProgress([job], lambda job: standing_of(list(CELLS), job.config, Path("results")))
    with console.capture() as shown:
        console.print(progress.table([job]))
    progress.on_tick([job])  # a kept state had 50 of its 200 steps
    job.done, progress.began = 100, progress.began - 60
    progress.on_tick([job])
    assert re.search(
        rf"split-digits ER m20 seed 0 +25 % +50 of 200 +{re.escape(so_far)} +99\.00", shown.get()
    )
