"""Several processes that make a run together, started once for many questions."""

import multiprocessing
import os
import traceback
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strongreplay.training.parallel import Ranks, join_file

Work = Callable[[Ranks, Path], object]


def in_ranks(size: int, folder: Path, work: Work) -> list[int | None]:
    """Call `work(ranks, folder)` in so many processes with one thread each; returns their exit codes."""
    context = multiprocessing.get_context("spawn")
    arguments = [(work, rank, size, folder) for rank in range(size)]
    processes = [context.Process(target=begin, args=args, daemon=True) for args in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    return [process.exitcode for process in processes]


def begin(work: Work, rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    code = 1
    try:
        ranks, _ = join_file(folder / f"meeting-{size}", rank, size, "cpu")
        work(ranks, folder)
        ranks.wait_for_all()
        code = 0
    except BaseException:
        traceback.print_exc()
    # As ser does: where another rank was lost, threads of gloo may abort Python's ordinary shutdown.
    os._exit(code)


def save(folder: Path, name: str, ranks: Ranks, found: Any) -> None:
    torch.save(found, folder / f"{name}-{ranks.rank}.pt")


def load(folder: Path, name: str, rank: int) -> Any:
    return torch.load(folder / f"{name}-{rank}.pt", weights_only=False)


def distance(alone: Any, found: Any) -> float:
    """The largest difference of numbers, relative to those above 1; infinite if anything else differs."""
    if isinstance(alone, dict):
        return (
            distance(list(alone.values()), [found[key] for key in alone])
            if alone.keys() == found.keys()
            else inf
        )
    if isinstance(alone, list | tuple) and len(alone) == len(found):
        return max((distance(*pair) for pair in zip(alone, found, strict=True)), default=0.0)
    if isinstance(alone, float):
        return float(abs(alone - found) / max(1.0, abs(alone)))
    if isinstance(alone, Tensor) and alone.is_floating_point() and alone.shape == found.shape:
        apart = (alone - found).abs() / alone.abs().clamp(min=1)
        return float(apart.nan_to_num(0.0).max()) if alone.numel() else 0.0
    same = torch.equal(alone, found) if isinstance(alone, Tensor) else alone == found
    return 0.0 if same else inf
