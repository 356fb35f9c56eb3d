"""Classifier: a body that maps inputs to features, and a linear head that maps features to logits."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

BLOCK = 64  # rows of a growing head in one matrix product


class Classifier(nn.Module):
    """Body and head; in the paper's protocol the head has all classes from the start."""

    is_average = False  # True: weights have no gradient, and yet statistics come from what the net sees
    body_rate = 1.0  # learning rate of the body, as a multiple of that of the head

    def __init__(self, body: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(num_features, num_classes)

    def features(self, inputs: Tensor) -> Tensor:
        """(B, D): the input of the head."""
        features: Tensor = self.body(inputs)
        return features

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(inputs))
        return logits

    def train(self, mode: bool = True) -> "Classifier":
        """Set the mode; normalisation layers of a frozen body keep their statistics."""
        super().train(mode)
        if self.is_average:
            return self
        weights = list(self.body.parameters())
        is_frozen = bool(weights) and not any(weight.requires_grad for weight in weights)
        for layer in self.body.modules():
            own = list(layer.parameters(recurse=False))
            if hasattr(layer, "running_mean") and (is_frozen or (own and not own[0].requires_grad)):
                layer.eval()
        return self

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Body and head for an optimiser; the rate of the body is `body_rate` times that of the head."""
        body = {"params": [*self.body.parameters()], "lr_scale": self.body_rate}
        return [{"params": [*self.head.parameters()]}, body]

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        """Add outputs: old rows keep their weights, new ones get PyTorch's default initialisation."""
        if not isinstance(self.head, GrowingHead):
            self.head = GrowingHead.of(self.head)
        if num_classes > self.head.out_features:
            self.head.grow(num_classes, generator)


class GrowingHead(nn.Linear):
    """A linear layer that can get more rows; the outputs of its old rows stay bit-identical.

    A product with a larger matrix rounds differently, so rows are multiplied in blocks of fixed size; the
    last block is padded with zeros.
    """

    @classmethod
    def of(cls, layer: nn.Linear) -> "GrowingHead":
        head = cls(layer.in_features, 1, device="meta")  # draws nothing
        head.weight, head.out_features = layer.weight, layer.out_features
        none = nn.Parameter(layer.weight.new_zeros(layer.out_features))  # learnt, as that of other heads
        head.bias = none if layer.bias is None else layer.bias
        return head

    def forward(self, features: Tensor) -> Tensor:
        missing = -self.out_features % BLOCK
        weights, biases = pad(self.weight, (0, 0, 0, missing)), pad(self.bias, (0, missing))
        blocks = zip(weights.split(BLOCK), biases.split(BLOCK), strict=True)
        logits = [linear(features, weight, bias) for weight, bias in blocks]
        return (torch.cat(logits, 1) if len(logits) > 1 else logits[0])[:, : self.out_features]

    def grow(self, num_rows: int, generator: torch.Generator) -> None:
        with seeded_init(generator):
            fresh = nn.Linear(self.in_features, num_rows - self.out_features)
        self.resize(num_rows)
        with torch.no_grad():
            for mine, new in ((self.weight, fresh.weight), (self.bias, fresh.bias)):
                mine[-len(new) :] = new

    def resize(self, num_rows: int) -> None:
        """Replace the parameters by ones with `num_rows` rows; the old rows come first, new ones are zero."""
        added = num_rows - self.out_features
        weight, bias = self.weight, self.bias
        self.weight = nn.Parameter(pad(weight.detach(), (0, 0, 0, added)), weight.requires_grad)
        self.bias = nn.Parameter(pad(bias.detach(), (0, added)), bias.requires_grad)
        self.out_features = num_rows

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The saved head may have another number of rows, for example in a frozen copy.
        if (saved := state_dict.get(prefix + "bias")) is not None and len(saved) != self.out_features:
            self.resize(len(saved))
        super()._load_from_state_dict(state_dict, prefix, *args)


@contextmanager
def seeded_init(generator: torch.Generator) -> Iterator[None]:
    """Make PyTorch's initialisers draw from `generator`; the global generator's state is restored after."""
    before = torch.default_generator.get_state()
    torch.default_generator.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(before)
