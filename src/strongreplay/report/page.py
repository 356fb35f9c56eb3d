"""The report: one HTML file that needs nothing but a browser. No torch in here.

What grows with the number of records is capped, and the page says what was left out.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from strongreplay.report.memory_picture import MemoryPicture, grid_of
from strongreplay.report.styles import TITLES, net_of, scenarios_of, score_of
from strongreplay.report.tables import Group, Summary, group_records, rank, summarise, tell_apart
from strongreplay.report.verdicts import (
    CONFIDENCE,
    FEWEST,
    VERDICTS,
    Cell,
    MethodComparison,
    compare,
    judge_all,
)
from strongreplay.runs.paper import TARGETS, PaperCell, items
from strongreplay.storage.records import RunRecord, find_files, flatten, read_folder, told

if TYPE_CHECKING:
    from strongreplay.report.figures import PlannedFigure

MOST_BYTES = 1_950_000  # of the page
MOST_FIGURES, MOST_FIGURE_BYTES = 24, 700_000
MOST_WORK, MANY = 320, 2000  # lines in all figures, a sixteenth with many records: drawing takes longest
MOST_LINES = 40  # in one figure; more could not be told apart
MOST_GRIDS, MOST_GRID_BYTES = 12, 500_000
MOST_ROWS, MOST_ENTRIES, MOST_PROBLEMS = 800, 400, 50
LONGEST = 200  # characters of a name; more is cut
SIGNS = {"reproduced": "✓", "below": "▼", "too few seeds": "?", "not run": "○", "no number": "·"}
SCORES = (("average_accuracy", "accuracy", max), ("forgetting", "forgetting", min))

Tell = Callable[[str, int, int], None]  # what is done, how much of how much


def quiet(what: str, done: int, total: int) -> None:
    """Nobody listens."""


@dataclass(slots=True)
class Found:
    """What lies in the folders: records and where each is, and a line for all that is none."""

    records: list[RunRecord] = field(default_factory=list)
    paths: dict[int, Path] = field(default_factory=dict)  # by the record's id: records have no hash
    problems: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)  # states, named when the page is built


def collect(places: Iterable[Path], tell: Tell = quiet) -> Found:
    """All records in files and folders, each file once."""
    found = Found()
    candidates = [file for place in places for file in find_files(place, found.problems)]
    once = list({file.resolve(): file for file in reversed(candidates)}.values())[::-1]
    for number, file in enumerate(once):
        tell("reading records", number, len(once))
        records, problems = read_folder([file])
        found.records += records
        found.problems += problems
        found.paths |= {id(record): file for record in records}
    return found


def build(found: Found, tell: Tell = quiet, now: datetime | None = None) -> str:
    """The whole page."""
    tell("building the page", 0, 1)
    groups = group_records(found.records)
    cells = judge_all(items(), found.records)
    context: dict[str, Any] = {
        "date": (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
        "head": headline(found.records, groups, cells),
        "cells": verdict_rows(cells),
        "notes": [cell.item for cell in cells if cell.item.note],
        "options": options_of(cells),
        "rivalries": [rivalry_row(rivalry) for rivalry in compare(cells)],
        "figures": figures_of(groups, cells, tell),
        "grids": memory_grids(groups, found, tell),
        "damaged": found.damaged[:MOST_PROBLEMS],
        "problems": found.problems[:MOST_PROBLEMS],
        "num_problems": len(found.problems),
        "targets": TARGETS,
        "signs": SIGNS,
        "fewest": FEWEST,
        "most_lines": MOST_LINES,
    }
    tell("writing", 0, 1)
    return fit(context, groups, found.paths)


def fit(context: dict[str, Any], groups: list[Group], paths: dict[int, Path]) -> str:
    """As much as fits: tables and entries of very many configurations are shortened until it does."""
    template = load_template()
    text = ""
    for divisor in (1, 2, 4, 8, 16, 32, 64):
        shown, entries = groups[: MOST_ROWS // divisor], groups[: MOST_ENTRIES // divisor]
        text = template.render(
            context,
            tables=own_tables(shown),
            entries=[entry_of(group, paths) for group in entries],
            rows_left_out=len(groups) - len(shown),
            entries_left_out=len(groups) - len(entries),
        )
        if len(text.encode()) <= MOST_BYTES:
            break
    return text


def load_template() -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["clip"] = clip
    text = files("strongreplay.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(text)


def clip(value: object, longest: int = LONGEST) -> str:
    text = str(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


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
        "period": [day[:10] for day in (started[0], started[-1])] if started else [],
    }


# The paper's cells


def verdict_rows(cells: list[Cell]) -> list[dict[str, Any]]:
    numbers = {item.name: number for number, item in enumerate((c.item for c in cells if c.item.note), 1)}
    return [verdict_row(cell, numbers.get(cell.item.name)) for cell in cells]


def verdict_row(cell: Cell, note: int | None) -> dict[str, Any]:
    item = cell.item
    return {
        "item": item,
        "target": target_name(item.target),
        "what": "forgetting" if item.score == "forgetting" else "",
        "method": method_of(item),
        "scenario": TITLES[item.scenario],
        "published": cell.published,
        "ours": cell.ours,
        "difference": cell.difference,
        "verdict": cell.verdict,
        "cpu": cell.cpu,
        "note": note,
        "has_records": bool(cell.records or cell.cpu),
    }


def target_name(target: str) -> str:
    """table2 as "Table 2"."""
    return f"{target[:-1].capitalize()} {target[-1]}"


def method_of(item: PaperCell) -> str:
    """The method, and the terms it is left with in the ablation."""
    changed = ", ".join(str(value).replace(",", ", ") for _, value in item.settings)
    return f"{item.method} ({changed})" if changed else item.method


def options_of(cells: list[Cell]) -> dict[str, list[str]]:
    """What there is to choose from, in the order of the paper."""
    return {
        "stream": list(dict.fromkeys(cell.item.stream for cell in cells)),
        "method": list(dict.fromkeys(cell.item.method for cell in cells)),
        "verdict": list(VERDICTS),
    }


def rivalry_row(rivalry: MethodComparison) -> dict[str, Any]:
    decided = rivalry.p is not None and rivalry.p < 1 - CONFIDENCE
    words = ("ahead", "▲") if rivalry.difference > 0 else ("behind", "▼")
    return {
        "rivalry": rivalry,
        "item": rivalry.own.item,
        "target": target_name(rivalry.own.item.target),
        "scenario": TITLES[rivalry.own.item.scenario],
        "rival": rivalry.rival.item.method,
        "word": words[0] if decided else "not decided",
        "sign": words[1] if decided else "≈",
    }


# Our own tables


def own_tables(groups: list[Group]) -> list[dict[str, Any]]:
    """One for each stream, memory size and net."""
    tables: dict[tuple[str, int | None, str], list[Group]] = {}
    for group in groups:
        tables.setdefault((group.stream, group.memory_size, net_of(group)), []).append(group)
    # Between these rows, what tells the tables apart need not be said again.
    return [own_table(*key, sorted(tell_apart(own), key=rank)) for key, own in tables.items()]


def own_table(stream: str, size: int | None, net: str, groups: list[Group]) -> dict[str, Any]:
    scenarios = scenarios_of(groups)
    columns = [
        marked(groups, [score_of(g, scenario, score) for g in groups], best_of)
        for scenario in scenarios
        for score, _, best_of in SCORES
    ]
    memory = "no memory" if size is None else f"memory {size}"
    return {
        "title": f"{clip(stream)}, {memory}, net {clip(net) or 'not said'}",
        "headings": [f"{TITLES[s]} {heading}" for s in scenarios for _, heading, _ in SCORES],
        "rows": [
            own_row(group, [column[number] for column in columns]) for number, group in enumerate(groups)
        ],
    }


def own_row(group: Group, scores: list[tuple[Summary | None, bool]]) -> dict[str, Any]:
    return {
        "name": name_of(group),
        "scores": scores,
        "tasks": num_tasks(group),
        "n": len(group.records),
        "seconds": phase_summary(group, "train"),
        "peak": peak_of(group),
    }


def marked(
    groups: list[Group], scores: list[Summary | None], best_of: Callable[[list[float]], float]
) -> list[tuple[Summary | None, bool]]:
    """Whether each is the best; joint training is an upper bound, not a competitor."""
    rivals = [s.mean for s, group in zip(scores, groups, strict=True) if s and group.method != "joint"]
    best = best_of(rivals) if len(rivals) > 1 else None
    return [(s, s is not None and s.mean == best) for s in scores]


def name_of(group: Group) -> str:
    """With what makes a run a part of the real one, which must not look like it."""
    data = group.records[0].config.get("data")
    parts = data.items() if isinstance(data, dict) else ()
    limits = ", ".join(f"data.{key}={value}" for key, value in parts if value)
    return group.name + (f" [{limits}]" if limits and limits not in group.variant else "")


def num_tasks(group: Group) -> int | None:
    scenarios = group.records[0].scenarios
    return len(group.records[0].matrix(scenarios[0])[-1]) if scenarios else None


def phases_of(group: Group) -> list[str]:
    return list(dict.fromkeys(name for r in group.records for name in r.measured.get("phases", {})))


def phase_values(group: Group, phase: str, key: str) -> list[float]:
    every = (record.measured.get("phases", {}).get(phase) for record in group.records)
    return [float(entry[key]) for entry in every if entry]


def phase_summary(group: Group, phase: str) -> Summary | None:
    return summarise(phase_values(group, phase, "seconds"))


def peak_of(group: Group) -> float | None:
    """The largest of all phases and seeds, in bytes."""
    peaks = [value for name in phases_of(group) for value in phase_values(group, name, "peak_memory_bytes")]
    return max(peaks, default=None)


# Figures and pictures


def figures_of(groups: list[Group], cells: list[Cell], tell: Tell) -> dict[str, Any]:
    """As inline SVG, the most telling first, until there are enough."""
    from markupsafe import Markup

    from strongreplay.report.figures import plan_figures
    from strongreplay.report.svg import as_svg

    tell("planning figures", 0, 1)
    plans = plan_figures(groups, cells)
    num_records = sum(len(group.records) for group in groups)
    chosen = affordable(plans, MOST_WORK if num_records <= MANY else MOST_WORK // 16)
    shown: list[dict[str, Any]] = []
    left_out = [plan.title for plan in plans if plan not in chosen]
    size = 0
    for number, plan in enumerate(chosen):
        tell("drawing figures", number, len(chosen))
        figure = plan.draw()
        figure.set_label(f"figure{number}")  # its ids in the page begin with it
        svg = as_svg(figure) if figure.axes else ""  # without panels there was nothing to draw
        if size + len(svg) > MOST_FIGURE_BYTES:
            left_out.append(plan.title)
        elif svg:
            # made of escaped text by as_svg
            shown.append({"name": plan.title, "svg": Markup(svg), "width": width_of(svg)})
            size += len(svg)
    return {"shown": shown, "left_out": left_out}


def width_of(svg: str) -> int:
    """In pixels of the page, so that text is as large in every figure; matplotlib counts points."""
    found = re.search(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+)', svg)
    return round(float(found[1]) * 1.35) if found else 720


def affordable(plans: "list[PlannedFigure]", most: int) -> "list[PlannedFigure]":
    """Some of every kind, and of each kind some of every stream, as far as there is room."""
    turns = in_turns(in_turns(plans, lambda plan: (plan.kind, plan.stream)), lambda plan: plan.kind)
    chosen: list[PlannedFigure] = []
    for plan in turns:
        fits = plan.lines <= MOST_LINES and sum(p.cost for p in chosen) + plan.cost <= most
        if len(chosen) < MOST_FIGURES and fits:
            chosen.append(plan)
    return [plan for plan in plans if plan in chosen]


def in_turns(plans: "list[PlannedFigure]", key: "Callable[[PlannedFigure], object]") -> "list[PlannedFigure]":
    """The first of each key, then the second of each, and so on."""
    seen: Counter[object] = Counter()
    numbered = []
    for plan in plans:
        numbered.append((seen[key(plan)], plan))
        seen[key(plan)] += 1
    return [plan for _, plan in sorted(numbered, key=lambda pair: pair[0])]


def memory_grids(groups: list[Group], found: Found, tell: Tell) -> dict[str, Any]:
    """One a configuration, of the first seed whose state was kept; damaged ones are named in `found`."""
    kept = [(group, state) for group in groups if (state := state_of(group, found.paths))]
    shown, size = [], 0
    for number, (group, (seed, folder)) in enumerate(kept[:MOST_GRIDS]):
        tell("looking into memories", number, min(len(kept), MOST_GRIDS))
        grid = grid_of(folder, found.damaged.append)
        if grid and size + len(grid.address) <= MOST_GRID_BYTES:
            shown.append(grid_row(group, seed, grid))
            size += len(grid.address)
    return {"shown": shown, "kept": len(kept)}


def state_of(group: Group, paths: dict[int, Path]) -> tuple[int, Path] | None:
    for record in group.records:
        folder = paths[id(record)].with_suffix(".state") if id(record) in paths else None
        if folder and folder.is_dir():
            return record.seed, folder
    return None


def grid_row(group: Group, seed: int, grid: MemoryPicture) -> dict[str, Any]:
    scale = max(1, min(4, 720 // grid.width))  # small images are shown larger, pixel by pixel
    return {
        "title": f"{group.stream}, {group.name}, memory {group.memory_size}, seed {seed}",
        "grid": grid,
        "width": scale * grid.width,
        "height": scale * grid.height,
    }


# Details


def entry_of(group: Group, paths: dict[int, Path]) -> dict[str, Any]:
    records = group.records
    size = "" if group.memory_size is None else f", memory {group.memory_size}"
    settings = flatten({key: value for key, value in records[0].config.items() if key != "seed"})
    places = [str(paths[id(record)]) for record in records if id(record) in paths]
    return {
        "title": f"{clip(group.stream)}, {clip(name_of(group))}{size}",
        "seeds": ", ".join(str(record.seed) for record in records),
        "settings": [(key, told(value)) for key, value in list(settings.items())[:120]],
        "versions": distinct(records, "versions"),
        "hardware": distinct(records, "hardware"),
        "recipes": list(dict.fromkeys(str(record.measured.get("recipe", "not said")) for record in records)),
        "phases": [phase_row(group, phase) for phase in phases_of(group)[:20]],
        "places": places[:1] if len(places) == 1 else shared_place(places),
    }


def phase_row(group: Group, phase: str) -> dict[str, Any]:
    peaks = phase_values(group, phase, "peak_memory_bytes")
    return {
        "name": phase,
        "seconds": phase_summary(group, phase),
        "total": sum(phase_values(group, phase, "seconds")),
        "peak": max(peaks),
        "mean_peak": mean(peaks),
    }


def distinct(records: tuple[RunRecord, ...], section: str) -> list[str]:
    """Each combination that occurs, once."""
    every = (record.measured.get(section, {}) for record in records)
    return list(dict.fromkeys(", ".join(f"{key} {value}" for key, value in table.items()) for table in every))


def shared_place(places: list[str]) -> list[str]:
    """Seeds of one configuration lie in one folder; then that is enough to say."""
    folders = list(dict.fromkeys(str(Path(place).parent) + "/" for place in places))
    return folders[:5]
