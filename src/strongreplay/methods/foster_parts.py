"""Parts of FOSTER: its nets, the weights of classes, and the rate of its compression."""

from math import cos, pi
from typing import Any

import torch
from torch import Tensor, nn

from strongreplay.methods.base import OldNet
from strongreplay.nets import Classifier


class FosterNet(nn.Module):
    """A classifier and, while it is boosted, a head on the features of the old and the new extractor."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.live = classifier
        self.wide: nn.Linear | None = None

    def widen(self) -> nn.Linear:
        head = self.live.head
        size = (2 * head.in_features, head.out_features)
        empty = nn.Linear(*size, device="meta", dtype=head.weight.dtype)  # draws nothing
        self.wide = empty.to_empty(device=head.weight.device).train(self.training)
        return self.wide.requires_grad_(head.weight.requires_grad)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.live(inputs)
        return logits

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Submodules are loaded after this call, so the head must exist if the state has one.
        if prefix + "wide.weight" not in state_dict:
            self.wide = None
        elif self.wide is None:
            self.widen()
        super()._load_from_state_dict(state_dict, prefix, *args)


class BoostedNet(nn.Module):
    """The old net and the boosted one, both frozen; before the first boosting, the live net."""

    def __init__(self, live: FosterNet) -> None:
        super().__init__()
        self._live, self.old, self.new = (live,), OldNet(live.live), OldNet(live)

    def old_features(self, inputs: Tensor) -> Tensor:
        old: Any = self.old.copy
        with torch.no_grad():
            features: Tensor = old.features(inputs)
        return features

    @torch.no_grad()
    def forward(self, inputs: Tensor) -> Tensor:
        new: Any = self.new.copy
        if new is None:
            return self._live[0](inputs)  # type: ignore[no-any-return]
        features = torch.cat([self.old_features(inputs), new.live.features(inputs)], 1)
        logits: Tensor = new.wide(features)
        return logits


def class_weights(counts: Tensor, beta: float) -> Tensor:
    """Weights of mean 1, larger for classes of which there are fewer samples."""
    numbers = (1 - beta) / (1 - beta ** counts.clamp(min=1))
    return numbers / numbers.mean()


def reweighted(probabilities: Tensor, factors: Tensor) -> Tensor:
    weighted = probabilities * factors
    return weighted / weighted.sum(1, keepdim=True)


def cosine_rate(lr: float, epochs: int, epoch: int, part: float) -> float:
    """Half a cosine wave from `lr` to zero."""
    return lr * (1 + cos(pi * epoch / epochs)) / 2
