"""File formats of the published datasets: IDX (MNIST, Fashion-MNIST) and CIFAR's binary records."""

import math
from collections.abc import Mapping
from typing import Literal

from strongreplay.data.archives import Archive, Bytes, Contents, Member

Parts = tuple[Bytes | None, Bytes | None]  # the images and the labels that one file holds
Shape = tuple[int, int, int]  # (C, H, W)

_MAGIC = {"images": 0x803, "labels": 0x801}


def parse_idx(contents: Contents, shape: Shape, num_classes: int) -> Parts:
    """Parse IDX: a big-endian header with magic number and sizes, then one byte per pixel or label."""
    member, raw = contents.member, contents.raw
    sizes = [member.num_images, *shape[1:]] if member.holds == "images" else [member.num_images]
    header_size = 4 + 4 * len(sizes)
    if len(raw) < header_size:
        contents.expect_size()
    magic, *got = (int(value) for value in raw[:header_size].view(">u4"))
    if magic != (expected := _MAGIC[member.holds]):
        raise contents.fault(f"starts with {_describe(magic)}, expected {_describe(expected)}")
    if got != sizes:
        raise contents.fault(f"has {got} {member.holds} by its header, expected {sizes}")
    contents.expect_size()
    rows = raw[header_size:].reshape(sizes)
    return (rows, None) if member.holds == "images" else (None, _expect_labels(contents, rows, num_classes))


def _describe(magic: int) -> str:
    names = {number: f" (IDX {kind})" for kind, number in _MAGIC.items()}
    return f"0x{magic:08x}{names.get(magic, '')}"


def parse_cifar(contents: Contents, shape: Shape, num_classes: int) -> Parts:
    """Parse CIFAR: records of one or two label bytes (the last is the class) and the pixel planes."""
    contents.expect_size()
    records = contents.raw.reshape(contents.member.num_images, -1)
    image_size = math.prod(shape)
    return records[:, -image_size:], _expect_labels(contents, records[:, -image_size - 1], num_classes)


def _expect_labels(contents: Contents, labels: Bytes, num_classes: int) -> Bytes:
    if (largest := int(labels.max())) >= num_classes:
        raise contents.fault(f"has the label {largest}, expected 0 to {num_classes - 1}")
    return labels


def idx_archives(
    folder: str,
    mirrors: tuple[str, ...],
    sums: Mapping[str, tuple[str, str | None]],
    counts: tuple[int, int] = (60_000, 10_000),
    side: int = 28,
) -> tuple[Archive, ...]:
    """The four files of an MNIST-like dataset; `sums` has the md5 of each file, packed and unpacked."""
    archives = []
    for name, (packed, unpacked) in sums.items():
        split: Literal["train", "test"] = "train" if name.startswith("train") else "test"
        holds: Literal["images", "labels"] = "images" if "images" in name else "labels"
        count = counts[split == "test"]
        size = 16 + count * side * side if holds == "images" else 8 + count
        member = Member(f"{folder}/{name}", split, holds, count, size, unpacked and f"md5:{unpacked}")
        addresses = tuple(f"{mirror}/{name}.gz" for mirror in mirrors)
        archives.append(Archive(f"{folder}/{name}.gz", f"md5:{packed}", addresses, (member,)))
    return tuple(archives)


def cifar_member(
    path: str,
    split: Literal["train", "test"],
    num_images: int,
    num_labels: int,
    checksum: str | None = None,
    shape: Shape = (3, 32, 32),
) -> Member:
    """A file of records with `num_labels` label bytes each."""
    return Member(path, split, "records", num_images, num_images * (num_labels + math.prod(shape)), checksum)
