"""The guard set: samples that a user gives to judge an update, in addition to held-out samples."""

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from strongreplay.data.user_data import Chunk, Label, digests
from strongreplay.errors import DataError


def usable_guard(guard: Chunk, known: Collection[Label], learnt: Iterable[Tensor]) -> tuple[Chunk, list[str]]:
    """The guard set without unknown classes, and notes about these and about samples in the training data."""
    notes = []
    foreign = sorted({str(label) for label in guard.labels if label not in known})
    if not any(label in known for label in guard.labels):
        raise DataError(
            f"guard: must have samples of classes that the model knows or learns now, got only "
            f"{', '.join(foreign[:5])}; look at the labels, or leave the guard out"
        )
    if foreign:
        notes.append(f"guard: {len(foreign)} unknown classes are left out ({', '.join(foreign[:5])})")
        guard = guard.take(torch.tensor([row for row, label in enumerate(guard.labels) if label in known]))
    pictures = {digest for images in learnt for digest in digests(images)}
    pairs = zip(guard.sources, digests(guard.inputs), strict=True)
    twins = [source for source, digest in pairs if digest in pictures]
    if twins:
        notes.append(
            f"guard: {len(twins)} of {len(guard.labels)} samples are in the training data too, such as "
            f"{twins[0]}; they flatter the result"
        )
    return guard, notes
