"""TinyImageNet: 110,000 small JPEGs, decoded once into a cache of arrays that is then memory-mapped.

Classes are in the order of wnids.txt. The validation images are the test split, because the published test
images have no labels. Grey images become RGB. The zip is never unpacked to disk.
"""

import json
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch

from strongreplay.data.archives import Bytes, Damaged, Finding, OnProgress, digest, exists, reading
from strongreplay.data.array_cache import make_once, write_array
from strongreplay.data.images import BadImage, open_image
from strongreplay.errors import DataError
from strongreplay.protocol import Split
from strongreplay.storage import files

TREE = "tiny-imagenet-200"
CACHE = f"{TREE}.cache"
FORMAT = 1  # version of the cache's format; increase it when the format changes
SPLITS = ("train", "test")
SIDE = 64
FILE_LIMIT = 1 << 20  # bytes; all JPEGs and annotations are much smaller
PROGRESS_STEP = 250  # images between two reports


class Counts(NamedTuple):
    """The expected numbers of classes and images; every class has the same number of images."""

    num_classes: int
    num_train: int
    num_test: int


class ImageList(NamedTuple):
    """The class order, and each split's files with their labels in the order of the arrays."""

    wnids: list[str]
    splits: dict[str, list[tuple[str, int]]]


class ImageSource:
    """Reads files of the unpacked folder if it exists, otherwise of the zip, by their name in the zip."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: zipfile.ZipFile | None = None
        self.path = folder / TREE
        if not exists(self.path):
            self.path = folder / f"{TREE}.zip"
            with reading(self.path):
                self.entries = zipfile.ZipFile(self.path)

    def close(self) -> None:
        if self.entries:
            self.entries.close()

    def read(self, name: str) -> bytes:
        """All bytes of a small file."""
        with reading(Path(name), self.path), self._open(name) as file:
            content = file.read(FILE_LIMIT + 1)
        if len(content) > FILE_LIMIT:
            raise Damaged(self.path, f"(its {name}) has more than {FILE_LIMIT:,} bytes")
        return content

    def _open(self, name: str) -> IO[bytes]:
        if self.entries is None:
            return (self.folder / name).open("rb")
        if name not in self.entries.NameToInfo:
            raise FileNotFoundError(name)
        entry = self.entries.getinfo(name)
        if entry.file_size > FILE_LIMIT or entry.compress_type not in (
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        ):
            raise Damaged(self.path, f"(its {name}) has {entry.file_size:,} bytes in an unexpected format")
        return self.entries.open(entry)

    def read_lines(self, name: str) -> list[str]:
        with reading(Path(name), self.path):
            return self.read(name).decode("ascii").splitlines()

    def read_image(self, name: str) -> Bytes:
        """A decoded image (3, 64, 64); another size is an error, found in the header before decoding."""
        content = self.read(name)
        try:
            with open_image(BytesIO(content), ("JPEG",)) as image:
                if image.size != (SIDE, SIDE):
                    raise BadImage(f"has {image.size} pixels, expected {(SIDE, SIDE)}")
                return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
        except BadImage as error:
            raise Damaged(self.path, f"(its {name}) {error}") from error


def list_images(source: ImageSource, counts: Counts) -> ImageList:
    """Every image's name and label, from wnids.txt and val_annotations.txt."""
    wnids = source.read_lines(f"{TREE}/wnids.txt")
    if len(set(wnids)) != counts.num_classes or not all(re.fullmatch(r"n\d{8}", wnid) for wnid in wnids):
        raise Damaged(
            source.path, f"(its wnids.txt) is not {counts.num_classes} different ids like n01443537"
        )
    train = [
        (f"{TREE}/train/{wnid}/images/{wnid}_{place}.JPEG", label)
        for label, wnid in enumerate(wnids)
        for place in range(counts.num_train // counts.num_classes)
    ]
    columns = {wnid: label for label, wnid in enumerate(wnids)}
    test: dict[str, int] = {}
    for line in source.read_lines(f"{TREE}/val/val_annotations.txt"):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if not re.fullmatch(r"val_\d+\.JPEG", name) or wnid not in columns:
            raise Damaged(
                source.path, f"(its val_annotations.txt) has the line {line[:80]!r}, expected file and id"
            )
        test[f"{TREE}/val/images/{name}"] = columns[wnid]
    per_class = set(Counter(test.values()).values())
    if len(test) != counts.num_test or per_class != {counts.num_test // counts.num_classes}:
        raise Damaged(
            source.path,
            f"(its val_annotations.txt) names {len(test):,} images, {sorted(per_class)} a class, "
            f"expected {counts.num_test:,}, equally many a class",
        )
    return ImageList(wnids, {"train": train, "test": list(test.items())})


def read_images(
    source: ImageSource, listing: ImageList, split: str, progress: OnProgress | None
) -> Iterator[Bytes]:
    """The decoded images of a split, one after another."""
    names = [name for name, _ in listing.splits[split]]
    for done, name in enumerate(names, start=1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about metadata that is not used here
            image = source.read_image(name)
        yield image
        if progress and (done % PROGRESS_STEP == 0 or done == len(names)):
            progress(f"decoding {split} images", done, len(names))


def read(folder: Path, counts: Counts, progress: OnProgress | None = None) -> tuple[Split, Split]:
    """Both splits, with memory-mapped images; the first call decodes all images into the cache."""
    cache = folder / CACHE
    remedy = "free some space or choose another data folder"
    make_once(
        str(cache), folder, lambda: exists(cache), lambda: _make_cache(folder, counts, progress), remedy
    )
    return open_cache(cache, counts)


def _make_cache(folder: Path, counts: Counts, progress: OnProgress | None) -> bool:
    for stale in folder.glob(f"{CACHE}.part-*"):  # version 0.1 left them
        files.remove(stale)
    files.clear_leftovers(folder, CACHE)
    with closing(ImageSource(folder)) as source:
        listing = list_images(source, counts)
        with files.new_folder(folder / CACHE) as part:
            for split in listing.splits:
                _write_split(part, source, listing, split, progress)
            _write_manifest(part, listing, counts)
    return True


def _write_split(
    part: Path, source: ImageSource, listing: ImageList, split: str, progress: OnProgress | None
) -> None:
    labels = np.array([label for _, label in listing.splits[split]], np.int64)
    write_array(part / f"{split}-labels.npy", labels.dtype.str, labels.shape, [labels])
    images = read_images(source, listing, split, progress)
    write_array(part / f"{split}.npy", "|u1", (len(labels), 3, SIDE, SIDE), images)


def _write_manifest(part: Path, listing: ImageList, counts: Counts) -> None:
    entries = {
        name: {
            "dtype": dtype,
            "shape": shape,
            "size": (part / name).stat().st_size,
            "sha256": digest(part / name, "sha256"),
        }
        for name, (dtype, shape) in _arrays(counts).items()
    }
    manifest = {"format": FORMAT, "wnids": listing.wnids, "files": entries}
    with files.new_file(part / "manifest.json") as file:
        file.write(json.dumps(manifest, indent=1).encode())


def _arrays(counts: Counts) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtype and shape of every array in the cache."""
    lengths = {"train": counts.num_train, "test": counts.num_test}
    images = {f"{split}.npy": ("uint8", (length, 3, SIDE, SIDE)) for split, length in lengths.items()}
    return images | {f"{split}-labels.npy": ("int64", (length,)) for split, length in lengths.items()}


def open_cache(cache: Path, counts: Counts) -> tuple[Split, Split]:
    """Both splits of a cache, after checking its manifest, sizes and shapes; `check` verifies checksums."""
    _read_manifest(cache, counts)
    tensors = {}
    for name, (dtype, shape) in _arrays(counts).items():
        with reading(Path(name), cache):
            # Copy on write: torch has no read-only tensors, and the file must not change.
            array = np.load(cache / name, mmap_mode="c", allow_pickle=False)
            if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
                raise ValueError(f"{array.dtype} of shape {array.shape}, expected {dtype} of {shape}")
            tensors[name] = torch.from_numpy(array)
    train, test = (Split(tensors[f"{split}.npy"], tensors[f"{split}-labels.npy"].clone()) for split in SPLITS)
    for labels in (train.labels, test.labels):
        if labels.min() < 0 or labels.max() >= counts.num_classes:
            raise Damaged(cache, f"has a label outside 0 to {counts.num_classes - 1}")
    return train, test


def _read_manifest(cache: Path, counts: Counts) -> dict[str, str]:
    """Each file's SHA-256, after checking format, shapes and sizes."""
    with reading(Path("manifest.json"), cache):
        with (cache / "manifest.json").open("rb") as file:
            manifest = json.loads(file.read(FILE_LIMIT))
        if manifest["format"] != FORMAT or len(manifest["wnids"]) != counts.num_classes:
            got = f"format {manifest['format']} with {len(manifest['wnids'])} classes"
            raise ValueError(f"{got}, expected format {FORMAT} with {counts.num_classes}")
        sums = {}
        for name, (dtype, shape) in _arrays(counts).items():
            row = manifest["files"][name]
            found = (row["dtype"], tuple(row["shape"]), (cache / name).stat().st_size)
            if found != (expected := (dtype, shape, row["size"])):
                raise ValueError(f"{name} is {found}, expected {expected}")
            sums[name] = str(row["sha256"])
        return sums


def check(folder: Path, counts: Counts, progress: OnProgress | None = None) -> list[Finding]:
    """Check every byte of the cache and of the unpacked folder; the zip is checked by its checksum."""
    findings = []
    for place, verify in ((CACHE, _check_cache), (TREE, _check_tree)):
        if exists(folder / place):
            try:
                note = verify(folder, counts, progress)
                findings.append(Finding(folder / place, True, note))
            except DataError as error:
                findings.append(Finding(folder / place, False, str(error)))
    return findings


def _check_cache(folder: Path, counts: Counts, progress: OnProgress | None) -> str:
    cache = folder / CACHE
    open_cache(cache, counts)
    for done, (name, expected) in enumerate(_read_manifest(cache, counts).items(), start=1):
        if (got := digest(cache / name, "sha256")) != expected:
            raise Damaged(cache, f"(its {name}) has sha256 {got}, expected {expected}")
        if progress:
            progress("checking the cache", done, 4)
    return "checksums and structure are right"


def _check_tree(folder: Path, counts: Counts, progress: OnProgress | None) -> str:
    source = ImageSource(folder)
    listing = list_images(source, counts)
    for split in listing.splits:
        for _ in read_images(source, listing, split, progress):
            pass
    return "no published checksum; every image can be decoded"
