"""The report: one HTML file that needs nothing but a browser.

Everything that grows with the number of records is limited, and the page says what was left out.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from strongreplay.report.collect import Found, Progress, ignore_progress
from strongreplay.report.page_details import details_of
from strongreplay.report.page_figures import MOST_ENTRIES, draw_figures, draw_memories
from strongreplay.report.page_tables import (
    SIGNS,
    filter_options,
    headline,
    own_tables,
    paired_row,
    verdict_rows,
)
from strongreplay.report.page_text import breakable, clip
from strongreplay.report.paired import compare_cells
from strongreplay.report.protocols import cpu_cells, leads
from strongreplay.report.tables import Group, group_records
from strongreplay.report.verdicts import FEWEST_SEEDS, MARGIN, MOST_SEEDS, judge_all
from strongreplay.runs.paper import NUM_RUNS, items

MOST_BYTES = 1_950_000  # of the page
MOST_ROWS, MOST_DETAILS, MOST_PROBLEMS = 800, 400, 50


def build(
    found: Found,
    progress: Progress = ignore_progress,
    now: datetime | None = None,
    margin: float = MARGIN,
) -> str:
    """The whole page."""
    progress("building the page", 0, 1)
    groups = group_records(found.records)
    cells = judge_all(items(), found.records, margin)
    run = any(cell.records or cell.cpu for cell in cells)
    context: dict[str, Any] = {
        "date": (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
        "head": headline(found.records, groups, cells),
        "cells": verdict_rows(cells, leads(cpu_cells(found.records))) if run else [],
        "notes": [cell.item for cell in cells if cell.item.note],
        "options": filter_options(cells),
        "tests": [paired_row(test) for test in compare_cells(cells)],
        "figures": draw_figures(groups, cells, progress),
        "grids": draw_memories(groups, found, progress),
        "damaged": found.damaged[:MOST_PROBLEMS],
        "problems": found.problems[:MOST_PROBLEMS],
        "num_problems": len(found.problems),
        "signs": SIGNS,
        "rule": {"margin": margin, "fewest": FEWEST_SEEDS, "most": MOST_SEEDS, "paper_runs": NUM_RUNS},
        "most_entries": MOST_ENTRIES,
    }
    progress("writing", 0, 1)
    return render(context, groups, found.paths)


def render(context: dict[str, Any], groups: list[Group], paths: dict[int, Path]) -> str:
    """Render the page; with very many configurations, shorten tables and details until it is small enough."""
    template = load_template()
    text = ""
    for divisor in (1, 2, 4, 8, 16, 32, 64):
        shown, detailed = groups[: MOST_ROWS // divisor], groups[: MOST_DETAILS // divisor]
        text = template.render(
            context,
            tables=own_tables(shown),
            details=[details_of(group, paths) for group in detailed],
            rows_left_out=len(groups) - len(shown),
            details_left_out=len(groups) - len(detailed),
        )
        if len(text.encode()) <= MOST_BYTES:
            break
    return text


def load_template() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("strongreplay.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clip": clip, "breakable": breakable}
    return environment.get_template("page.html.j2")
