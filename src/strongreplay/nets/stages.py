"""Stages of the built-in nets, between which a method may add lateral connections."""

from itertools import pairwise
from typing import NamedTuple

from torch import nn

from strongreplay.errors import ConfigError
from strongreplay.nets.classifier import Classifier
from strongreplay.nets.cnn import CNNBody
from strongreplay.nets.resnet import ResNetBody


class StagePair(NamedTuple):
    """The module that ends a stage, and the one of the next stage to whose output a method adds its own."""

    source: nn.Module
    target: nn.Module
    width: int  # of the source's output
    next_width: int  # of the target's output
    is_map: bool  # whether outputs are (B, C, H, W) maps, halved from stage to stage


def stage_pairs(net: nn.Module, method: str) -> list[StagePair]:
    """Each stage of a built-in net with the next one, from the first to the last."""
    body = net.body if isinstance(net, Classifier) else None
    if isinstance(body, ResNetBody | CNNBody):
        stages: list[nn.Module] = list(body.stages if isinstance(body, ResNetBody) else body.layers)
        widths = [last_width(stage) for stage in stages]
        pairs = zip(pairwise(stages), pairwise(widths), strict=True)
        return [StagePair(*modules, *sizes, True) for modules, sizes in pairs]
    if isinstance(body, nn.Sequential):
        layers = [(number, layer) for number, layer in enumerate(body) if isinstance(layer, nn.Linear)]
        # The activation that follows a layer ends its stage.
        return [
            StagePair(body[place + 1], after, layer.out_features, after.out_features, False)
            for (place, layer), (_, after) in pairwise(layers)
        ]
    raise ConfigError(
        f"{method} needs a net with known stages: mlp, cnn or resnet18 (--set net.name=...), "
        f"got {type(net).__name__}"
    )


def last_width(stage: nn.Module) -> int:
    """The channels of a stage's output: those of its last batch norm outside of a shortcut."""
    norms = [m for name, m in stage.named_modules() if isinstance(m, nn.BatchNorm2d) and "short" not in name]
    return norms[-1].num_features
