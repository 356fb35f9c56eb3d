"""All records in files and folders, with their paths, and a line for each file that is not a record."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from strongreplay.errors import DataError
from strongreplay.storage.interning import Interner
from strongreplay.storage.records import RunRecord, find_files, read_record

Progress = Callable[[str, int, int], None]  # what, done, total


def ignore_progress(what: str, done: int, total: int) -> None:
    """For callers that show no progress."""


@dataclass(slots=True)
class Found:
    """The contents of the folders."""

    records: list[RunRecord] = field(default_factory=list)
    paths: dict[int, Path] = field(default_factory=dict)  # by id(record), because records are not hashable
    problems: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)  # checkpoints; filled when the page is built


def collect(places: Iterable[Path], progress: Progress = ignore_progress) -> Found:
    """Read each file once, even if several places contain it; records are without loss terms."""
    found, sharing = Found(), Interner()
    candidates = [file for place in places for file in find_files(place, found.problems)]
    once = list({os.path.realpath(file): file for file in reversed(candidates)}.values())[::-1]
    for number, file in enumerate(once):
        progress("reading records", number, len(once))
        try:
            record = sharing.slim(read_record(file))
        except DataError as error:
            found.problems.append(str(error))
            continue
        found.records.append(record)
        found.paths[id(record)] = file
    return found
