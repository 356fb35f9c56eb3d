"""ser compare: which metrics are columns, and which value of a column is best."""

import io
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from support.commands import Ser
from support.records import make_record

from strongreplay.cli.compare import make_comparison_table
from strongreplay.cli.show import print_record
from strongreplay.cli.tables import TableCell
from strongreplay.metrics import METRICS, Metric
from strongreplay.report import curves
from strongreplay.report.page_tables import own_tables
from strongreplay.report.tables import Group, group_records
from strongreplay.storage.records import RunRecord, write_record


def test_average_incremental_accuracy_is_a_column(tmp_path: Path, ser: Ser) -> None:
    write_record(tmp_path, make_record("ser", accuracy=80))
    write_record(tmp_path, make_record("er", accuracy=70))
    words = ["compare", tmp_path, "--metric", "average_incremental_accuracy, forgetting"]
    said = ser(*words, "--json")
    assert said.code == 0, said.err
    means = {row["method"]: row["Class-IL incremental accuracy"]["mean"] for row in said.json}
    assert means == {"SER": (90 + 80) / 2, "ER": (90 + 70) / 2}
    assert {"Class-IL forgetting"} == {key for key in said.json[0] if key.startswith("Class-IL f")}
    assert not any(key.endswith("-IL accuracy") for key in said.json[0])
    assert ser(*words).code == 0


def test_an_unknown_metric_is_refused(tmp_path: Path, ser: Ser) -> None:
    write_record(tmp_path, make_record())
    said = ser("compare", tmp_path, "--metric", "forgeting")
    assert (said.code, "unknown metric 'forgeting'; did you mean 'forgetting'?" in said.err) == (2, True)
    said = ser("compare", tmp_path, "--metric", "forgetting", "--against", "ser")
    assert (said.code, "--against tests average accuracy" in said.err) == (2, True)


@pytest.mark.parametrize(("better", "best"), [("higher", "SER"), ("lower", "ER")])
def test_a_new_metric_is_one_row(
    better: Literal["higher", "lower"], best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metric = Metric("last", better, "the last entry", lambda matrix, _: float(matrix[-1, -1]))
    monkeypatch.setitem(METRICS, "last_entry", metric)
    groups = group_records([make_record("ser", accuracy=80), make_record("er", accuracy=70)])
    table = make_comparison_table(groups, metrics=["last_entry"])
    column = table.columns.index("Class-IL\nlast")
    cells = {str(row[0]): row[column] for row in table.rows}
    marked = [name for name, cell in cells.items() if isinstance(cell, TableCell) and cell.is_best]
    assert marked == [best]
    assert metric.best_of([1.0, 2.0]) == {"higher": 2.0, "lower": 1.0}[better]


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(
    tmp_path: Path, ser: Ser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `ser compare runs | head -1`; the picture is there and not blamed."""
    write_record(tmp_path, make_record())
    reader, writer = os.pipe()
    draw = curves.accuracy_curves

    def close_and_draw(groups: list[Group], path: Path) -> Path:
        os.close(reader)
        return draw(groups, path)

    monkeypatch.setattr(curves, "accuracy_curves", close_and_draw)
    with os.fdopen(writer, "wb", 0) as pipe:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe, write_through=True))
        said = ser("compare", tmp_path)
    assert (said.code, said.err) == (1, "")
    assert len(list(tmp_path.glob("*.png"))) == 1


def with_validation(record: RunRecord, share: float = 0.2) -> RunRecord:
    return replace(record, config=record.config | {"data": {"validation": share}})


def test_numbers_from_held_out_data_say_so_and_are_compared_among_themselves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    records = [make_record("ser", 0, 80), make_record("er", 0, 90)]
    groups = group_records([*records, *map(with_validation, records)])
    assert {group.place for group in groups} == {"s", "s (held-out training data)"}
    assert {group.variant for group in groups} == {""}
    title = make_comparison_table([group for group in groups if "held-out" in group.place]).title
    assert title.startswith("s (held-out training data): mean ± 95 % interval")
    assert [table["title"] for table in own_tables(groups)] == [
        "s, memory 50, net not known",
        "s (held-out training data), memory 50, net not known",
    ]
    print_record(with_validation(records[0]))
    assert "── s (held-out training data), SER, memory 50, seed 0" in capsys.readouterr().out
