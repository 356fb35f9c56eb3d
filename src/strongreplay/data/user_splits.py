"""UserSplits: training and test data of folder:PHOTOS, csv:FILE, npz:FILE or npy:FOLDER, for a stream.

Photos and packed arrays are read once and stored in the cache folder as plain arrays until the data change.
Large arrays are memory-mapped from the cache or from the user's folder (npy), and never read completely.
"""

import hashlib
import json
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strongreplay.data.archives import Damaged, OnProgress, telling
from strongreplay.data.array_cache import make_once, write_array
from strongreplay.data.arrays import Array, open_npy
from strongreplay.data.labels import Label
from strongreplay.data.mapped import map_file
from strongreplay.data.user_sources import READERS, DataSource, Samples, stamp_of
from strongreplay.errors import ConfigError, DataError
from strongreplay.protocol import Split, derive_generator
from strongreplay.storage import files

CACHE, FORMAT = "own", 1
TEST_SHARE = 0.2  # held out if the data have no test part
MAPPED_SIZE = 1 << 28  # bytes; smaller arrays are read into memory
ABOUT_LIMIT = 1 << 26  # bytes


@dataclass(frozen=True, slots=True)
class UserSplits:
    """Both splits, labels numbered in the order of their names, and a hash of samples and labels."""

    train: Split
    test: Split
    names: tuple[str, ...]
    hash: str


def is_user_data(name: str) -> bool:
    return name.partition(":")[0] in READERS and ":" in name


def open_user_splits(
    name: str,
    cache: Path,
    side: int | None = None,
    test: float | None = None,
    progress: OnProgress | None = None,
) -> UserSplits:
    """The data of a name; `test` is the share of each class that is held out if there is no test part."""
    kind, _, path = name.partition(":")
    source = DataSource(kind, Path(path).expanduser(), side)
    place, about = _kept(source, cache / CACHE, progress)
    with telling(place, "remove it"):
        labels = torch.from_numpy(np.array(open_npy(place / "labels.npy")))
        inputs = [_open_inputs(Path(file)) for file in about["inputs"] or [place / "inputs.npy"]]
        names, num_train = tuple(about["names"]), about["num_train"]
        _check_kept(place, labels, inputs, names, num_train)
        own_hash = str(about["hash"])
    if num_train is None:
        train, held = hold_out_rows(labels, TEST_SHARE if test is None else test, names, name)
    else:
        if test is not None:
            raise ConfigError(f"data.test: {name} has a test part of its own; leave data.test out")
        train, held = torch.arange(num_train), torch.arange(num_train, len(labels))
    if len(inputs) == 2:  # two files: row numbers of the second start at 0
        return UserSplits(Split(inputs[0], labels[train]), Split(inputs[1], labels[held]), names, own_hash)
    first, second = (Split(inputs[0][rows], labels[rows]) for rows in (train, held))
    return UserSplits(first, second, names, own_hash)


def _check_kept(
    place: Path, labels: Tensor, inputs: list[Tensor], names: tuple[str, ...], num_train: int | None
) -> None:
    """Refuse a cache folder whose parts do not fit together."""
    total = sum(map(len, inputs))
    labelled = (
        labels.dtype == torch.int64 and labels.shape == (total,) and all(isinstance(n, str) for n in names)
    )
    if not labelled or int(labels.min()) < 0 or int(labels.max()) >= len(names):
        raise Damaged(place, "has labels that do not fit its samples")
    rule = [len(inputs[0])] if len(inputs) == 2 else [None, *range(1, total)]
    if num_train not in rule or len(inputs) > 2:
        raise Damaged(place, f"has {num_train!s:.20} training samples of {total} in {len(inputs)} arrays")


def data_hash(name: str, cache: Path, side: int | None = None, progress: OnProgress | None = None) -> str:
    """The hash of the data of a name; the data are read again if they have changed."""
    kind, _, path = name.partition(":")
    return str(_kept(DataSource(kind, Path(path).expanduser(), side), cache / CACHE, progress)[1]["hash"])


