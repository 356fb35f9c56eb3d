"""A memory's budget, in samples or in bytes, and how it is divided into replayed and held-out samples."""

import re
from dataclasses import dataclass

from strongreplay.errors import ConfigError

UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}
HELD_SHARE = 5  # one fifth of the budget is for held-out samples, which the gate uses
DEFAULT_MEMORY = "5000,64MB"


@dataclass(frozen=True, slots=True)
class Budget:
    """A number of samples, a number of bytes, or both; then the smaller one counts."""

    samples: int | None = None
    bytes: int | None = None

    @classmethod
    def parse(cls, text: int | str) -> "Budget":
        """Parse 500, 20MB, 1.5GiB or 500,20MB."""
        found: dict[str, int] = {}
        for part in str(text).lower().split(","):
            match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*(?:([kmg]i?)?(b))?\s*", part)
            kind = "bytes" if match and match[3] else "samples"
            if not match or kind in found or (kind == "samples" and not match[1].isdecimal()):
                raise ConfigError(
                    "memory must be a number of samples or of bytes with a unit, such as 500 or 20MB, "
                    f"or both with a comma between, got {str(text)[:80]!a}"
                )
            found[kind] = int(float(match[1]) * UNITS[match[2] or ""]) if match[3] else int(match[1])
        return cls(**found)

    def replay_room(self, row_bytes: int, hold: bool) -> int:
        """How many samples of `row_bytes` to replay; with `hold`, a share is left for held-out samples."""
        rooms = [] if self.samples is None else [self.samples - self.samples // HELD_SHARE * hold]
        if self.bytes is not None:
            rest = self.bytes - self.bytes // HELD_SHARE * hold
            if rest < row_bytes:
                raise ConfigError(
                    f"a memory of {self.bytes:,} bytes has no room for one sample of {row_bytes:,}; give more"
                )
            rooms.append(rest // row_bytes)
        return min(rooms)

    def held_room(self, row_bytes: int, hold: bool) -> int:
        """How many samples of `row_bytes` to hold out."""
        rooms = [] if self.samples is None else [self.samples // HELD_SHARE * hold]
        if self.bytes is not None:
            rooms.append(self.bytes // HELD_SHARE * hold // row_bytes)
        return min(rooms)

    @property
    def largest(self) -> int:
        """A number of samples that no memory of this budget exceeds."""
        return min(limit for limit in (self.samples, self.bytes) if limit is not None)

    def __str__(self) -> str:
        samples = [] if self.samples is None else [f"{self.samples} samples"]
        return " or ".join(samples + ([] if self.bytes is None else [f"{self.bytes:,} bytes"]))
