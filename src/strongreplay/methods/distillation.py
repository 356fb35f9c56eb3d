"""Distillation of softened outputs within some columns of a head."""

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from strongreplay.protocol import Task

LOWEST = torch.finfo(torch.float32).min / 2


def only(columns: Tensor) -> Tensor:
    """A mask to add to logits: zero in the given columns, elsewhere so low that a softmax is zero.

    It is finite, so that 0 * log-probability is 0, not NaN. Adding it takes half the time of a masked fill.
    """
    return torch.zeros_like(columns, dtype=torch.float32).masked_fill_(~columns, LOWEST)


def register_masks(method: nn.Module, num_classes: int, *names: str) -> None:
    """Buffers: `old`, (C,) classes of finished tasks, and the named masks, (C,) each, to add to logits.

    Before the first task no class is old, and the other masks leave every class in.
    """
    none = torch.zeros(num_classes, dtype=torch.bool)
    method.register_buffer("old", none)
    for name in names:
        method.register_buffer(name, only(none if name == "only_old" else ~none))


def seen_classes(old: Tensor, task: Task) -> Tensor:
    """(C,) the classes of finished tasks and those of this task."""
    seen = old.clone()
    seen[list(task.classes)] = True
    return seen


def soften(logits: Tensor, mask: Tensor, temperature: float) -> Tensor:
    return torch.add(mask, logits, alpha=1 / temperature).softmax(1)


def distill(logits: Tensor, wanted: Tensor, mask: Tensor, temperature: float, weight: float = 1) -> Tensor:
    """Weighted cross-entropy of softened outputs with the targets, averaged over the batch."""
    # One dot product: PyTorch's cross-entropy with probabilities takes 1.5 times as long.
    log_probabilities = log_softmax(torch.add(mask, logits, alpha=1 / temperature), 1)
    return torch.dot(log_probabilities.view(-1), wanted.view(-1)) * (-weight / len(wanted))


def divergence(logits: Tensor, wanted: Tensor, mask: Tensor, temperature: float) -> Tensor:
    """(B,) Kullback-Leibler divergence of softened outputs from the targets, where 0 * log 0 is 0."""
    log_probabilities = log_softmax(torch.add(mask, logits, alpha=1 / temperature), 1)
    return (torch.xlogy(wanted, wanted) - wanted * log_probabilities).sum(1)
