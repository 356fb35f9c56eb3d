"""The MNIST net of the GEM, DER and SER papers: two hidden layers of 100 ReLU units, 89,610 parameters.

Weights are Xavier-uniform. Biases start at zero; `bias="default"` keeps PyTorch's default biases, as the SER
reference code does.
"""

from math import prod
from typing import Literal

from torch import nn

from strongreplay.nets.classifier import Classifier


def mlp(
    input_shape: tuple[int, ...],
    num_classes: int,
    width: int = 100,
    bias: Literal["zero", "default"] = "zero",
) -> Classifier:
    body = nn.Sequential(
        nn.Flatten(), nn.Linear(prod(input_shape), width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
    )
    net = Classifier(body, width, num_classes)
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if bias == "zero":
                nn.init.zeros_(layer.bias)
    return net
