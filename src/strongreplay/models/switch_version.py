"""Switch to another version without training: accept a refused update, or roll back."""

from collections.abc import Mapping

from strongreplay.errors import DataError
from strongreplay.models.store import CANDIDATE, Store, Version

By = Mapping[str, str]  # who acts, if it is not the command line; added to the line of the history


def accept_candidate(store: Store, keep: int | None = None, by: By | None = None) -> Version:
    """Put the refused update in use, without training."""
    if CANDIDATE not in store.names():
        raise DataError(f"{store.folder}: no refused update waits there; learn one with --data")
    with store.locked():
        version = store.accept({"act": "accept", **(by or {})})
        store.prune(keep)
    return version


def roll_back(store: Store, name: str, by: By | None = None) -> str | None:
    """Put a version in use; returns the one that was in use before, None if that is not known."""
    if not store.names():
        _ = store.current  # raises if there is no model
    with store.locked():
        try:
            before = store.peek()
        except DataError:  # `current` is damaged; a rollback repairs it
            before = None
        if before != name:
            store.rollback(name, {"act": "rollback", "from": before, **(by or {})})
    return before
