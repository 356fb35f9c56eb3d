"""The report of the cpu protocol: its own table, and verdicts on the paper's ordering and margins only."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from strongreplay.cli.compare import print_comparison
from strongreplay.cli.reproduce import config_for
from strongreplay.cli.verdict_tables import print_leads, print_verdicts
from strongreplay.report.markdown import LEADS_MARK, renew
from strongreplay.report.page_tables import verdict_rows
from strongreplay.report.protocols import as_markdown, cpu_cells, lead_table, leads, stream_table
from strongreplay.report.reproduction import COLUMNS, END, as_csv, texts
from strongreplay.report.styles import net_of
from strongreplay.report.tables import group_records
from strongreplay.report.verdicts import judge_all
from strongreplay.runs.config import RunConfig, resolve
from strongreplay.runs.paper import PaperCell, items
from strongreplay.storage.records import RunRecord

STREAM = "seq-cifar100-10"


@cache
def config_of_cell(name: str, protocol: str) -> tuple[PaperCell, RunConfig]:
    item = next(item for item in items(protocol) if item.name == name)
    return item, config_for(item, 0)


def record(method: str, seed: int, score: float, protocol: str = "cpu") -> RunRecord:
    place = f"{STREAM}/{method}" if method == "sgd" else f"{STREAM}/m200/{method}"
    _, config = config_of_cell(f"table1/{place}/class-il", protocol)
    scores = {"matrix": [[score]], "average_accuracy": score, "forgetting": 100 - score}
    accuracy = {"class-il": scores, "task-il": scores}
    phases = {"train": {"seconds": 1800.0}, "evaluate": {"seconds": 1800.0}}
    measured = {"recipe": config.source, "phases": phases}
    return RunRecord({**config.to_dict(), "seed": seed}, {"accuracy": accuracy}, measured)


def lead_over(method: str, own: list[float], theirs: list[float]) -> tuple[str, str]:
    records = [record("ser", seed, score) for seed, score in enumerate(own)]
    records += [record(method, seed, score) for seed, score in enumerate(theirs)]
    found = {lead.test.place.scenario: lead for lead in leads(cpu_cells(records))}["class-il"]
    return found.ordering, found.size


@pytest.mark.parametrize(
    ("own", "theirs", "expected"),
    [  # the paper prints SER 35.29 and DER++ 21.76 in this column: 13.53 ahead
        ([30.0, 31.0, 32.0], [16.5, 17.6, 18.4], ("confirmed", "as printed")),
        ([30.0, 31.0, 32.0], [28.0, 28.9, 30.1], ("confirmed", "smaller")),
        ([50.0, 51.0, 52.0], [30.0, 30.9, 32.1], ("confirmed", "larger")),
        ([30.0, 31.0, 32.0], [32.0, 32.9, 34.1], ("contradicted", "smaller")),
        ([30.0, 31.0, 32.0], [30.1, 30.8, 32.1], ("not shown", "smaller")),
        ([30.0, 31.0], [20.0, 20.5], ("too few seeds", "too few seeds")),
        ([30.0], [20.0], ("too few seeds", "too few seeds")),
    ],
)
def test_the_ordering_and_the_margin_are_judged(
    own: list[float], theirs: list[float], expected: tuple[str, str]
) -> None:
    assert lead_over("derpp", own, theirs) == expected


def test_only_common_seeds_are_compared() -> None:
    records = [record("ser", seed, 30.0 + seed) for seed in (0, 1, 2)] + [record("er", 7, 10.0)]
    assert leads(cpu_cells(records)) == []
    (first, second) = leads(cpu_cells([*records, record("er", 1, 11.0)]))
    assert (first.here.mean, first.here.count, second.test.place.scenario) == (20.0, 1, "task-il")
    assert "+20.00 (1) | too few seeds" in lead_table(cpu_cells([*records, record("er", 1, 11.0)]))


def test_the_table_has_results_printed_means_and_hours_and_no_verdict() -> None:
    records = [record("ser", seed, 30.0 + seed) for seed in (0, 1, 2)] + [record("sgd", 0, 9.0)]
    table = stream_table(records, STREAM, 200).splitlines()
    assert table[0].count("cpu") == 2
    assert [line.split(" | ")[0] for line in table[2:]] == ["| SGD", "| SER"]
    assert "| 31.00 ± 2.48 (3) | 69.00 ± 2.48 (3) | 35.29 | 31.00" in table[3]
    assert table[3].endswith("| 1.0 |")
    own = replace(records[0], config=resolve(STREAM, "clser", 200, recipe_name="cpu").to_dict())
    joined = stream_table([*records, own, record("er", 0, 99.0, "full")], STREAM, 200)
    assert [line.split(" | ")[0] for line in joined.splitlines()[2:]] == ["| SGD", "| CLS-ER", "| SER"]
    assert "| CLS-ER | 30.00 (1) | 70.00 (1) | - |" in joined  # not in the paper's table
    assert stream_table([], STREAM, 200) == "Not run yet."
    assert lead_table(cpu_cells([])) == "Not run yet."


def test_records_of_the_protocols_do_not_mix() -> None:
    full = [record("ser", seed, 30.0, "full") for seed in (0, 1, 2)]
    cpu = [record("ser", seed, 20.0) for seed in (3, 4)]
    seeds = {
        name: {r.seed for cell in cells for r in cell.records}
        for name, cells in (("cpu", cpu_cells(full + cpu)), ("full", judge_all(items(), full + cpu)))
    }
    assert seeds == {"cpu": {3, 4}, "full": {0, 1, 2}}


def test_a_cell_has_the_cpu_result_in_its_own_column() -> None:
    records = [record("ser", seed, 30.0 + seed) for seed in (0, 1, 2)] + [record("ser", 0, 50.0, "full")]
    name = f"table1/{STREAM}/m200/ser/class-il"
    (cell,) = judge_all([item for item in items() if item.name == name], records)
    row = dict(zip(COLUMNS, texts(cell), strict=True))
    assert (row["ours"], row["cpu"], row["verdict"]) == ("50.00 (1)", "31.00 ± 2.48 (3)", "too few seeds")
    assert ",50,,1,,14.71,,,31,3,too few seeds," in as_csv([cell])
    assert "leads of SER: 2 confirmed" in as_markdown(
        [*records, *(record("er", seed, score) for seed, score in enumerate((9.0, 10.1, 10.9)))]
    )


def test_verdicts_of_cpu_results_are_on_the_lead_alone(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"ser": (30.0, 31.0, 32.0), "er": (9.0, 10.1, 10.9)}
    records = [record(name, seed, score) for name, own in scores.items() for seed, score in enumerate(own)]
    found = leads(cpu_cells(records))
    cells = judge_all([item for item in items() if item.target == "table1"], records)
    print_verdicts([cell for cell in cells if cell.cpu])
    print_leads(found)
    told = capsys.readouterr().out
    assert "10.00 ± 2.37 (3)" in told
    assert "verdict  " not in told
    assert "ER        +21.06  +21.00 ± 0.25 (3)  confirmed  as printed" in told
    rows = {row["item"].name: row["leads"] for row in verdict_rows(cells, found)}
    said = "SER (memory 200) leads by +21.00 ± 0.25, printed +21.06: ordering confirmed, lead as printed"
    assert rows[f"table1/{STREAM}/m200/er/class-il"] == [said]
    assert rows[f"table1/{STREAM}/m200/ser/class-il"] == []


def test_settings_that_are_not_those_of_the_protocol_are_named() -> None:
    usual = record("ser", 0, 20.0)
    other = replace(usual, config={**usual.config, "train": {**usual.config["train"], "epochs": 1}})
    assert [group.variant for group in group_records([usual])] == [""]
    assert [group.variant for group in group_records([other])] == ["train.epochs=1"]
    both = {group.variant for group in group_records([usual, other])}
    assert both == {"cpu protocol", "train.epochs=1"}


@pytest.mark.slow
def test_tables_and_figures_keep_the_protocols_apart(tmp_path: Path) -> None:
    cpu = record("ser", 0, 20.0)
    plain = replace(
        cpu, measured={}, config={**cpu.config, "train": {**cpu.config["train"], "milestones": []}}
    )
    nets = [net_of(group) for group in group_records([cpu, plain])]
    assert sorted(nets) == ["resnet18, width 20", "resnet18, width 20, cpu protocol"]
    assert [group.variant for group in group_records([cpu, plain])] == ["", ""]
    print_comparison([cpu, plain], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{STREAM}-cpu.png", f"{STREAM}.png"]


def test_marks_in_markdown_are_filled_from_the_records() -> None:
    text = f"one\n<!-- cpu protocol of {STREAM}, memory 200 -->\n{END}\ntwo\n{LEADS_MARK}\n{END}\n"
    records = [record(method, 0, score) for method, score in (("ser", 30.0), ("er", 20.0))]
    renewed = renew(text, records)
    cells = cpu_cells(records)
    assert stream_table(records, STREAM, 200) in renewed
    assert lead_table(cells) in renewed
    assert renew(renewed, records) == renewed
