"""Which samples of a chunk are duplicates of samples the model has had before, by digests of their pixels.

Samples are compared in the form in which the model keeps them, after compression if it keeps JPEG files.
Of samples that were learnt and are no longer kept, the model has eight bytes of the digest.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from strongreplay.data import codec
from strongreplay.data.user_data import Chunk, digests
from strongreplay.errors import DataError
from strongreplay.models.held_out import balanced_order
from strongreplay.models.labels import columns_of
from strongreplay.models.model import Model


@dataclass(frozen=True, slots=True)
class SeenBefore:
    """Each sample of a chunk, compared with what a model has met before and with the rest of the chunk."""

    prints: Tensor  # (N,) int64
    held: Tensor  # (N,) bool: a held-out sample of the model has the same pixels
    learnt: Tensor  # (N,) bool: a sample with the same pixels was learnt before
    twins: Tensor  # (N,) bool: another sample of the chunk has the same pixels

    @property
    def new(self) -> Tensor:
        """(N,) bool: the samples that may be held out."""
        return ~(self.held | self.learnt | self.twins)

    def take(self, rows: Tensor) -> "SeenBefore":
        return SeenBefore(self.prints[rows], self.held[rows], self.learnt[rows], self.twins[rows])

    def notes(self) -> list[str]:
        again, held = int((self.held | self.learnt).sum()), int(self.held.sum())
        if not again:
            return []
        return [
            f"{again} of {len(self.prints)} samples were met before: {held} of them are held out for testing "
            f"and are not learnt, {again - held} are learnt again and not used for testing"
        ]


def print_of(digest: str) -> int:
    """The first eight bytes of a digest as a signed number."""
    return int(digest[:16], 16) - 2**63


def prints_of(pictures: Iterable[str]) -> Tensor:
    return torch.tensor([print_of(digest) for digest in pictures], dtype=torch.int64)


def compare_with_past(model: Model, chunk: Chunk) -> SeenBefore:
    """Raise a DataError if all samples are held-out ones, because then there is nothing to learn."""
    prints = prints_of(digests(as_kept(chunk.inputs, model.samples.store)))
    held = torch.isin(prints, prints_of(digests(model.held.images)))
    if held.all():
        raise DataError(
            f"all {len(prints)} samples are held out for testing since an earlier update, so there is "
            "nothing to learn; give more data"
        )
    learnt = torch.isin(prints, torch.cat([model.learnt, memory_prints(model)]))
    _, groups, sizes = prints.unique(return_inverse=True, return_counts=True)
    return SeenBefore(prints, held, learnt & ~held, sizes[groups] > 1)


def as_kept(images: Tensor, store: str) -> Tensor:
    """Images as they are after they were written and read again."""
    if store != "jpeg":
        return images
    return codec.decode(codec.encode(images, "jpeg"), tuple(images.shape[1:]))


def memory_prints(model: Model) -> Tensor:
    has_rows = model.memory is not None and len(model.memory)
    return prints_of(digests(model.memory.rows.images)) if has_rows else torch.empty(0, dtype=torch.int64)


def rank_samples(model: Model, chunk: Chunk, ids: Tensor, columns: Tensor, prints: Tensor) -> Tensor:
    """The ids of the memory's samples and of a chunk's, in the order in which the memory prefers them.

    Samples of a class have a random order that depends on their pixels alone; the first of each class come
    first, then the second of each. So the memory has equally many of each class, as far as there are, and
    which ones does not depend on the order of arrival. A sample that comes again replaces its older copy.
    """
    old = model.memory.ids.tolist() if len(model.memory) else []
    origins = [model.samples.origins[number] for number in old]
    marks, names = memory_prints(model), [name_of(source) for source in chunk.sources]
    again = set(zip(prints.tolist(), chunk.labels, names, strict=True))
    known = zip(marks.tolist(), origins, strict=True)
    rest = [(mark, origin.label, name_of(origin.source)) not in again for mark, origin in known]
    old_columns = columns_of([origin.label for origin in origins], model.labels).long()
    rows = torch.tensor(rest, dtype=torch.bool).nonzero().flatten()
    all_ids = torch.cat([torch.tensor(old, dtype=torch.int64)[rows], ids])
    all_columns = torch.cat([old_columns[rows], columns])
    seed, marks = model.settings.learner.seed, torch.cat([marks[rows], prints])
    keys = torch.tensor([random_key(seed, mark) for mark in marks.tolist()], dtype=torch.float64)
    return all_ids[balanced_order(all_columns, keys)]


def name_of(source: str) -> str:
    """The source, by which a user may have a sample erased; rows of nameless arrays have none."""
    return "" if source.startswith("#") else source


def random_key(seed: int, mark: int) -> float:
    """A number in [0, 1) that depends on the seed and the sample's pixels."""
    digest = hashlib.sha256(f"{seed}/memory/{mark}".encode()).digest()
    return (int.from_bytes(digest[:8], "little") >> 11) / 2**53
