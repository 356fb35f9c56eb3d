"""Figures and pictures of memories on the page, limited by size and time."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from markupsafe import Markup

from strongreplay.report.collect import Found, Progress
from strongreplay.report.figures import PlannedFigure, plan_figures
from strongreplay.report.memory_picture import MemoryPicture, grid_of
from strongreplay.report.svg import as_svg
from strongreplay.report.tables import Group
from strongreplay.report.verdicts import Cell

MOST_FIGURES, MOST_FIGURE_BYTES = 24, 700_000
MOST_WORK, MANY = 320, 2000  # entries in all figures; with many records a sixteenth, because drawing is slow
MOST_ENTRIES = 40  # of one figure; more cannot be distinguished
MOST_GRIDS, MOST_GRID_BYTES = 12, 500_000


def draw_figures(groups: list[Group], cells: list[Cell], progress: Progress) -> dict[str, Any]:
    """Figures as inline SVG, and the titles of those that are left out."""
    progress("planning figures", 0, 1)
    plans = plan_figures(groups, cells)
    num_records = sum(len(group.records) for group in groups)
    chosen = choose_figures(plans, MOST_WORK if num_records <= MANY else MOST_WORK // 16)
    shown: list[dict[str, Any]] = []
    left_out = [plan.title for plan in plans if plan not in chosen]
    size = 0
    for number, plan in enumerate(chosen):
        progress("drawing figures", number, len(chosen))
        figure = plan.draw()
        figure.set_label(f"figure{number}")  # prefix of its ids in the page
        svg = as_svg(figure) if figure.axes else ""  # without panels there is nothing to draw
        if size + len(svg) > MOST_FIGURE_BYTES:
            left_out.append(plan.title)
        elif svg:
            # as_svg escapes every text
            shown.append({"name": plan.title, "svg": Markup(svg), "width": width_in_pixels(svg)})
            size += len(svg)
    return {"shown": shown, "left_out": left_out}


def width_in_pixels(svg: str) -> int:
    """The width for equal text sizes in all figures, converted from matplotlib's points."""
    found = re.search(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+)', svg)
    return round(float(found[1]) * 1.35) if found else 720


def choose_figures(plans: list[PlannedFigure], most_work: int) -> list[PlannedFigure]:
    """Choose figures of every kind, and of every stream within a kind, up to the limit."""
    turns = take_turns(take_turns(plans, lambda plan: (plan.kind, plan.stream)), lambda plan: plan.kind)
    chosen: list[PlannedFigure] = []
    for plan in turns:
        fits = plan.num_entries <= MOST_ENTRIES and sum(p.cost for p in chosen) + plan.cost <= most_work
        if len(chosen) < MOST_FIGURES and fits:
            chosen.append(plan)
    return [plan for plan in plans if plan in chosen]


def take_turns(plans: list[PlannedFigure], key: Callable[[PlannedFigure], object]) -> list[PlannedFigure]:
    """The first of each key, then the second of each, and so on."""
    seen: Counter[object] = Counter()
    numbered = []
    for plan in plans:
        numbered.append((seen[key(plan)], plan))
        seen[key(plan)] += 1
    return [plan for _, plan in sorted(numbered, key=lambda pair: pair[0])]


def draw_memories(groups: list[Group], found: Found, progress: Progress) -> dict[str, Any]:
    """One picture per configuration, from the first seed with a state; adds damaged states to `found`."""
    kept = [(group, state) for group in groups if (state := find_state(group, found.paths))]
    shown, size = [], 0
    for number, (group, (seed, folder)) in enumerate(kept[:MOST_GRIDS]):
        progress("reading memories", number, min(len(kept), MOST_GRIDS))
        grid = grid_of(folder, found.damaged.append)
        if grid and size + len(grid.address) <= MOST_GRID_BYTES:
            shown.append(memory_row(group, seed, grid))
            size += len(grid.address)
    return {"shown": shown, "kept": len(kept)}


def find_state(group: Group, paths: dict[int, Path]) -> tuple[int, Path] | None:
    for record in group.records:
        folder = paths[id(record)].with_suffix(".state") if id(record) in paths else None
        if folder and folder.is_dir():
            return record.seed, folder
    return None


def memory_row(group: Group, seed: int, grid: MemoryPicture) -> dict[str, Any]:
    scale = max(1, min(4, 720 // grid.width))  # small images are shown larger, pixel by pixel
    return {
        "title": f"{group.stream}, {group.name}, memory {group.memory_size}, seed {seed}",
        "grid": grid,
        "width": scale * grid.width,
        "height": scale * grid.height,
    }
