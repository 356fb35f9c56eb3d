"""Held-out samples: no update trains on them, and the gate measures accuracy on them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

ENOUGH = 5  # a class with at least this many samples has at least one held out


@dataclass
class HeldOut:
    images: Tensor
    columns: Tensor  # (H,) int64: the class of each
    keys: Tensor  # (H,) float64, drawn once for each sample; the lowest keys of a class stay
    ids: Tensor  # (H,) int64

    def __len__(self) -> int:
        return len(self.keys)

    def check(self, num_labels: int) -> None:
        """Raise a ValueError if the columns do not fit together; they may come from an untrusted file."""
        lengths = {len(self.images), len(self.columns), len(self.keys), len(self.ids)}
        kinds = (self.columns.dtype, self.keys.dtype, self.ids.dtype)
        if len(lengths) > 1 or kinds != (torch.int64, torch.float64, torch.int64):
            raise ValueError("held-out samples: columns of other lengths or types than ours")
        check_labels(self.columns, num_labels, "held-out samples")

    def take(self, rows: Tensor) -> "HeldOut":
        return HeldOut(self.images[rows], self.columns[rows], self.keys[rows], self.ids[rows])

    def joined(self, other: "HeldOut") -> "HeldOut":
        return HeldOut(
            torch.cat([self.images, other.images]),
            torch.cat([self.columns, other.columns]),
            torch.cat([self.keys, other.keys]),
            torch.cat([self.ids, other.ids]),
        )

    def cut_to(self, room: int) -> "HeldOut":
        """At most `room` samples: one of each class, then a second of each, and so on, in stored order."""
        return self.take(balanced_order(self.columns, self.keys)[:room].sort().values)


def check_labels(columns: Tensor, num_labels: int, where: str) -> None:
    if columns.ndim != 1 or (len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < num_labels):
        raise ValueError(f"{where}: labels outside 0 to {num_labels - 1}")


def no_samples(shape: tuple[int, ...]) -> HeldOut:
    dtype = torch.uint8 if len(shape) == 3 else torch.float32
    integers, floats = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64)
    return HeldOut(torch.empty(0, *shape, dtype=dtype), integers, floats, integers)


def choose_held_out(columns: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(N,) mask of the samples to hold out, a share of each class, and the keys drawn for all samples."""
    keys = torch.rand(len(columns), dtype=torch.float64, generator=generator)
    sizes = columns.bincount()
    counts = (sizes * share).round().long()
    counts = torch.where(sizes >= ENOUGH, counts.clamp(min=1), counts).minimum(sizes - 1) * (share > 0)
    return ranks(columns, keys) < counts[columns], keys


def balanced_order(columns: Tensor, keys: Tensor) -> Tensor:
    """(N,) rows: the lowest key of each class, then the second of each, and so on."""
    return torch.from_numpy(np.lexsort((keys.numpy(), ranks(columns, keys).numpy())))


def ranks(columns: Tensor, keys: Tensor) -> Tensor:
    """(N,) the rank of each sample's key in its class."""
    order = np.lexsort((keys.numpy(), columns.numpy()))
    sizes = np.bincount(columns.numpy()) if len(columns) else np.empty(0, np.int64)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    found = np.empty(len(columns), np.int64)
    found[order] = np.arange(len(columns)) - starts
    return torch.from_numpy(found)
