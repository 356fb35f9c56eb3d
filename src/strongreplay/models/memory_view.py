"""The samples of a version, replayed and held-out ones, read without building a net."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from strongreplay.data import codec
from strongreplay.data.user_data import Label, digests
from strongreplay.errors import DataError
from strongreplay.models.check import refuses_misfits
from strongreplay.models.samples import Origin
from strongreplay.models.store import Store, Version

KINDS = {"memory": "replay", "held": "held-out"}  # the parts that hold samples -> their use


@dataclass(frozen=True, slots=True)
class Remembered:
    """A row of the memory or of the held-out samples; one sample can have several rows."""

    id: int
    label: Label
    source: str
    update: int  # the number of the update it came with, from 1
    kind: str  # replay or held-out
    bytes: int  # including further columns, such as stored logits

    def to_dict(self) -> dict[str, Any]:
        """For JSON, with the keys of version 0.1."""
        return {"lesson" if key == "update" else key: value for key, value in asdict(self).items()}


def read_parts(
    store: Store, name: str | None, wanted: Iterable[str] = ("model", *KINDS)
) -> tuple[Version, dict[str, Any]]:
    """A version and the requested parts, as far as it has them: not every method has a memory."""
    if not store.names():
        _ = store.current  # raises if there is no model
    held = store.read(name, parts=())[0].parts
    return store.read(name, parts=[part for part in wanted if part in held])


@refuses_misfits
def samples_of(parts: Mapping[str, Any]) -> list[Remembered]:
    """All rows in stored order: first replayed samples, then held-out ones."""
    return [sample for part in KINDS for sample in samples_in(part, parts)]


def samples_in(part: str, parts: Mapping[str, Any]) -> Iterator[Remembered]:
    tree, labels = parts.get(part), parts["model"]["labels"]
    if tree is None or (packed := tree["samples"]) is None:
        return
    columns = row_columns(tree)
    classes = columns.get("columns", columns.get("labels"))
    beside = sum(column[0].nbytes for column in columns.values() if len(column))
    sizes = image_sizes(packed)
    for row, (number, source, label, update) in enumerate(packed["origins"]):
        own = label if classes is None else labels[int(classes[row])]
        yield Remembered(number, own, source, update, KINDS[part], sizes[row] + beside)


def row_columns(tree: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a part that have a row for each sample."""
    if "extra" in tree:  # a memory
        columns: dict[str, Tensor] = tree["columns"]
        return columns
    return {"columns": tree["columns"], "keys": tree["keys"]}


def image_sizes(packed: Mapping[str, Any]) -> list[int]:
    if "images" in packed:
        return [image.nbytes for image in packed["images"]]
    sizes: list[int] = packed["lengths"].tolist()
    return sizes


def images_of(packed: Mapping[str, Any] | None) -> Tensor:
    """The decoded images, or features, of a part."""
    if packed is None:
        return torch.empty(0, 0)
    if "images" in packed:
        images: Tensor = packed["images"]
        return images
    return codec.decode(codec.part(packed["files"], packed["lengths"]))


@refuses_misfits
def all_images(parts: Mapping[str, Any]) -> Tensor:
    """In the order of `samples_of`."""
    found = [images_of(parts[part]["samples"]) for part in KINDS if part in parts]
    filled = [images for images in found if len(images)]
    return torch.cat(filled) if filled else torch.empty(0, *parts["model"]["shape"])


def origins_in(parts: Mapping[str, Any]) -> list[Origin]:
    """In the order of `samples_of`."""
    packed = [parts[part]["samples"] for part in KINDS if part in parts]
    return [Origin(*entry) for samples in packed if samples is not None for entry in samples["origins"]]


def digests_of(parts: Mapping[str, Any]) -> list[str]:
    """The SHA-256 of each sample's bytes, in the order of `samples_of`; equal images have equal digests."""
    return digests(all_images(parts))


def first_free_id(store: Store) -> int:
    """An id larger than all ids in any version, so that ids are not reused after a rollback."""
    numbers = [1]
    for name in store.names():
        with suppress(DataError):  # skip a damaged version
            numbers.append(store.read(name, parts=["model"])[1]["model"]["next_id"])
    return max(numbers)
