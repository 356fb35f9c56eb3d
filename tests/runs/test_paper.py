"""The paper's cells: all are there, each leads to one configuration, and the verdicts follow the rule."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from scipy import stats

from strongreplay.cli.reproduce import fingerprints_now
from strongreplay.cli.verdict_tables import print_verdicts
from strongreplay.errors import ConfigError
from strongreplay.report.markdown import renew
from strongreplay.report.paired import compare_cells, compare_groups
from strongreplay.report.reproduction import (
    BEGIN,
    END,
    as_csv,
    as_latex,
    as_markdown,
    texts,
    tuned,
)
from strongreplay.report.summary import Summary, summarise
from strongreplay.report.tables import group_records
from strongreplay.report.verdicts import (
    Cell,
    difference_interval,
    judge,
    judge_all,
    judge_interval,
    seeds_to_decide,
)
from strongreplay.runs.config import resolve
from strongreplay.runs.paper import NOTES, TARGETS, PaperCell, fingerprints, items
from strongreplay.runs.recipes import PUBLISHED, TUNED
from strongreplay.storage.records import RunRecord, fingerprint

SER = next(item for item in items() if item.name == "table2/p-mnist/m200/ser/domain-il")


def test_every_cell_of_the_paper_is_an_item() -> None:
    everything = items()
    assert len({item.name for item in everything}) == len(everything)
    accuracy = [item for item in everything if item.target in ("table1", "table2")]
    assert sum(item.mean is not None for item in accuracy) == 322
    dashes = [item for item in accuracy if item.mean is None]
    assert len(dashes) == 26
    assert all(item.why_none for item in dashes)
    targets = Counter(item.target for item in everything)
    assert list(targets) == list(TARGETS)
    assert (targets["table3"], targets["table4"]) == (12, 20)
    compared = [
        "agem",
        "clser",
        "co2l",
        "derpp",
        "er",
        "ert",
        "fdr",
        "gem",
        "gss",
        "hal",
        "icarl",
        "joint",
        "lvt",
        "lwf",
        "oewc",
        "rm",
        "ser",
        "sgd",
        "si",
        "tamil",
    ]
    assert {item.method for item in accuracy} == set(compared)  # the paper leaves DER out
    assert NOTES.keys() <= {item.name for item in everything}
    assert (SER.mean, SER.deviation, SER.count) == (82.76, 0.62, 5)


def test_ablation_rows_that_repeat_another_method_say_so() -> None:
    by_name = {item.name: item for item in items()}
    repeating = [item for item in items() if "the paper prints the number of" in item.note]
    assert len(repeating) == 8
    for item in repeating:
        _, stream, size, row, setting = item.name.split("/")
        table, method = item.note.split(" in ")[1], {"replay": "er", "backward": "derpp"}[row]
        source = by_name["/".join([table.lower().replace(" ", ""), stream, size, method, setting])]
        assert item.mean == source.mean
        assert f"of {'ER' if method == 'er' else 'DER++'} in" in item.note


def test_fingerprints_are_those_of_the_configurations() -> None:
    assert fingerprints() == fingerprints_now(), "run: ser reproduce refresh"


def test_what_cannot_be_run_is_a_dash_with_a_reason() -> None:
    refused = [item for item in items() if not item.is_runnable]
    assert refused
    assert all(item.mean is None and item.why_none for item in refused)


def test_the_whole_ablation_is_the_method_of_the_tables() -> None:
    by_name = {item.name: item.fingerprint for item in items()}
    assert by_name["table4/seq-cifar10/m200/ser/class-il"] == by_name["table2/seq-cifar10/m200/ser/class-il"]
    rows = {value for name, value in by_name.items() if name.startswith("table4/seq-cifar10/")}
    assert len(rows) == 5


def make_record(item: PaperCell, seed: int, score: float, config: dict[str, Any] | None = None) -> RunRecord:
    matrix = [[score]]
    held = {item.scenario: {"matrix": matrix, "average_accuracy": score, "forgetting": score}}
    own = {"stream": item.stream, "seed": seed, "method": {"name": item.method, **(config or {})}}
    return RunRecord(own, {"accuracy": held}, {})


def test_an_interval_is_students() -> None:
    values = [80.0, 81.0, 83.0, 84.0, 85.5]
    found = summarise(values)
    assert found is not None
    low, high = stats.t.interval(0.95, 4, loc=found.mean, scale=stats.sem(values))
    assert found.mean - (found.half_width or 0) == pytest.approx(low)
    assert found.mean + (found.half_width or 0) == pytest.approx(high)
    single = summarise([80.0])
    assert single is not None
    assert (single.deviation, single.half_width) == (None, None)
    assert summarise([]) is None


def test_the_interval_of_a_difference_is_welchs() -> None:
    ours, theirs = [80.0, 81.0, 83.0, 84.0, 85.5], [84.0, 84.5, 85.0, 84.0, 84.1, 84.3]
    measured, printed = summarise(ours), summarise(theirs)
    assert measured
    assert printed
    wanted = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert difference_interval(measured, printed) == pytest.approx((wanted.low, wanted.high))
    assert difference_interval(Summary(80.0, 1.0, 2), printed) is None
    # Without a printed deviation ours is taken for it, and five runs.
    bare, known = Summary(82.0, None, None), Summary(82.0, measured.deviation, 5)
    assert difference_interval(measured, bare) == difference_interval(measured, known)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((0.1, 30.0), "better"),
        ((-1.9, 30.0), "reproduced"),
        ((-1.9, -0.1), "reproduced"),  # a difference, but a smaller one than the margin
        ((-2.1, -0.1), "below"),
        ((-2.1, 0.1), "undecided"),
        ((-20.0, 4.0), "undecided"),  # noise does not win
        ((-9.0, -3.0), "below"),
    ],
)
def test_the_interval_and_the_margin_decide(interval: tuple[float, float], verdict: str) -> None:
    assert judge_interval(interval, 1, 2.0) == verdict
    assert judge_interval((-interval[1], -interval[0]), -1, 2.0) == verdict


def test_a_wider_margin_may_decide_and_so_may_more_seeds() -> None:
    noisy = Summary(82.0, 4.0, 5)
    assert judge(SER, noisy) == "undecided"
    assert judge(SER, noisy, margin=10.0) == "reproduced"
    published = Summary(82.76, 0.62, 5)
    needed = seeds_to_decide(SER, noisy, published, 2.0)
    assert needed is not None
    assert judge(SER, replace(noisy, count=needed)) == "reproduced"
    assert judge(SER, replace(noisy, count=needed - 1)) == "undecided"
    assert Cell(SER, published, noisy, "undecided").verdict_text == f"undecided ({needed} seeds would decide)"
    hopeless = Summary(80.76, 1.0, 5)  # exactly at the margin
    assert seeds_to_decide(SER, hopeless, published, 2.0) is None or judge(SER, hopeless) == "below"
    far = Cell(SER, Summary(82.76, 9.0, 5), Summary(81.0, 9.0, 5), "undecided")
    assert far.verdict_text == "undecided (>100 seeds would decide)"


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (None, "not run"),
        (Summary(82.0, None, 1), "too few seeds"),
        (Summary(99.0, 0.01, 2), "too few seeds"),  # two may agree by chance
        (Summary(90.0, 0.1, 5), "better"),
        (Summary(82.8, 0.2, 5), "reproduced"),
        (Summary(81.8, 0.2, 5), "reproduced"),  # 0.96 ± 0.7 below: less than the margin
        (Summary(81.2, 0.5, 5), "below"),  # 1.56 ± 0.8 below: reaches past it
        (Summary(74.8, 10.0, 5), "undecided"),  # 8 points below and noisy
    ],
)
def test_verdicts(ours: Summary | None, verdict: str) -> None:
    assert judge(SER, ours) == verdict


def test_less_forgetting_is_better() -> None:
    item = next(item for item in items() if item.target == "table3")
    assert item.mean is not None
    assert judge(item, Summary(item.mean - 9, 0.1, 5)) == "better"
    assert judge(item, Summary(item.mean + 9, 0.1, 5)) == "below"
    assert judge(replace(item, mean=None), Summary(1.0, 0.1, 5)) == "no number"


def test_only_records_of_the_same_configuration_count(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [make_record(SER, seed, 82.0 + seed) for seed in (2, 0, 1)]
    other = make_record(SER, 3, 10.0, {"alpha": 9})
    known = {SER.name: fingerprint(own[0].config)}
    monkeypatch.setattr(
        "strongreplay.runs.paper.fingerprints", lambda protocol="full": known if protocol == "full" else {}
    )
    cell = judge_all([SER], [*own, other, make_record(SER, 0, 11.0)])[0]
    assert [record.seed for record in cell.records] == [0, 1, 2]
    assert cell.ours is not None
    assert cell.ours.mean == 83.0
    assert cell.difference == pytest.approx(0.24)


def cells_of(scores: dict[str, list[float]]) -> list[Cell]:
    found = []
    for method, values in scores.items():
        item = replace(SER, method=method, name=f"table2/p-mnist/m200/{method}/domain-il")
        records = tuple(make_record(item, seed, value) for seed, value in enumerate(values))
        found.append(Cell(item, None, summarise(values), "reproduced", records))
    return found


def test_rivals_are_paired_by_seed_and_corrected_after_holm() -> None:
    scores = {
        "ser": [80.0, 84.0, 82.0, 81.0],
        "er": [79.0, 82.5, 81.2, 79.5],  # always a little below: paired, that shows
        "hal": [70.0, 90.0, 81.0, 79.0],
        "der": [70.0, 71.0],
    }
    found = {test.other: test for test in compare_cells(cells_of(scores))}
    single = {name: stats.ttest_rel(scores["ser"], scores[name]).pvalue for name in ("er", "hal")}
    assert found["er"].p == pytest.approx(2 * single["er"])
    assert found["hal"].p == pytest.approx(max(single["hal"], 2 * single["er"]))
    assert (found["er"].outcome, found["hal"].outcome) == ("ahead", "not decided")
    assert (found["der"].p, found["der"].count, found["der"].outcome) == (None, 2, "not decided")
    # The same of one's own runs, and from the other side.
    records = [record for cell in cells_of(scores) for record in cell.records]
    own = {test.other.lower(): test for test in compare_groups(group_records(records), "ser")}
    assert {name: (t.p, t.difference, t.count) for name, t in own.items()} == {
        name: (t.p, t.difference, t.count) for name, t in found.items()
    }
    (behind,) = (t for t in compare_groups(group_records(records[:8]), "ER") if t.other == "SER")
    assert behind.outcome == "behind"
    with pytest.raises(ConfigError, match="unknown method 'sre'; did you mean 'ser'"):
        compare_groups(group_records(records), "sre")


def test_texts_of_a_cell() -> None:
    cell = Cell(SER, Summary(82.76, 0.62, 5), Summary(81.3, 0.5, 3), "reproduced")
    assert texts(cell)[:3] == (SER.name, "82.76 ± 0.77 (5)", "81.30 ± 1.24 (3)")
    dash = next(item for item in items() if item.why_none)
    assert texts(Cell(dash, None, None, "no number"))[1:3] == ("-", "-")


def test_deviations_have_columns_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    cell = Cell(SER, Summary(82.76, 0.62, 5), Summary(81.3, 0.5, 3), "reproduced")
    print_verdicts([cell], "sd")
    title, _, head, row = capsys.readouterr().out.splitlines()
    assert "mean ± 95 % interval (runs)" in title
    assert title.endswith("; sd: sample deviation")
    assert head.split("  ")[0] == "cell"
    assert [name in head for name in ("published sd", "ours sd")] == [True, True]
    for text in ("82.76 ± 0.77 (5)", " 0.62", "81.30 ± 1.24 (3)", " 0.50"):
        assert text in row
    print_verdicts([cell], form="json")
    published = json.loads(capsys.readouterr().out)[0]["published"]
    assert published == {"mean": 82.76, "interval": pytest.approx(0.77, abs=0.01), "sd": 0.62, "n": 5}


def test_files_hold_every_cell() -> None:
    cells = judge_all(items(), [])
    lines = as_markdown(cells, []).splitlines()
    assert [line.split(" | ")[0][2:] for line in lines if "/" in line] == [item.name for item in items()]
    lines = as_csv(cells).splitlines()
    assert len(lines) == len(items()) + 1
    assert lines[1].startswith("table1/seq-cifar100-5/joint/class-il,table1,seq-cifar100-5,,joint,class-il,")
    tex = as_latex(cells)
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") == len(TARGETS)
    assert "±" not in tex


@pytest.mark.parametrize("size", [200, 500])
@pytest.mark.parametrize("stream", ["p-mnist", "r-mnist"])
def test_tuned_records_are_found_beside_the_published_cell(stream: str, size: int) -> None:
    name = f"table2/{stream}/m{size}/ser/domain-il"
    item = next(item for item in items() if item.name == name)
    published, better = (
        resolve(stream, "ser", size, recipe_name=recipe).to_dict() for recipe in (PUBLISHED, TUNED)
    )

    def run(config: dict[str, Any], seed: int, score: float) -> RunRecord:
        return replace(make_record(item, seed, score), config=config | {"seed": seed})

    other = better | {"data": better["data"] | {"validation": 0.1}}
    records = [run(published, 0, 70.0), run(other, 1, 10.0)]
    (cell,) = judge_all([item], records)
    assert tuned(cell, records) is None
    found = tuned(cell, [*records, *(run(better, seed, 90.0 + seed) for seed in range(3))])
    assert found is not None
    assert (found.mean, found.count) == (91.0, 3)
    (never_run,) = judge_all([item], [])
    assert tuned(never_run, records) is None


def test_tables_in_markdown_are_renewed_between_their_marks() -> None:
    records = [make_record(SER, seed, 80.0 + seed) for seed in range(3)]
    for record in records:
        record.config["net"] = {"name": "mlp", "width": None}
        record.config["method"]["memory_size"] = 200
    mark = "<!-- results of p-mnist, memory 200, net cnn, width 8 or mlp -->"
    text = f"a\n{BEGIN}\nold\n{END}\nb\n{mark}\nolder\n{END}\nc\n{mark} without an end"
    renewed = renew(text, records)
    assert "old" not in renewed
    assert renewed.startswith("a\n")
    assert renewed.endswith(f"\nc\n{mark} without an end")
    assert "| SER | 81.00 ± 2.48 | 81.00 ± 2.48 | - | 3 |" in renewed
    assert renewed.count("| permuted MNIST, memory") == 2
    assert renew(renewed, records) == renewed
    assert "Not run yet." in renew(text, [])
    assert renew("no marks", records) == "no marks"


def test_the_seconds_of_a_row_are_the_median_so_that_a_pause_does_not_count() -> None:
    times = [10.0, 12.0, 2000.0]
    records = [make_record(SER, seed, 80.0) for seed in range(3)]
    timed = [
        replace(r, measured={"phases": {"train": {"seconds": s}}})
        for r, s in zip(records, times, strict=True)
    ]
    (group,) = group_records(timed)
    assert group.train_seconds == 12.0
    assert group_records(records)[0].train_seconds is None
