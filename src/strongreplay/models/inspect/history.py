"""The history of a kept model: every act, with its new classes and accuracies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from strongreplay.data.user_data import Label
from strongreplay.models.store import CANDIDATE, Store

MAKES_VERSION = ("learn", "accept", "save")  # the acts that make the version they name


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One act. The numbers are None if its version is no longer stored."""

    when: str
    act: str  # learn, refuse, accept, save, rollback, forget or prune
    version: str | None  # the version in use after the act
    details: Mapping[str, Any]  # further entries of the act, such as data and samples
    new_classes: tuple[Label, ...] | None = None
    old_before: float | None = None  # accuracy on old classes, in per cent, before the act
    old_after: float | None = None
    fresh: float | None = None  # accuracy on held-out samples of the new data

    def to_dict(self) -> dict[str, Any]:
        names = ("new_classes", "old_before", "old_after", "fresh")
        numbers = {name: getattr(self, name) for name in names}
        return {"when": self.when, "act": self.act, "version": self.version, **self.details, **numbers}


def read_history(store: Store, tell: Callable[[str], None] = lambda text: None) -> list[HistoryEntry]:
    """Every act, the oldest first. `tell` gets a message for each line or version that is damaged."""
    _ = store.current  # raises if there is no model
    lines = store.history(tell)
    abouts = {version.name: version.about for version in store.versions()}
    refused = [number for number, line in enumerate(lines) if line.get("act") == "refuse"]
    candidate = store.read(CANDIDATE, parts=())[0].about if CANDIDATE in store.names() else None
    entries = []
    for number, line in enumerate(lines):
        about = abouts.get(line["version"]) if line.get("act") in MAKES_VERSION else None
        if refused and number == refused[-1]:
            about = candidate
        details = {key: value for key, value in line.items() if key not in ("when", "act", "version")}
        entries.append(HistoryEntry(line["when"], line["act"], line["version"], details, **summarise(about)))
    return entries


def summarise(about: Mapping[str, Any] | None) -> dict[str, Any]:
    """New classes and accuracies of a version, over all samples of its evaluation."""
    if about is None:
        return {}
    old = [change for change in about["changes"] if change["before"] is not None]
    held = [change for change in old if change["where"] == "held-out"] or old
    count = sum(change["count"] for change in held)
    right, judged = (sum(row[place] for row in about["fresh"]) for place in (1, 2))
    before, after = (
        sum(change[key] * change["count"] for change in held) / count if count else None
        for key in ("before", "after")
    )
    return {
        "new_classes": tuple(about["new_labels"]),
        "old_before": before,
        "old_after": after,
        "fresh": 100 * right / judged if judged else None,
    }
