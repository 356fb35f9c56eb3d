"""Classifier: a body that turns inputs into features, and a linear head that turns features into logits."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Classifier(nn.Module):
    """Body and head; in the paper's protocol the head has all classes from the start."""

    def __init__(self, body: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(num_features, num_classes)

    def features(self, inputs: Tensor) -> Tensor:
        """(B, D): what the head sees."""
        features: Tensor = self.body(inputs)
        return features

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(inputs))
        return logits


@contextmanager
def seeded_init(generator: torch.Generator) -> Iterator[None]:
    """PyTorch's default initialisers draw from `generator`; the global generator is left as it was."""
    before = torch.default_generator.get_state()
    torch.default_generator.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(before)
