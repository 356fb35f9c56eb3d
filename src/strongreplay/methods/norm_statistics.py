"""Batch-norm statistics that stay as they are while a net in training mode uses those of its batches."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def held_statistics(net: nn.Module, held: bool = True) -> Iterator[None]:
    """Inside, forward passes in training mode use batch statistics and change no running ones."""
    norms = [m for m in net.modules() if isinstance(m, _BatchNorm) and m.track_running_stats] if held else []
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
