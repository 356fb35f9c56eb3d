"""A memory's budget, in samples or in bytes, and how it is divided into replayed and held-out samples."""

import re
from dataclasses import dataclass

from strongreplay.errors import ConfigError

UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}
HELD_SHARE = 5  # one fifth of the budget is for held-out samples, which the gate uses


@dataclass(frozen=True, slots=True)
class Budget:
    """Either a number of samples or a number of bytes."""

    samples: int | None = None
    bytes: int | None = None

    @classmethod
    def parse(cls, text: int | str) -> "Budget":
        """Parse 500, 20MB or 1.5GiB."""
        match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*(?:([kmg]i?)?(b))?\s*", str(text).lower())
        if match and match[3]:
            return cls(bytes=int(float(match[1]) * UNITS[match[2] or ""]))
        if match and match[1].isdecimal():
            return cls(samples=int(match[1]))
        raise ConfigError(
            "memory must be a number of samples or of bytes with a unit, such as 500 or 20MB, "
            f"got {str(text)[:80]!a}"
        )

    def replay_room(self, row_bytes: int, hold: bool) -> int:
        """How many samples of `row_bytes` to replay; with `hold`, a share is left for held-out samples."""
        total = self.samples if self.samples is not None else self.bytes
        assert total is not None
        rest = total - total // HELD_SHARE * hold
        if self.samples is not None:
            return rest
        if rest < row_bytes:
            raise ConfigError(
                f"a memory of {self.bytes:,} bytes has no room for one sample of {row_bytes:,}; give more"
            )
        return rest // row_bytes

    def held_room(self, row_bytes: int, hold: bool) -> int:
        """How many samples of `row_bytes` to hold out."""
        if self.samples is not None:
            return self.samples // HELD_SHARE * hold
        assert self.bytes is not None
        return self.bytes // HELD_SHARE * hold // row_bytes

    def __str__(self) -> str:
        return f"{self.samples} samples" if self.samples is not None else f"{self.bytes:,} bytes"
