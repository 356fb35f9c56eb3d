"""Details of a configuration on the page: settings, versions, hardware, phases and paths of records."""

from pathlib import Path
from typing import Any

from strongreplay.report.page_tables import full_name, phase_names, phase_peaks, phase_summary, phase_values
from strongreplay.report.page_text import clip
from strongreplay.report.tables import Group
from strongreplay.storage.records import RunRecord, flatten, format_setting

MOST_SETTINGS, MOST_PHASES, MOST_FOLDERS = 120, 20, 5


def details_of(group: Group, paths: dict[int, Path]) -> dict[str, Any]:
    records = group.records
    size = "" if group.memory_size is None else f", memory {group.memory_size}"
    settings = flatten({key: value for key, value in records[0].config.items() if key != "seed"})
    places = [paths[id(record)] for record in records if id(record) in paths]
    folders = list(dict.fromkeys(f"{place.parent}/" for place in places))
    return {
        "title": f"{clip(group.stream)}, {clip(full_name(group))}{size}",
        "seeds": ", ".join(str(record.seed) for record in records),
        "settings": [(key, format_setting(value)) for key, value in list(settings.items())[:MOST_SETTINGS]],
        "versions": distinct(records, "versions"),
        "hardware": distinct(records, "hardware"),
        "recipes": list(dict.fromkeys(str(record.measured.get("recipe", "not known")) for record in records)),
        "phases": [phase_row(group, phase) for phase in phase_names(group)[:MOST_PHASES]],
        # All seeds of a configuration are in one folder, so its name suffices.
        "places": [str(places[0])] if len(places) == 1 else folders[:MOST_FOLDERS],
    }


def phase_row(group: Group, phase: str) -> dict[str, Any]:
    return {
        "name": phase,
        "seconds": phase_summary(group, phase),
        "total": sum(phase_values(group, phase, "seconds")),
        "peak": max(phase_peaks(group, phase), default=None),
    }


def distinct(records: tuple[RunRecord, ...], section: str) -> list[str]:
    """Each combination of values, once."""
    every = (record.measured.get(section, {}) for record in records)
    return list(dict.fromkeys(", ".join(f"{key} {value}" for key, value in table.items()) for table in every))
