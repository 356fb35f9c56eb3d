"""Finish an update that was killed after its version came into use; the next update calls this."""

from typing import Any

from strongreplay.errors import DataError
from strongreplay.models.store import CANDIDATE, WORK, Store
from strongreplay.models.versions import VersionFolder
from strongreplay.storage import files
from strongreplay.storage.checkpoints import checkpoints, read_manifest


def stopped_update(store: VersionFolder) -> dict[str, Any] | None:
    """The manifest of a stopped update that can be resumed; None if its result is already stored."""
    found = newest_checkpoint(store)
    return None if found is None or is_done(store, found) else found


def newest_checkpoint(store: VersionFolder) -> dict[str, Any] | None:
    for path in checkpoints(store.folder / WORK):
        try:
            return read_manifest(path)
        except DataError:  # damaged; resuming the update reports it
            continue
    return None


def is_done(store: VersionFolder, manifest: dict[str, Any]) -> bool:
    """Whether the version in use or the candidate came from the update of these checkpoints."""
    names = [CANDIDATE] if CANDIDATE in store.names() else []
    names += [store.current] if store.exists else []
    return manifest.get("lesson") in [store.manifest(name)["about"].get("lesson") for name in names]


def finish_last_update(store: Store) -> None:
    """Remove the checkpoints of a finished update, and the candidate that it made obsolete."""
    found = newest_checkpoint(store)
    if found is not None and is_done(store, found):
        files.remove(store.folder / WORK)
    acts = store.history()
    if acts and acts[-1].get("act") == "learn" and CANDIDATE in store.names():
        store.drop_candidate()
