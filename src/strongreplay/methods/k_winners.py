"""k winners: a layer in which only the most active channels of each sample stay on.

A channel's score is the sum of its absolute values over the image, before the ReLU: a channel with large
negative values wins and is then zero. Ties at the threshold all lose, so fewer may stay on.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from strongreplay.errors import ConfigError
from strongreplay.nets import Classifier
from strongreplay.nets.resnet import ResNetBody


def num_channels(share: float, size: int) -> int:
    """The part of the channels, rounded down; 0.9 of 20 are 18 in spite of rounding errors."""
    return int(share * size + 1e-9)


class KWinners(nn.Module):
    """Keep the channels whose score is above the threshold, then ReLU; a share of 1 keeps all."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.before: Callable[[Tensor], Tensor] | None = None  # changes the maps first
        self.after: Callable[[Tensor], None] | None = None  # reads the result

    @property
    def needs_all_rows(self) -> bool:
        """Do not divide a batch among ranks while hooks read or change its maps."""
        return self.before is not None or self.after is not None

    def forward(self, maps: Tensor) -> Tensor:
        if self.before:
            maps = self.before(maps)
        size = maps.shape[1]
        losers = size - num_channels(self.share, size)
        if losers > 0:
            scores = maps.detach().abs()
            scores = scores.flatten(2).sum(2) if maps.dim() > 2 else scores
            won = scores > scores.kthvalue(losers, dim=1, keepdim=True).values
            maps = maps * won.to(maps.dtype).view(*won.shape, *[1] * (maps.dim() - 2))
        maps = maps.relu()
        if self.after:
            self.after(maps)
        return maps


def replace_relus(net: nn.Module, shares: tuple[float, ...]) -> tuple[Classifier, KWinners]:
    """Replace the ReLU layers by k winners, in place; returns the net with the last of them.

    The last stages have the last shares. In ResNet18 a stage has k winners within its blocks and at its end.
    """
    if isinstance(net, Classifier) and isinstance(net.body, ResNetBody):
        stages: list[Any] = list(net.body.stages)
        for stage, share in zip(stages, of_stages(shares, len(stages)), strict=True):
            for block in stage:
                block.inner, block.outer = KWinners(share), nn.Identity()
            stage.append(KWinners(share))
        return net, stages[-1][-1]
    places = [
        (parent, name)
        for parent in net.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ReLU)
    ]
    if not isinstance(net, Classifier) or not places:
        raise ConfigError(
            f"scommer replaces the ReLU layers of resnet18, cnn or mlp; {type(net).__name__} is none of them"
        )
    layers = [KWinners(share) for share in of_stages(shares, len(places))]
    for (parent, name), layer in zip(places, layers, strict=True):
        setattr(parent, name, layer)
    return net, layers[-1]


def of_stages(shares: tuple[float, ...], count: int) -> tuple[float, ...]:
    return (*[shares[0]] * count, *shares)[-count:]
