"""Unlabelled images from elsewhere, which some methods need beside the stream."""

import torch
from torch import Tensor

from strongreplay.errors import ConfigError
from strongreplay.methods.base import Problem
from strongreplay.protocol import Split
from strongreplay.sampling import draw_distinct


def needed_images(method: str, problem: Problem) -> Tensor:
    """The auxiliary images of the problem, or an error that says how to give some."""
    if problem.auxiliary is None or not len(problem.auxiliary):
        raise ConfigError(
            f"{method} needs unlabelled images beside the stream: give a dataset or your own images with "
            "--set data.auxiliary=cifar100 or --set data.auxiliary=folder:PHOTOS"
        )
    return problem.auxiliary


def unlabelled(images: Tensor) -> Split:
    """The images with the label -1, which no loss accepts."""
    return Split(images, torch.full((len(images),), -1))


def choose_rows(likely: Tensor, size: int, part: float, generator: torch.Generator) -> Tensor:
    """At most `size` distinct rows of (N, K) scores: a part of them the best of each column, equally many.

    A row that is among the best of several columns is taken once. The others are drawn at random.
    """
    count = min(int(part * size / max(likely.shape[1], 1)), len(likely))
    best = likely.topk(count, 0).indices.flatten().unique()
    others = torch.ones(len(likely), dtype=torch.bool).index_fill(0, best, False).nonzero().flatten()
    drawn = draw_distinct(len(others), min(size - len(best), len(others)), generator)
    return torch.cat([best, others[drawn]])
