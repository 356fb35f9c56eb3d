"""History of a kept model: a line with a checksum for every finished act, and the act in progress.

`history.jsonl` has a line for each act, with the version in use after it. When there are very many, the older
ones become one line, so that an act takes no more time and room after years. `pending.json` describes the act
in progress. If its process is killed, the next writer uses `pending.json` to finish or undo the act.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from strongreplay.errors import DataError
from strongreplay.models.manifest import REMEDY, checked, is_name, now, number_of, read_signed, same, signed
from strongreplay.storage import files

MOST_LINES = 1000  # of a history; two for each update
KEPT_LINES = 500  # when it is shortened

Line = dict[str, Any]
Tell = Callable[[str], None]


def ignore(message: str) -> None:
    """Do nothing with a message."""


def checked_line(data: bytes, where: str) -> Line:
    """Parse and check a line: time, act, and the version in use after it."""
    line = checked(data, where)
    version = line.get("version", "")
    if not (isinstance(line.get("when"), str) and isinstance(line.get("act"), str)) or not (
        version is None or is_name(version)
    ):
        raise DataError(f"{where}: not about an act; {REMEDY}")
    counts = type(line.get("acts")) is int and isinstance(line.get("since"), str)
    if line["act"] == "shorten" and not counts:
        raise DataError(f"{where}: not about acts; {REMEDY}")
    return line


class History:
    """The acts on the model in a folder."""

    def __init__(self, folder: Path) -> None:
        self.lines, self.pending = folder / "history.jsonl", folder / "pending.json"
        self.parsed: list[tuple[bytes, Line | DataError]] = []  # of the last reading

    def read(self, tell: Tell = ignore) -> list[Line]:
        """The complete lines, oldest first; `tell` is called with a message about each damaged one."""
        *lines, torn = self.read_bytes().split(b"\n")
        known, self.parsed = self.parsed, []
        found = []
        for number, line in enumerate(lines):
            same_as_before = number < len(known) and known[number][0] == line
            entry = known[number][1] if same_as_before else self.parse(line, number + 1)
            self.parsed.append((line, entry))
            if isinstance(entry, DataError):
                tell(str(entry))
            else:
                found.append(entry)
        if torn:  # by a kill or a full disk
            tell(f"{self.lines}: the last line is cut off; the next update removes it")
        return found

    def parse(self, line: bytes, number: int) -> Line | DataError:
        try:
            return checked_line(line, f"{self.lines}, line {number}")
        except DataError as error:
            return error

    def shorten(self, most: int = MOST_LINES, kept: int = KEPT_LINES) -> None:
        """Replace the older lines of a very long history by one that counts them; damaged lines stay."""
        faults: list[str] = []
        lines = self.read(faults.append)
        if len(lines) <= most or faults:
            return
        old = lines[:-kept]
        names = [name for line in old for name in (line["version"], line.get("highest")) if is_name(name)]
        summary = {
            "when": old[-1]["when"],
            "act": "shorten",
            "acts": sum(line["acts"] if line["act"] == "shorten" else 1 for line in old),
            "since": old[0].get("since", old[0]["when"]),
            "highest": max(names, key=number_of, default=None),
            "version": old[-1]["version"],
        }
        left = [summary, *lines[-kept:]]
        files.write_bytes(self.lines, b"".join(signed(line) + b"\n" for line in left))

    def read_bytes(self) -> bytes:
        exists = os.path.lexists(self.lines)
        return files.read_bytes(self.lines, files.MAX_JSON, REMEDY) if exists else b""

    def remove_torn_line(self) -> None:
        """Remove a last line that is cut off."""
        data = self.read_bytes()
        if data and not data.endswith(b"\n"):
            files.truncate(self.lines, data.rfind(b"\n") + 1)

    def append(self, act: Line, version: str | None) -> None:
        """Add a line about a finished act."""
        files.append(self.lines, signed({"when": now(), **act, "version": version}) + b"\n")

    def write_once(self, line: Line) -> None:
        """Add the line of the act in progress, unless a killed writer has added it already."""
        found = self.read()
        if not (found and same(found[-1], line)):
            files.append(self.lines, signed(line) + b"\n")

    def begin(self, act: Line, version: str, *, new: bool, takes_candidate: bool) -> None:
        """Write the act that begins now to `pending.json`."""
        line = {"when": now(), **act, "version": version}
        files.write_bytes(
            self.pending, signed({"line": line, "new": new, "takes_candidate": takes_candidate})
        )

    def under_way(self) -> Line | None:
        """The act in progress, or the one of a killed writer."""
        with contextlib.suppress(DataError):
            act = {"new": False, "takes_candidate": False} | read_signed(self.pending)
            if isinstance(act.get("line"), dict) and is_name(act["line"].get("version")):
                return act
        return None

    def end(self) -> None:
        files.remove(self.pending)

    def verify(self) -> None:
        """Raise a DataError if `pending.json` is damaged."""
        if os.path.lexists(self.pending):
            read_signed(self.pending)
