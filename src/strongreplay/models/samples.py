"""The samples that a model keeps: id, origin and encoded image of each.

Every sample of a chunk gets a new id; two copies of one image get two. The memory and the held-out samples
have a column of ids; on disk each row has its origin, which begins with the id.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import torch
from torch import Tensor

from strongreplay.data import codec
from strongreplay.data.user_data import Chunk, Label

NUM_PROBED = 200  # images that are encoded to estimate the bytes of one


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a kept sample came from."""

    id: int
    source: str
    label: Label
    update: int  # the number of the update it came with, from 1


@dataclass
class SampleIndex:
    """Origin and encoded image of each sample, by id."""

    store: codec.Codec  # how images are kept on disk
    shape: tuple[int, ...]
    origins: dict[int, Origin] = field(default_factory=dict)
    files: dict[int, bytes] = field(default_factory=dict)  # encoded images, so that none is encoded twice

    def pack(self, images: Tensor, ids: Tensor) -> dict[str, Any]:
        """Rows in the form that a version stores: pixels or encoded files, and the origin of each."""
        numbers = ids.tolist()
        packed: dict[str, Any] = {"origins": [list(astuple(self.origins[number])) for number in numbers]}
        if self.store == "raw":
            return packed | {"images": images.cpu().clone()}
        for number, image in zip(numbers, images, strict=True):
            if number not in self.files:
                self.files[number] = codec.encode(image[None], self.store)[0]
        files, lengths = codec.join([self.files[number] for number in numbers])
        return packed | {"files": files, "lengths": lengths}

    def unpack(self, packed: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """The images and ids of packed rows; adds their origins and files to the index."""
        origins = [Origin(*entry) for entry in packed["origins"]]
        self.origins |= {origin.id: origin for origin in origins}
        ids = torch.tensor([origin.id for origin in origins], dtype=torch.int64)
        if "images" in packed:
            return packed["images"], ids
        files = codec.part(packed["files"], packed["lengths"])
        self.files |= dict(zip(ids.tolist(), files, strict=True))
        return codec.decode(files, self.shape), ids

    def apply_loss(self, images: Tensor, ids: Tensor) -> None:
        """Replace new images by their JPEG-compressed form, so that the model equals one loaded from disk."""
        if self.store != "jpeg":
            return
        rows = [row for row, number in enumerate(ids.tolist()) if number not in self.files]
        if rows:
            files = codec.encode(images[rows], self.store)
            images[rows] = codec.decode(files, self.shape).to(images.device)
            self.files |= dict(zip(ids[rows].tolist(), files, strict=True))

    def keep_only(self, ids: Iterable[int]) -> None:
        """Remove all other samples from the index."""
        kept = set(ids)
        self.origins = {number: origin for number, origin in self.origins.items() if number in kept}
        self.files = {number: data for number, data in self.files.items() if number in kept}

    def image_bytes(self, images: Tensor) -> int:
        """The bytes of one of these images on disk; the mean if they are encoded."""
        if self.store == "raw":
            return images[0].nbytes
        files = codec.encode(images[:NUM_PROBED], self.store)
        return -(-sum(map(len, files)) // len(files))


def origins_of(chunk: Chunk, ids: Sequence[int], update: int) -> dict[int, Origin]:
    """The origin of each sample of a chunk, by id."""
    rows = zip(ids, chunk.sources, chunk.labels, strict=True)
    return {number: Origin(number, source, label, update) for number, source, label in rows}
