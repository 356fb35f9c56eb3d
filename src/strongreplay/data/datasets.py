"""Find, fetch, check and read the published datasets; `published.py` has a row for each.

Files are in one data folder in their official layout, packed or unpacked; unpacked files are preferred.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from strongreplay.data import tinyimagenet
from strongreplay.data.archives import (
    Archive,
    Contents,
    Damaged,
    Finding,
    Member,
    OnProgress,
    checksum_fault,
    exists,
    read_plain,
    reading,
)
from strongreplay.data.dataset_readers import Dataset, counts_of, parse_contents, read_tinyimagenet
from strongreplay.data.fetch import download
from strongreplay.data.published import DATASETS
from strongreplay.errors import DataError, unknown
from strongreplay.protocol import Split

__all__ = ["DATASETS", "Dataset", "Finding", "Location", "OnProgress"]
__all__ += ["check", "default_folder", "fetch", "load", "locate"]


@dataclass(frozen=True, slots=True)
class Location:
    """The files of a dataset in a data folder."""

    is_present: bool
    paths: tuple[Path, ...]  # if not empty and is_present is False: incomplete
    size: int  # bytes on disk


def default_folder() -> Path:
    """The user's cache folder: the default data folder."""
    from platformdirs import user_cache_path

    return user_cache_path("strongreplay")


def load(name: str, folder: Path, progress: OnProgress | None = None) -> tuple[Split, Split]:
    """The train and test split: images (N, C, H, W) uint8, labels (N,) int64."""
    dataset = _dataset(name)
    missing = [path for archive in dataset.archives for path in archive.missing(folder)]
    if missing:
        is_incomplete = bool(locate(name, folder).paths)
        state = f"incomplete ({', '.join(missing)} missing)" if is_incomplete else "not found"
        raise DataError(f"{name} {state} in {folder}; run: {_command(name, folder)}")
    with _remedy(name, folder):
        return dataset.read(dataset, folder, progress)


def fetch(name: str, folder: Path, progress: OnProgress | None = None) -> list[Path]:
    """Download missing and damaged files; returns the downloaded files."""
    archives = _dataset(name).archives
    with _remedy(name, folder):
        return [download(archive, folder, progress) for archive in archives if not _is_there(archive, folder)]


def locate(name: str, folder: Path) -> Location:
    """Whether a dataset can be read from the folder, and its files and size there."""
    archives = _dataset(name).archives
    paths = []
    size = 0
    for archive in archives:
        for place in (*(member.path for member in archive.members), archive.path, *archive.folders):
            if exists(path := folder / place):
                paths.append(path)
                with reading(path):
                    size += sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
    return Location(not any(archive.missing(folder) for archive in archives), tuple(paths), size)


def check(name: str, folder: Path, progress: OnProgress | None = None) -> list[Finding]:
    """Verify every file found: published checksums, sizes, headers, labels and class counts."""
    dataset = _dataset(name)
    if dataset.archives and not locate(name, folder).paths:
        return [Finding(folder, False, f"{name} not found; run: {_command(name, folder)}")]
    findings = []
    for archive in dataset.archives:
        if exists(path := folder / archive.path):
            findings.append(_check_file(path, archive.checksum, "checksum is right"))
        findings += [
            _check_member(dataset, part, folder) for part in archive.members if exists(folder / part.path)
        ]
    if dataset.read is read_tinyimagenet:
        findings += tinyimagenet.check(folder, counts_of(dataset), progress)
    elif all(finding.is_right for finding in findings):
        findings.append(_check_classes(dataset, folder))
    return findings


def _dataset(name: str) -> Dataset:
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS, "See: ser data list")
    return DATASETS[name]


def _command(name: str, folder: Path) -> str:
    return f"ser data get {name} --data {shlex.quote(str(folder))}"


@contextmanager
def _remedy(name: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except Damaged as damage:
        raise DataError(f"{damage}; delete it and run: {_command(name, folder)}") from damage


def _is_there(archive: Archive, folder: Path) -> bool:
    sizes = {folder / member.path: member.size for member in archive.members}
    if sizes and all(exists(path) and path.stat().st_size == size for path, size in sizes.items()):
        return True
    if any(exists(folder / place) for place in archive.folders):
        return True
    return exists(folder / archive.path) and checksum_fault(folder / archive.path, archive.checksum) is None


def _check_file(path: Path, checksum: str, praise: str) -> Finding:
    try:
        fault = checksum_fault(path, checksum)
    except DataError as error:
        fault = str(error)
    return Finding(path, fault is None, fault or praise)


def _check_member(dataset: Dataset, member: Member, folder: Path) -> Finding:
    path = folder / member.path
    try:
        parse_contents(dataset, Contents(member, path, read_plain(path, member.size)))
    except DataError as error:
        return Finding(path, False, str(error))
    if member.checksum is None:
        return Finding(path, True, "no published checksum; structure is right")
    return _check_file(path, member.checksum, "checksum and structure are right")


def _check_classes(dataset: Dataset, folder: Path) -> Finding:
    try:
        splits = load(dataset.name, folder)
    except DataError as error:
        return Finding(folder, False, str(error))
    for split, title in zip(splits, ("train", "test"), strict=True):
        got = split.labels.bincount(minlength=dataset.num_classes).tolist()
        if min(got) == 0 or (dataset.is_balanced and len(set(got)) > 1):
            rule = "equally many" if dataset.is_balanced else "at least one"
            return Finding(folder, False, f"{dataset.name} has {got} {title} images a class, expected {rule}")
    text = f"{len(splits[0]):,} train and {len(splits[1]):,} test images in {dataset.num_classes} classes"
    return Finding(folder, True, text)
