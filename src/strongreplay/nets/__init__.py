"""NETS: the built-in nets by name; a new net is one file and one row. `make_net` also builds users' nets."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from strongreplay.errors import ConfigError, unknown
from strongreplay.extensions import explain, installed, is_path, load_object
from strongreplay.nets.classifier import Classifier, GrowingHead, seeded_init
from strongreplay.nets.cnn import cnn
from strongreplay.nets.features import FeatureNet, find_head, name_head, with_features
from strongreplay.nets.linear import linear
from strongreplay.nets.lvt import lvt
from strongreplay.nets.mlp import mlp
from strongreplay.nets.resnet import resnet18
from strongreplay.nets.vit import vit

__all__ = [
    "NETS", "Classifier", "FeatureNet", "GrowingHead", "NetRow", "build_net", "cnn", "find_head", "linear",
    "lvt", "make_net", "mlp", "net_row", "resnet18", "seeded_init", "vit", "with_features",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class NetRow:
    """How a net is built, its options, and its description in lists."""

    build: Callable[..., nn.Module]
    width: int | None  # the published width
    about: str
    options: tuple[str, ...] = ("width",)
    source_hash: str | None = None  # hash of the source, for code outside the package


NETS: dict[str, NetRow] = {
    "mlp": NetRow(mlp, 100, "two hidden layers of 100 ReLU units, for digits and MNIST", ("width", "bias")),
    "cnn": NetRow(cnn, 16, "three 3 x 3 layers with batch norm, for MNIST-sized images on a CPU"),
    "resnet18": NetRow(resnet18, 64, "ResNet18 with a 3 x 3 stem and no max-pool; width 20 suits a CPU"),
    "linear": NetRow(linear, None, "a linear head alone, for features of a frozen backbone", ()),
    "lvt": NetRow(lvt, 64, "convolutional stem, attention with external keys, two heads; a reconstruction"),
    "vit": NetRow(
        vit,
        32,
        "Vision Transformer by timm's names; pretrained weights from a file, or small and random",
        ("width", "depth", "heads", "patch", "size", "side", "weights", "weights_hash"),
    ),
}


def build_net(
    name: str, input_shape: tuple[int, ...], num_classes: int, generator: torch.Generator, **options: object
) -> Classifier:
    """The named net with initial weights drawn from `generator`."""
    if name not in NETS:
        raise unknown("net", name, NETS, "See: ser list nets")
    with seeded_init(generator):
        return cast(Classifier, NETS[name].build(input_shape, num_classes, **options))


def net_row(name: str, source_hash: str | None = None) -> NetRow:
    """The row of a built-in net, of `mine.py:make_net`, or of a net from an installed package.

    If `source_hash` is given, the source of a user's net must have that hash.
    """
    if name in NETS:
        return NETS[name]
    if not is_path(name) and name not in (offered := installed("net")):
        raise unknown("net", name, [*NETS, *offered], "See: ser list nets")
    build, _, found_hash = load_object(name, "net", source_hash)
    if not callable(build) or len(parameters := list(inspect.signature(build).parameters)) < 2:
        raise ConfigError(
            f"{name} must be a function of (input_shape, num_classes) that returns an nn.Module"
        )
    about = (inspect.getdoc(build) or "").split("\n")[0]
    return NetRow(build, None, about, (*parameters[2:], "head"), found_hash)


def make_net(
    name: str, input_shape: tuple[int, ...], num_classes: int, generator: torch.Generator,
    source_hash: str | None = None, head: str | None = None, **options: Any,
) -> nn.Module:  # fmt: skip
    """Build a built-in or a user's net; `head` names its last linear layer, if it cannot be found."""
    if name in NETS:
        return build_net(name, input_shape, num_classes, generator, **options)
    row = net_row(name, source_hash)
    try:
        with seeded_init(generator):
            net = row.build(input_shape, num_classes, **options)
    except Exception as error:
        raise ConfigError(f"net {name} cannot be built: {explain(error)}") from error
    if not isinstance(net, nn.Module):
        raise ConfigError(f"net {name} must return an nn.Module, got {type(net).__name__}")
    return name_head(net, head) if head else net
