"""Tables in Markdown files, updated from records, between a mark that names the table and an end mark.

A mark is `<!-- results of STREAM, memory SIZE, net NET -->`, with several nets joined by " or ";
`<!-- cpu protocol of STREAM, memory SIZE -->` or `<!-- cpu protocol: leads of SER -->`; the first table of
the README has the mark `reproduction.BEGIN`.
"""

import re
from collections.abc import Sequence

from strongreplay.report.protocols import cpu_cells, lead_table, stream_table
from strongreplay.report.reproduction import BEGIN, END, readme_table
from strongreplay.report.styles import TITLES, net_of, ranked, scenarios_of
from strongreplay.report.tables import Group, group_records
from strongreplay.report.text_tables import markdown_table
from strongreplay.report.verdicts import Cell, judge_all
from strongreplay.runs.paper import items
from strongreplay.storage.records import RunRecord, fingerprint

MARK = re.compile(r"<!-- results of (\S+), memory (\d+), net (.+?) -->")
CPU_MARK = re.compile(r"<!-- cpu protocol of (\S+), memory (\d+) -->")
LEADS_MARK = "<!-- cpu protocol: leads of SER -->"
ANY_MARK = re.compile("|".join([MARK.pattern, CPU_MARK.pattern, LEADS_MARK, re.escape(BEGIN)]))


def renew(text: str, records: Sequence[RunRecord]) -> str:
    """The text with updated tables; a mark without an end mark is ignored."""
    cells, groups, small = judge_all(items(), records), group_records(records), cpu_cells(records)

    def table_of(mark: str) -> str:
        if own := MARK.fullmatch(mark):
            return own_table(groups, cells, *own.groups())
        if own := CPU_MARK.fullmatch(mark):
            return stream_table(records, own[1], int(own[2]))
        return lead_table(small) if mark == LEADS_MARK else readme_table(cells, records)

    parts = []
    while found := ANY_MARK.search(text):
        end = text.find(END, found.end())
        if end < 0:
            break
        parts.append(f"{text[: found.end()]}\n\n{table_of(found.group())}\n\n{END}")
        text = text[end + len(END) :]
    return "".join([*parts, text])


def own_table(groups: Sequence[Group], cells: Sequence[Cell], stream: str, size: str, nets: str) -> str:
    """One row per configuration, sorted by accuracy in the first scenario; joint training is last."""
    wanted = set(nets.split(" or "))
    own = [
        g for g in groups if g.stream == stream and g.memory_size in (None, int(size)) and net_of(g) in wanted
    ]
    scenarios = scenarios_of(own)
    by_config = {cell.item.fingerprint: cell for cell in cells if cell.item.mean}
    columns = ["mean ± 95 % interval"]
    for scenario in scenarios:
        columns += [TITLES[scenario], "forgetting"]
    published = any(fingerprint(group.records[0].config) in by_config for group in own)
    columns += [*(["published", "verdict"] if published else []), "training s", "n"]
    rows = []
    for group in ranked(own):
        row = [group.name]
        for scenario in scenarios:
            row += [str(group.score(scenario, name) or "-") for name in ("average_accuracy", "forgetting")]
        if published:
            cell = by_config.get(fingerprint(group.records[0].config))
            row += [str(cell.published), cell.verdict_text] if cell else ["-", "-"]
        seconds = "-" if group.train_seconds is None else f"{group.train_seconds:.0f}"
        rows.append([*row, seconds, str(len(group.records))])
    return "\n".join(markdown_table(columns, rows)) if rows else "Not run yet."
