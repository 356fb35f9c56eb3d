"""Read a published dataset into two splits of uint8 images.

CIFAR is read from its binary archives: reading the Python version can execute code.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from strongreplay.data import tinyimagenet
from strongreplay.data.archives import Archive, Bytes, Contents, OnProgress, read_archive
from strongreplay.data.formats import Parts, Shape
from strongreplay.protocol import Split


@dataclass(frozen=True, slots=True)
class Dataset:
    """One published dataset: description, archives and reader."""

    name: str
    description: str
    shape: Shape
    num_classes: int
    num_train: int
    num_test: int
    archives: tuple[Archive, ...]
    read: Callable[["Dataset", Path, OnProgress | None], tuple[Split, Split]]
    parse: Callable[[Contents, Shape, int], Parts] | None = None  # for datasets read by read_members
    is_balanced: bool = True  # every class has the same number of images


def parse_contents(dataset: Dataset, contents: Contents) -> Parts:
    assert dataset.parse is not None
    return dataset.parse(contents, dataset.shape, dataset.num_classes)


def read_members(dataset: Dataset, folder: Path, progress: OnProgress | None) -> tuple[Split, Split]:
    """Join the contents of all members of all archives."""
    lengths = {"train": dataset.num_train, "test": dataset.num_test}
    columns: tuple[dict[str, Bytes], dict[str, Bytes]] = ({}, {})
    filled: Counter[tuple[str, str]] = Counter()
    for archive in dataset.archives:
        for contents in read_archive(archive, folder):
            split, holds = contents.member.split, contents.member.holds
            for column, part in zip(columns, parse_contents(dataset, contents), strict=True):
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
    """Copy a part into the column of a split; a part that is the whole column is not copied."""
    if len(part) == length:
        return np.ascontiguousarray(part)
    whole = np.empty((length, *part.shape[1:]), np.uint8) if whole is None else whole
    whole[start : start + len(part)] = part
    return whole


def counts_of(dataset: Dataset) -> tinyimagenet.Counts:
    return tinyimagenet.Counts(dataset.num_classes, dataset.num_train, dataset.num_test)


def read_tinyimagenet(dataset: Dataset, folder: Path, progress: OnProgress | None) -> tuple[Split, Split]:
    return tinyimagenet.read(folder, counts_of(dataset), progress)


def read_digits(dataset: Dataset, folder: Path, progress: OnProgress | None) -> tuple[Split, Split]:
    """Every fifth image is a test image; 17 grey levels are scaled to a byte.

    The file is found without importing scikit-learn, which takes a second.
    """
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    table = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    pixels = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8)
    images = torch.from_numpy(pixels.reshape(-1, *dataset.shape))
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    is_test = torch.arange(len(labels)) % 5 == 0
    return Split(images[~is_test], labels[~is_test]), Split(images[is_test], labels[is_test])
