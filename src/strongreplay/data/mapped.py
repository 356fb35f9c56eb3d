"""Tensors that stay on disk: rows of a memory-mapped array, read when an operation needs their values.

A `MappedRows` behaves like a tensor. Selecting rows of it (`x[rows]`, `x[a:b]`, `x.split(n)`) only stores row
numbers; `index_select`, and every other operation, first reads the rows it needs into memory.
"""

import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

RESIDENT_LIMIT = 1 << 28  # bytes read through a mapping before its pages are released
FAULT_AROUND = 1 << 16  # bytes that Linux maps around a page if they are in its cache


class MappedFile:
    """An .npy file as a tensor; the system reads a page at its first access."""

    def __init__(self, path: Path, add_channel: bool = False) -> None:
        # Copy on write: PyTorch needs a writable array, and the file must not change.
        self.array = np.lib.format.open_memmap(path, mode="c")
        tensor = torch.from_numpy(self.array)
        self.tensor = tensor.unsqueeze(1) if add_channel else tensor
        self.num_read = 0

    def gather(self, rows: Tensor) -> Tensor:
        """A copy of the rows. Pages are released from time to time, so that they do not fill the memory."""
        gathered = self.tensor.index_select(0, rows.cpu())
        self.num_read += gathered.nbytes + len(rows) * FAULT_AROUND
        mapping = getattr(self.array, "_mmap", None)
        if self.num_read > RESIDENT_LIMIT and mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)
            self.num_read = 0
        return gathered


class MappedRows(torch.Tensor):
    """Rows of a mapped file, in any order."""

    file: MappedFile
    rows: Tensor

    @staticmethod
    def __new__(cls, file: MappedFile, rows: Tensor) -> "MappedRows":
        shape = (len(rows), *file.tensor.shape[1:])
        made: MappedRows = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=file.tensor.dtype)
        made.file, made.rows = file, rows
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"MappedRows(shape={tuple(self.shape)}, dtype={self.dtype})"

    def choose(self, rows: Tensor) -> "MappedRows":
        return MappedRows(self.file, self.rows[rows])

    def read(self) -> Tensor:
        return self.file.gather(self.rows)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func._schema.is_mutable and isinstance(args[0], MappedRows):
            raise RuntimeError(f"{func}: data on disk cannot be changed in place; clone the rows first")
        if (choose := CHOICES.get(func)) and isinstance(args[0], MappedRows) and not kwargs:
            found = choose(*args)
            if found is not NotImplemented:
                return found
        args, kwargs = tree_map_only(MappedRows, MappedRows.read, (args, kwargs or {}))
        return func(*args, **kwargs)


def map_file(path: Path, add_channel: bool = False) -> MappedRows:
    """All rows of an .npy file; grey images (N, H, W) get a channel."""
    file = MappedFile(path, add_channel)
    return MappedRows(file, torch.arange(len(file.tensor)))


def concatenate(parts: Sequence[Tensor]) -> Tensor:
    """torch.cat along the rows; parts of one mapped file stay on disk."""
    mapped = [part for part in parts if isinstance(part, MappedRows)]
    if len(mapped) == len(parts) and len({id(part.file) for part in mapped}) == 1:
        return MappedRows(mapped[0].file, torch.cat([part.rows for part in mapped]))
    return torch.cat(list(parts))


def _index(rows: MappedRows, indices: list[Tensor | None]) -> Any:
    first = indices[0]
    if len(indices) > 1 or first is None or first.dim() != 1:
        return NotImplemented
    return rows.choose(first.cpu())


def _slice(rows: MappedRows, dim: int = 0, start: Any = None, stop: Any = None, step: int = 1) -> Any:
    return MappedRows(rows.file, rows.rows[start:stop:step]) if dim == 0 else NotImplemented


def _split(rows: MappedRows, size: int, dim: int = 0) -> Any:
    return [MappedRows(rows.file, part) for part in rows.rows.split(size)] if dim == 0 else NotImplemented


def _select(rows: MappedRows, dim: int, index: int) -> Any:
    return rows.file.gather(rows.rows[index].view(1))[0] if dim == 0 else NotImplemented


def _index_select(rows: MappedRows, dim: int, index: Tensor) -> Any:
    return rows.file.gather(rows.rows[index.cpu()]) if dim == 0 else NotImplemented


def _alias(rows: MappedRows) -> MappedRows:
    return MappedRows(rows.file, rows.rows)


CHOICES: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.index.Tensor: _index,
    torch.ops.aten.slice.Tensor: _slice,
    torch.ops.aten.split.Tensor: _split,
    torch.ops.aten.select.int: _select,
    torch.ops.aten.index_select.default: _index_select,
    torch.ops.aten.detach.default: _alias,
    torch.ops.aten.alias.default: _alias,
}
