"""The published datasets: find, fetch, check and read them into uint8 Splits, one visible row each.

Files lie in one data folder in their official layout, packed as downloaded or unpacked; unpacked wins. CIFAR
is read from its binary archives, because reading the others would run code from the file.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from strongreplay.data import tinyimagenet
from strongreplay.data.archives import (
    Archive,
    Bytes,
    Contents,
    Damaged,
    Finding,
    Member,
    OnProgress,
    checksum_fault,
    exists,
    read_archive,
    read_plain,
    reading,
)
from strongreplay.data.fetch import download
from strongreplay.data.formats import Parts, Shape, cifar_member, idx_archives, parse_cifar, parse_idx
from strongreplay.errors import DataError, unknown
from strongreplay.protocol import Split

__all__ = ["DATASETS", "Dataset", "Finding", "Location", "OnProgress"]
__all__ += ["check", "default_folder", "fetch", "load", "locate"]


@dataclass(frozen=True, slots=True)
class Dataset:
    """One published dataset: what it is, where it comes from and how it is read."""

    name: str
    description: str
    shape: Shape
    num_classes: int
    num_train: int
    num_test: int
    archives: tuple[Archive, ...]
    read: Callable[["Dataset", Path, OnProgress | None], tuple[Split, Split]]
    parse: Callable[[Contents, Shape, int], Parts] | None = None  # for datasets read by _read_members
    is_balanced: bool = True  # every class has the same number of images


@dataclass(frozen=True, slots=True)
class Location:
    """What of a dataset lies in a data folder."""

    is_present: bool
    paths: tuple[Path, ...]  # not empty while is_present is False: incomplete
    size: int  # bytes on disk


def default_folder() -> Path:
    """The user's cache folder, where data lies unless another folder is given."""
    import pooch  # type: ignore[import-untyped]

    return Path(pooch.os_cache("strongreplay"))


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
    """Download what is not there or not right, and name the files that were downloaded."""
    archives = _dataset(name).archives
    with _remedy(name, folder):
        return [download(archive, folder, progress) for archive in archives if not _is_there(archive, folder)]


def locate(name: str, folder: Path) -> Location:
    """Whether a dataset can be read from the folder, and what it takes up there."""
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
    """Verify every file that is there: published checksums, sizes, headers, labels and class counts."""
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
    if dataset.read is _read_tinyimagenet:
        findings += tinyimagenet.check(folder, _counts(dataset), progress)
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
        _parse(dataset, Contents(member, path, read_plain(path, member.size)))
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


def _parse(dataset: Dataset, contents: Contents) -> Parts:
    assert dataset.parse is not None
    return dataset.parse(contents, dataset.shape, dataset.num_classes)


def _read_members(dataset: Dataset, folder: Path, progress: OnProgress | None) -> tuple[Split, Split]:
    """Put together what the members of all archives hold."""
    lengths = {"train": dataset.num_train, "test": dataset.num_test}
    columns: tuple[dict[str, Bytes], dict[str, Bytes]] = ({}, {})
    filled: Counter[tuple[str, str]] = Counter()
    for archive in dataset.archives:
        for contents in read_archive(archive, folder):
            split, holds = contents.member.split, contents.member.holds
            for column, part in zip(columns, _parse(dataset, contents), strict=True):
                if part is not None:
                    column[split] = _place(column.get(split), part, filled[split, holds], lengths[split])
            filled[split, holds] += contents.member.num_images
    train, test = (
        Split(
            torch.from_numpy(columns[0][split].reshape(-1, *dataset.shape)),
            torch.from_numpy(columns[1][split].astype(np.int64)),
        )
        for split in lengths
    )
    return train, test


def _place(whole: Bytes | None, part: Bytes, start: int, length: int) -> Bytes:
    """The column of a split with one more part in it; a part that is all of it is not copied."""
    if len(part) == length:
        return np.ascontiguousarray(part)
    whole = np.empty((length, *part.shape[1:]), np.uint8) if whole is None else whole
    whole[start : start + len(part)] = part
    return whole


def _counts(dataset: Dataset) -> tinyimagenet.Counts:
    return tinyimagenet.Counts(dataset.num_classes, dataset.num_train, dataset.num_test)


def _read_tinyimagenet(dataset: Dataset, folder: Path, progress: OnProgress | None) -> tuple[Split, Split]:
    return tinyimagenet.read(folder, _counts(dataset), progress)


