"""A base of methods with a generator of images, which is made when the shape of an image is known."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from strongreplay.methods.base import Method, SavedGenerator
from strongreplay.nets import seeded_init


class GeneratesImages(Method):
    draws: SavedGenerator
    shape: Tensor

    def register_shape(self) -> None:
        self.register_buffer("shape", torch.zeros(3, dtype=torch.int64))  # of an image; 0: no generator yet

    def make_generator(self, shape: tuple[int, ...]) -> None:
        """Make the generator; its weights are drawn from `draws`."""
        raise NotImplementedError

    def ensure_generator(self, shape: Sequence[int]) -> None:
        """Make the generator, unless there is one."""
        if not self.shape.any():
            self.shape.copy_(torch.tensor(shape))
            with seeded_init(self.draws.generator):
                self.make_generator(tuple(shape))

    def draw_codes(self, count: int, size: int) -> Tensor:
        """(N, size) inputs of the generator."""
        return torch.randn(count, size, generator=self.draws.generator).to(self.shape.device)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Submodules are loaded after this call, so the generator must exist if the state has one.
        shape = state_dict.get(prefix + "shape")
        if shape is not None and shape.any():
            self.ensure_generator(shape.tolist())
        super()._load_from_state_dict(state_dict, prefix, *args)
