"""The data types that all modules share: splits, tasks, batches, problems; and named random generators."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from strongreplay.errors import DataError

View = Callable[[Tensor], Tensor]  # from a batch of stored images to float inputs; has its own generator
Terms = dict[str, Tensor]  # the named scalar terms of one step's loss, still on the device


@dataclass(frozen=True, slots=True)
class Split:
    """Samples as stored: (N, ...) uint8 images or float features, (N,) int64 labels and, optionally, ids."""

    inputs: Tensor
    labels: Tensor
    ids: Tensor | None = None  # (N,) int64, on the host: identifies a sample in a kept model

    def __repr__(self) -> str:
        return f"Split({len(self.labels):,} x {tuple(self.inputs.shape[1:])} {self.inputs.dtype})"

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise DataError(
                f"Split: {len(self.inputs)} inputs but {len(self.labels)} labels; give one label per input"
            )
        if self.ids is not None and len(self.ids) != len(self.labels):
            raise DataError(
                f"Split: {len(self.ids)} ids but {len(self.labels)} labels; give one id per input"
            )
        if self.labels.dtype != torch.int64 or self.labels.dim() != 1:
            raise DataError(
                f"Split: labels must be (N,) int64, got {tuple(self.labels.shape)} {self.labels.dtype}; "
                "use labels.flatten().long()"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> "Split":
        """A copy of the given rows."""
        return Split(self.inputs[rows], self.labels[rows], None if self.ids is None else self.ids[rows])

    def joined(self, other: "Split") -> "Split":
        """These samples followed by those of the other split, on this split's device."""
        other = other.to(self.inputs.device)
        ids = None if self.ids is None or other.ids is None else torch.cat([self.ids, other.ids])
        inputs, labels = torch.cat([self.inputs, other.inputs]), torch.cat([self.labels, other.labels])
        return Split(inputs, labels, ids)

    def to(self, device: torch.device) -> "Split":
        """Inputs and labels on a device; ids stay on the host, where memories look them up."""
        return Split(self.inputs.to(device), self.labels.to(device), self.ids)


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a stream: its classes, training data and test data."""

    index: int
    classes: tuple[int, ...]
    train: Split
    test: Split
    in_order: bool = False  # the training data is not shuffled

    def with_train(self, train: Split) -> "Task":
        return replace(self, train=train)

    def __repr__(self) -> str:
        classes = ", ".join(map(str, self.classes[:10])) + (", ..." if len(self.classes) > 10 else "")
        return f"Task({self.index}, classes [{classes}], train {self.train!r}, test {self.test!r})"


@dataclass(frozen=True, slots=True)
class Batch:
    """One training batch, before and after the view."""

    rows: Tensor  # (B,) row numbers in the task's train split
    images: Tensor  # (B, ...) as stored; what a memory keeps
    inputs: Tensor  # (B, ...) viewed; what a net sees
    labels: Tensor  # (B,)
    ids: Tensor | None = None  # (B,) int64, on the host: the ids of the samples, if the split has ids

    def __len__(self) -> int:
        return len(self.labels)


def derive_generator(seed: int, name: str) -> torch.Generator:
    """A random generator for one purpose, determined by the run's seed and the purpose's name.

    It is a CPU generator, so that a run makes the same draws on every device.
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


@dataclass(frozen=True, slots=True)
class Problem:
    """What a method knows about the stream before training."""

    num_classes: int
    num_tasks: int
    train_view: View  # also augments replayed images, with new random draws
    test_view: View  # the same without augmentation
    seed: int = 0
    auxiliary: Tensor | None = None  # (N, C, H, W) unlabelled images, for methods that need them

    def generator(self, name: str) -> torch.Generator:
        return derive_generator(self.seed, name)