def _read_digits(dataset: Dataset, folder: Path, progress: OnProgress | None) -> tuple[Split, Split]:
    """Every fifth image is for the test; sixteen levels of grey are spread over a byte."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    pixels, classes = load_digits(return_X_y=True)
    images = torch.from_numpy(np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, *dataset.shape))
    labels = torch.from_numpy(classes.astype(np.int64))
    is_test = torch.arange(len(labels)) % 5 == 0
    return Split(images[~is_test], labels[~is_test]), Split(images[is_test], labels[is_test])


_CIFAR10, _CIFAR100 = "cifar-10-batches-bin", "cifar-100-binary"
_ROWS = (
    Dataset(
        name="mnist",
        description="handwritten digits",
        shape=(1, 28, 28),
        num_classes=10,
        num_train=60_000,
        num_test=10_000,
        archives=idx_archives(
            "mnist",
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist",
                "https://storage.googleapis.com/cvdf-datasets/mnist",
            ),
            {
                "train-images-idx3-ubyte": (
                    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    "6bbc9ace898e44ae57da46a324031adb",
                ),
                "train-labels-idx1-ubyte": (
                    "d53e105ee54ea40749a09fcbcd1e9432",
                    "a25bea736e30d166cdddb491f175f624",
                ),
                "t10k-images-idx3-ubyte": (
                    "9fb629c4189551a2d022fa330f9573f3",
                    "2646ac647ad5339dbf082846283269ea",
                ),
                "t10k-labels-idx1-ubyte": (
                    "ec29112dd5afa0611ce80d1b7f02629c",
                    "27ae3e4e09519cfbb04c329615203637",
                ),
            },
        ),
        read=_read_members,
        parse=parse_idx,
        is_balanced=False,
    ),
    Dataset(
        name="fashion-mnist",
        description="clothes, shoes and bags",
        shape=(1, 28, 28),
        num_classes=10,
        num_train=60_000,
        num_test=10_000,
        archives=idx_archives(
            "fashion-mnist",
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            ),
            {
                "train-images-idx3-ubyte": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", None),
                "train-labels-idx1-ubyte": ("25c81989df183df01b3e8a0aad5dffbe", None),
                "t10k-images-idx3-ubyte": ("bef4ecab320f06d8554ea6380940ec79", None),
                "t10k-labels-idx1-ubyte": ("bb300cfdad3c16e7a12a480ee83cd310", None),
            },
        ),
        read=_read_members,
        parse=parse_idx,
    ),
    Dataset(
        name="cifar10",
        description="photographs of animals and vehicles",
        shape=(3, 32, 32),
        num_classes=10,
        num_train=50_000,
        num_test=10_000,
        archives=(
            Archive(
                "cifar-10-binary.tar.gz",
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                (
                    *(
                        cifar_member(f"{_CIFAR10}/data_batch_{k}.bin", "train", 10_000, 1)
                        for k in range(1, 6)
                    ),
                    cifar_member(f"{_CIFAR10}/test_batch.bin", "test", 10_000, 1),
                ),
            ),
        ),
        read=_read_members,
        parse=parse_cifar,
    ),
    Dataset(
        name="cifar100",
        description="photographs of a hundred kinds of things",
        shape=(3, 32, 32),
        num_classes=100,
        num_train=50_000,
        num_test=10_000,
        archives=(
            Archive(
                "cifar-100-binary.tar.gz",
                "md5:03b5dce01913d631647c71ecec9e9cb8",
                ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
                (
                    cifar_member(
                        f"{_CIFAR100}/train.bin", "train", 50_000, 2, "md5:6172c7755cfe09b2fe270c85cebc1b15"
                    ),
                    cifar_member(
                        f"{_CIFAR100}/test.bin", "test", 10_000, 2, "md5:4499cfba6c016c1be1438163640a0898"
                    ),
                ),
            ),
        ),
        read=_read_members,
        parse=parse_cifar,
    ),
    Dataset(
        name="tinyimagenet",
        description="two hundred classes of ImageNet at 64 x 64",
        shape=(3, 64, 64),
        num_classes=200,
        num_train=100_000,
        num_test=10_000,
        archives=(
            Archive(
                f"{tinyimagenet.TREE}.zip",
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                folders=(tinyimagenet.TREE, tinyimagenet.CACHE),
            ),
        ),
        read=_read_tinyimagenet,
    ),
    Dataset(
        name="digits",
        description="handwritten digits at 8 x 8",
        shape=(1, 8, 8),
        num_classes=10,
        num_train=1_437,
        num_test=360,
        archives=(),
        read=_read_digits,
        is_balanced=False,
    ),
)

DATASETS: dict[str, Dataset] = {row.name: row for row in _ROWS}
