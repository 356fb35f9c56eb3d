"""Images as they are read, one by one: all of them, or what a function makes of each block of them."""

from collections.abc import Callable

import torch
from torch import Tensor

from strongreplay.data import images
from strongreplay.data.archives import Bytes

Transform = Callable[[Tensor], Tensor]  # (B, C, H, W) uint8 images -> a row each, such as features
BLOCK_SIZE = 32  # images; larger ones need more memory and are not faster on a CPU


class Rows:
    """Collects `count` images; with a `transform`, only one block of pixels is in memory at a time.

    A transform with a method `expect` is told the count.
    """

    def __init__(self, source: object, count: int, transform: Transform | None = None) -> None:
        self.source, self.count, self.transform = source, count, transform
        if expect := getattr(transform, "expect", None):
            expect(count)
        self.pixels: Bytes | None = None
        self.num_filled = 0
        self.done: list[Tensor] = []

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of one image; none before the first."""
        return None if self.pixels is None else self.pixels.shape[1:]

    def add(self, pixels: Bytes) -> None:
        if self.pixels is None:
            size = self.count if self.transform is None else min(self.count, BLOCK_SIZE)
            self.pixels = images.allocate(self.source, (size, *pixels.shape))
        self.pixels[self.num_filled] = pixels
        self.num_filled += 1
        if self.transform and self.num_filled == len(self.pixels):
            self._finish_block()

    def tensor(self) -> Tensor:
        assert self.pixels is not None
        if self.transform is None:
            return torch.from_numpy(self.pixels[: self.num_filled])
        self._finish_block()
        return torch.cat(self.done)

    def _finish_block(self) -> None:
        if self.num_filled:
            assert self.pixels is not None
            assert self.transform is not None
            self.done.append(self.transform(torch.from_numpy(self.pixels[: self.num_filled])))
        self.num_filled = 0
