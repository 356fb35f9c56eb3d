"""Erasure: remove samples from every version of a model, so that none of its files holds them any more.

It removes pixels or features, encoded files, stored logits, digests and sources. Samples are selected by id,
path or label, or by a file with their pixels, which also finds photos of which only a print is left. Samples
with equal pixels are removed too, otherwise the image would still be stored. No random numbers are drawn, and
the other samples keep their order. Weights that were trained on the samples do not change, and copies of the
folder are not touched.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import torch

from strongreplay.data import codec
from strongreplay.data.user_data import Label, digests
from strongreplay.errors import ConfigError, RunError
from strongreplay.models.check import refuses_misfits
from strongreplay.models.duplicates import prints_of
from strongreplay.models.features import forget_features
from strongreplay.models.memory_view import (
    KINDS,
    Remembered,
    digests_of,
    images_of,
    origins_in,
    read_parts,
    row_columns,
    samples_of,
)
from strongreplay.models.photo_digests import photo_digests
from strongreplay.models.samples import Origin
from strongreplay.models.store import WORK, Store
from strongreplay.storage import files

OnProgress = Callable[[str, int, int], None]
CACHE_REMOVED = (
    "the cache of features was removed, because it may have had theirs; a photo that is not kept is known by "
    "a print of its pixels: erase it with --file PHOTO"
)


class NothingFoundError(ConfigError):
    """No sample is as it was named."""


@dataclass(frozen=True, slots=True)
class ErasedSamples:
    """The samples to remove."""

    samples: dict[Origin, Remembered]
    pictures: frozenset[str]  # the digests of their pixels
    num_copies: int  # samples that were not selected but have the pixels of a selected one
    versions: tuple[str, ...]  # versions that hold some of them, or their prints
    num_prints: int  # of learnt photos that are named by a file; none of them may be kept
    stopped: bool  # a stopped update exists; its state is removed completely

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(sorted({origin.id for origin in self.samples}))


@dataclass(frozen=True, slots=True)
class Erased:
    """The samples that were removed."""

    num_samples: int
    ids: tuple[int, ...]
    versions: tuple[str, ...]  # versions that were changed
    stopped: bool  # a stopped update was removed


@dataclass(frozen=True, slots=True)
class ErasureRow:
    version: str
    sample: Remembered
    origin: Origin
    digest: str


def forget(
    store: Store,
    *,
    labels: Collection[Label] = (),
    sources: Collection[str] = (),
    ids: Collection[int] = (),
    photos: Sequence[Path] = (),
    by: Mapping[str, str] | None = None,
    confirm: Callable[[ErasedSamples], None] = lambda found: None,
    progress: OnProgress = lambda what, done, total: None,
) -> Erased:
    """Remove the selected samples, and all with equal pixels, from every version.

    `source` is the source of a sample, or the folder or array file that contains it; `photos` are files with
    its pixels. `by` is added to the line of the history. `confirm` is called with the samples to remove and
    may raise; nothing is changed before that. If nothing is found, the cache of features is removed anyway.
    """
    if not (labels or sources or ids or photos):
        raise ConfigError("nothing is named to be forgotten; give a label, a source, an id or a file")
    _ = store.current  # raises if there is no model, before a lock is created
    with store.locked():
        with store.writing():  # also removes unused objects of a killed act, even if nothing matches
            pass
        try:
            found = find(store, labels, sources, ids, photo_digests(store, photos), progress)
        except NothingFoundError as error:
            if forget_features(store.folder):
                raise NothingFoundError(f"{error}\n{CACHE_REMOVED}") from None
            raise
        confirm(found)
        forget_features(store.folder)
        remove_work(store.folder / WORK)
        done, total = 0, len(store.names()) * len(KINDS)

        def change(tree: Any) -> Any:
            nonlocal done
            done += 1
            progress("forgetting", done, total)
            return without(tree, found)

        act = {"act": "forget", "samples": len(found.samples), "ids": list(found.ids), **(by or {})}
        sources = {origin.source for origin in found.samples}
        changed = store.rewrite(KINDS, change, act, lambda about: without_notes(about, sources))
    return Erased(len(found.samples), found.ids, tuple(changed), found.stopped)


@refuses_misfits
def find(
    store: Store,
    labels: Collection[Label],
    sources: Collection[str],
    ids: Collection[int],
    pictures: frozenset[str] = frozenset(),
    progress: OnProgress = lambda what, done, total: None,
) -> ErasedSamples:
    """Find the samples in every version and the candidate; if there are none, raise an error.

    `pictures` are digests of pixels that are named besides.
    """
    rows = all_rows(store, progress)
    texts = {str(label) for label in labels}
    named = [
        row
        for row in rows
        if str(row.sample.label) in texts
        or row.digest in pictures
        or any(lies_in(row.sample.source, source) for source in sources)
    ]
    for number in ids:
        having = [row for row in rows if row.sample.id == number]
        # Version 0.1 reused ids after a rollback: an id means the sample that the version in use lists.
        named += [row for row in having if row.version == store.current] or having
    stopped = (store.folder / WORK).exists()
    prints = {name: count_prints(store, name, pictures) for name in store.names()} if pictures else {}
    if not (named or any(prints.values())):
        hint = f"; {store.folder / WORK} holds a stopped update, which --restart forgets" if stopped else ""
        raise NothingFoundError(
            f"{store.folder}: no remembered sample has such a label, source, id or pixels; "
            f"see: ser memory {store.folder} list{hint}"
        )
    origins, pictures = {row.origin for row in named}, pictures.union(row.digest for row in named)
    doomed = [row for row in rows if row.origin in origins or row.digest in pictures]
    samples = {row.origin: row.sample for row in doomed}
    versions = dict.fromkeys([*(row.version for row in doomed), *(name for name in prints if prints[name])])
    num_prints = max(prints.values(), default=0)
    return ErasedSamples(samples, pictures, len(samples) - len(origins), tuple(versions), num_prints, stopped)


def count_prints(store: Store, name: str, pictures: frozenset[str]) -> int:
    """How many of the pictures a version knows as learnt, by their prints."""
    held = read_parts(store, name, ("model", "held"))[1]["held"]
    return int(torch.isin(prints_of(pictures), held["learnt"]).sum()) if "learnt" in held else 0


def all_rows(store: Store, progress: OnProgress) -> list[ErasureRow]:
    """The rows of every version; the version in use comes last."""
    rows, names = list[ErasureRow](), store.names()
    names.sort(key=lambda name: name == store.current)
    for number, name in enumerate(names):
        progress("looking", number, len(names))
        parts = read_parts(store, name)[1]
        rows += map(ErasureRow, repeat(name), samples_of(parts), origins_in(parts), digests_of(parts))
    return rows


def lies_in(source: str, place: str) -> bool:
    place = place.rstrip("/")
    return source == place or source.startswith((f"{place}/", f"{place}#"))


def without(tree: Any, found: ErasedSamples) -> Any:
    """A copy of a part without the samples; None if it holds none of them."""
    if "learnt" in tree:
        learnt = tree["learnt"][~torch.isin(tree["learnt"], prints_of(found.pictures))]
        shorter = tree | {"learnt": learnt}
        rest = without_rows(shorter, found)
        return shorter if rest is None and len(learnt) < len(tree["learnt"]) else rest
    return without_rows(tree, found)


def without_rows(tree: Any, found: ErasedSamples) -> Any:
    """The same for the rows of a part."""
    packed = tree["samples"]
    if packed is None:
        return None
    pairs = zip(packed["origins"], digests(images_of(packed)), strict=True)
    gone = [Origin(*entry) in found.samples or digest in found.pictures for entry, digest in pairs]
    if not any(gone):
        return None
    kept = [row for row, goes in enumerate(gone) if not goes]
    rows = torch.tensor(kept, dtype=torch.int64)
    columns = {name: column[rows] for name, column in row_columns(tree).items()}
    samples = {"samples": take(packed, rows)}
    if "extra" not in tree:
        return tree | samples | columns
    # The number of seen samples does not change: new samples fill the free slots.
    extra = tree["extra"] | {"num_filled": len(kept)}
    return tree | samples | {"columns": columns, "extra": extra}


def take(packed: Mapping[str, Any], rows: torch.Tensor) -> dict[str, Any]:
    taken: dict[str, Any] = {"origins": [packed["origins"][row] for row in rows.tolist()]}
    if "images" in packed:
        return taken | {"images": packed["images"][rows]}
    files = codec.part(packed["files"], packed["lengths"])
    joined, lengths = codec.join([files[row] for row in rows.tolist()])
    return taken | {"files": joined, "lengths": lengths}


def without_notes(about: Mapping[str, Any], sources: Collection[str]) -> dict[str, Any]:
    """The description of a version, without notes that name one of the sources."""
    notes = [note for note in about.get("notes", []) if not any(source in note for source in sources)]
    return dict(about) | ({"notes": notes} if "notes" in about else {})


def remove_work(folder: Path) -> None:
    """Remove the state of a stopped update completely, because it contains a memory."""
    if not folder.exists():
        return
    try:
        files.remove(folder)
        files.sync_folder(folder.parent)
    except OSError as error:
        raise RunError(
            f"{folder}: could not be removed ({error.strerror or error}); remove it and repeat, "
            "no version was changed"
        ) from None
