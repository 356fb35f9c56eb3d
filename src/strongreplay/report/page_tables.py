"""Rows of the page's tables: a user's own runs, the cells of the paper, and paired tests."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from strongreplay.metrics import METRICS, Metric
from strongreplay.report.page_text import clip
from strongreplay.report.paired import PairedTest
from strongreplay.report.protocols import Lead
from strongreplay.report.styles import PRINTED, TITLES, UPPER_BOUND, net_of, ranked, scenarios_of
from strongreplay.report.summary import Summary, summarise
from strongreplay.report.tables import Group
from strongreplay.report.verdicts import VERDICTS, Cell
from strongreplay.runs.paper import PaperCell
from strongreplay.storage.records import RunRecord

SCORES = ("average_accuracy", "forgetting")  # columns of the tables of runs; names of METRICS
SIGNS = {
    "better": "▲", "reproduced": "✓", "below": "▼", "undecided": "≈", "too few seeds": "?", "not run": "○",
    "no number": "·", "ahead": "▲", "behind": "▼", "not decided": "≈",
}  # fmt: skip


def headline(records: list[RunRecord], groups: list[Group], cells: list[Cell]) -> dict[str, Any]:
    counts = Counter(cell.verdict for cell in cells)
    started = sorted(str(record.measured["started"]) for record in records if "started" in record.measured)
    return {
        "records": len(records),
        "configurations": len(groups),
        "streams": len({group.stream for group in groups}),
        "methods": len({group.method for group in groups}),
        "cells": len(cells),
        "verdicts": [(verdict, counts[verdict]) for verdict in VERDICTS],
        "period": [clip(day[:10]) for day in (started[0], started[-1])] if started else [],
    }


def verdict_rows(cells: list[Cell], leads: Sequence[Lead] = ()) -> list[dict[str, Any]]:
    """With what is said of SER's lead under the cpu protocol in the row of the other method."""
    numbers = {item.name: number for number, item in enumerate((c.item for c in cells if c.item.note), 1)}
    said: dict[str, list[str]] = {}
    for lead in leads:
        said.setdefault(lead.other.name, []).append(lead.sentence)
    return [
        verdict_row(cell, numbers.get(cell.item.name)) | {"leads": said.get(cell.item.name, [])}
        for cell in cells
    ]


def verdict_row(cell: Cell, note: int | None) -> dict[str, Any]:
    item = cell.item
    return {
        "cell": cell,
        "item": item,
        "target": target_name(item.target),
        "what": "forgetting" if item.score == "forgetting" else "",
        "method": method_name(item),
        "scenario": TITLES[item.scenario],
        "note": note,
    }


def target_name(target: str) -> str:
    """table2 as "Table 2"."""
    return f"{target[:-1].capitalize()} {target[-1]}"


def method_name(item: PaperCell) -> str:
    """The method and, in the ablation, its terms."""
    changed = ", ".join(str(value).replace(",", ", ") for _, value in item.settings)
    return PRINTED[item.method] + (f" ({changed})" if changed else "")


def filter_options(cells: list[Cell]) -> dict[str, dict[str, str]]:
    """The options of each filter, in the order of the paper: value -> text."""
    return {
        "stream": {cell.item.stream: cell.item.stream for cell in cells},
        "method": {cell.item.method: PRINTED[cell.item.method] for cell in cells},
        "verdict": {verdict: verdict for verdict in VERDICTS},
    }


def paired_row(test: PairedTest) -> dict[str, Any]:
    return {
        "test": test,
        "target": target_name(test.place.target),
        "scenario": TITLES[test.place.scenario],
        "other": PRINTED[test.other],
    }


def own_tables(groups: list[Group]) -> list[dict[str, Any]]:
    """A table for each stream, memory size and net; configurations without memory are in each size."""
    tables: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        tables.setdefault((group.place, net_of(group)), []).append(group)
    found = []
    for (stream, net), own in tables.items():
        sizes = sorted({group.memory_size for group in own if group.memory_size is not None})
        for size in sizes or (None,):
            here = [group for group in own if group.memory_size in (None, size)]
            # Variants are named anew: rows need not repeat stream, net and size of the table.
            found.append(own_table(stream, size, net, ranked(here)))
    return found


def own_table(stream: str, size: int | None, net: str, groups: list[Group]) -> dict[str, Any]:
    """Accuracies come first, so that they are visible on a narrow screen."""
    scenarios = scenarios_of(groups)
    wanted = [(scenario, score) for score in SCORES for scenario in scenarios]
    columns = [
        mark_best(groups, [group.score(scenario, score) for group in groups], METRICS[score])
        for scenario, score in wanted
    ]
    memory = "no memory" if size is None else f"memory {size}"
    return {
        "title": f"{clip(stream)}, {memory}, net {clip(net) or 'not known'}",
        "headings": [f"{TITLES[scenario]} {METRICS[score].label}" for scenario, score in wanted],
        "rows": [
            own_row(group, [column[number] for column in columns]) for number, group in enumerate(groups)
        ],
    }


def own_row(group: Group, scores: list[tuple[Summary | None, bool]]) -> dict[str, Any]:
    return {
        "name": full_name(group),
        "scores": scores,
        "tasks": group.num_tasks or None,
        "n": len(group.records),
        "seconds": group.train_seconds,
        "peak": peak_memory(group),
    }


def mark_best(
    groups: list[Group], scores: list[Summary | None], metric: Metric
) -> list[tuple[Summary | None, bool]]:
    """Mark the best; joint training is an upper bound and is never marked."""
    rivals = [s.mean for s, group in zip(scores, groups, strict=True) if s and group.method != UPPER_BOUND]
    best = metric.best_of(rivals) if len(rivals) > 1 else None
    return [
        (s, s is not None and s.mean == best and group.method != UPPER_BOUND)
        for s, group in zip(scores, groups, strict=True)
    ]


def full_name(group: Group) -> str:
    """The name with the data settings, so that a run on a part of a stream is not mistaken for a full one."""
    data = group.records[0].config.get("data")
    parts = data.items() if isinstance(data, dict) else ()
    limits = ", ".join(f"data.{key}={value}" for key, value in parts if value)
    return group.name + (f" [{limits}]" if limits and limits not in group.variant else "")


def phase_names(group: Group) -> list[str]:
    return list(dict.fromkeys(name for r in group.records for name in r.measured.get("phases", {})))


def phase_values(group: Group, phase: str, key: str) -> list[float]:
    every = (record.measured.get("phases", {}).get(phase) for record in group.records)
    return [float(entry[key]) for entry in every if entry]


def phase_summary(group: Group, phase: str) -> Summary | None:
    return summarise(phase_values(group, phase, "seconds"))


def peak_memory(group: Group) -> float | None:
    """The largest of all phases and seeds, in bytes; records whose peak is not their own are left out."""
    return max((v for name in phase_names(group) for v in phase_peaks(group, name)), default=None)


def phase_peaks(group: Group, phase: str) -> list[float]:
    own = (record.measured.get("phases", {}).get(phase) for record in group.records if record.has_own_peak)
    return [float(entry["peak_memory_bytes"]) for entry in own if entry]