def hold_out_rows(labels: Tensor, share: float, names: tuple[str, ...], where: str) -> tuple[Tensor, Tensor]:
    """Rows for training and for testing: the share of each class, at least one sample and never all."""
    train, test = [], []
    for column, name in enumerate(names):
        rows = torch.nonzero(labels == column).flatten()
        if len(rows) < 2:
            raise DataError(
                f"{where}: class {name!r} has 1 sample, and one must be held out for the test; "
                "add samples, or give a test part"
            )
        order = rows[torch.randperm(len(rows), generator=derive_generator(0, f"test part {column}"))]
        cut = min(max(1, round(share * len(rows))), len(rows) - 1)
        test.append(order[:cut])
        train.append(order[cut:])
    return torch.cat(train).sort().values, torch.cat(test).sort().values


def _open_inputs(path: Path) -> Tensor:
    array = open_npy(path)
    if array.nbytes > MAPPED_SIZE:
        return map_file(path, add_channel=array.ndim == 3)
    held = torch.from_numpy(np.array(array))
    return held.unsqueeze(1) if array.ndim == 3 else held


def _kept(source: DataSource, cache: Path, progress: OnProgress | None) -> tuple[Path, dict[str, Any]]:
    """The cache folder of the current source, and its description; read and written if needed."""
    key = json.dumps([source.kind, os.path.realpath(source.path), source.side])
    place, stamp = cache / files.sha256(key.encode())[:16], stamp_of(source)
    about = make_once(
        f"{source}: {place}",
        cache,
        lambda: _read_about(place, stamp),
        lambda: _keep(source, place, stamp, progress),
        "make room for it in the cache folder",
    )
    return place, about


def _read_about(place: Path, stamp: str) -> dict[str, Any] | None:
    """The description of a cache folder; None if there is none or the data have changed."""
    try:
        about = files.parse_json(files.read_bytes(place / "about.json", ABOUT_LIMIT))
    except (DataError, OSError, ValueError):
        return None
    fits = isinstance(about, dict) and about.get("format") == FORMAT and about.get("stamp") == stamp
    return about if fits else None


def _keep(source: DataSource, place: Path, stamp: str, progress: OnProgress | None) -> dict[str, Any]:
    samples = READERS[source.kind](source, progress)
    names, columns = number_labels(samples.labels, samples.num_train, str(source))
    files.make_folder(place.parent)
    if place.exists():
        files.remove(place)  # the cache of the old data
    files.clear_leftovers(place.parent, place.name)
    with files.new_folder(place) as part:
        write_array(part / "labels.npy", columns.dtype.str, columns.shape, [columns])
        described = [names, samples.shape, samples.dtype, samples.num_train, columns.tolist()]
        about = {
            "format": FORMAT,
            "source": str(source),
            "stamp": stamp,
            "hash": _write_inputs(part / "inputs.npy", samples, json.dumps(described).encode()),
            "names": names,
            "num_train": samples.num_train,
            "inputs": [str(path) for path in samples.inputs],
        }
        with files.new_file(part / "about.json") as file:
            file.write(json.dumps(about, indent=1).encode())
    return about


def _write_inputs(path: Path, samples: Samples, described: bytes) -> str:
    """Write the samples, unless they are arrays already; returns the hash of description and samples."""
    digest = hashlib.sha256(described)

    def hashed() -> Iterator[Array]:
        for block in samples.blocks():
            digest.update(block.tobytes())
            yield block

    if samples.inputs:
        deque(hashed(), maxlen=0)
    else:
        write_array(path, samples.dtype, (len(samples.labels), *samples.shape), hashed())
    return digest.hexdigest()[:16]


def number_labels(labels: list[Label], num_train: int | None, where: str) -> tuple[list[str], Array]:
    """The sorted names of all classes, and the class number of each sample."""
    known = set(labels[:num_train])
    ordered = sorted(known, key=lambda label: (isinstance(label, str), label))
    names = [str(label) for label in ordered]
    if len(names) < 2:
        raise DataError(
            f"{where}: must have at least 2 classes, got {', '.join(names) or 'none'}; add a class"
        )
    if len(set(names)) < len(names):
        raise DataError(f"{where}: labels such as 1 and '1' cannot be told apart; make all of them text")
    if num_train is not None:
        tested = set(labels[num_train:])
        for these, others, text in ((known, tested, "no test samples"), (tested, known, "test samples only")):
            if missing := sorted(map(str, these - others)):
                raise DataError(
                    f"{where}: class {', '.join(missing)[:80]} has {text}; give both parts all classes"
                )
    column = {label: number for number, label in enumerate(ordered)}
    return names, np.array([column[label] for label in labels], np.int64)
