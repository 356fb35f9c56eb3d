"""NETS: every net by name; a new net is one file and one row."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from strongreplay.errors import unknown
from strongreplay.nets.classifier import Classifier, GrowingHead, seeded_init
from strongreplay.nets.cnn import cnn
from strongreplay.nets.lvt import lvt
from strongreplay.nets.mlp import mlp
from strongreplay.nets.resnet import resnet18

__all__ = [
    "NETS", "Classifier", "GrowingHead", "NetRow", "build_net", "cnn", "lvt", "mlp", "resnet18",
    "seeded_init",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class NetRow:
    """How a net is built, the options it has, and what a list shows of it."""

    build: Callable[..., Classifier]
    width: int  # the published one
    about: str
    options: tuple[str, ...] = ("width",)


NETS: dict[str, NetRow] = {
    "mlp": NetRow(mlp, 100, "two hidden layers of 100 ReLU units, for digits and MNIST", ("width", "bias")),
    "cnn": NetRow(cnn, 16, "three 3 x 3 layers with batch norm, for MNIST-sized images on a CPU"),
    "resnet18": NetRow(resnet18, 64, "ResNet18 with a 3 x 3 stem and no max-pool; width 20 suits a CPU"),
    "lvt": NetRow(lvt, 64, "convolutional stem, attention with external keys, two heads; a reconstruction"),
}


def build_net(
    name: str, input_shape: tuple[int, ...], num_classes: int, generator: torch.Generator, **options: object
) -> Classifier:
    """The named net with initial weights drawn from `generator`."""
    if name not in NETS:
        raise unknown("net", name, NETS, "See: ser list nets")
    with seeded_init(generator):
        return NETS[name].build(input_shape, num_classes, **options)
