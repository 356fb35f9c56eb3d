"""A linear head alone: for features of a frozen backbone, or any other vectors."""

from torch import nn

from strongreplay.nets.classifier import Classifier


def linear(input_shape: tuple[int, ...], num_classes: int) -> Classifier:
    num_features = 1
    for size in input_shape:
        num_features *= size
    return Classifier(nn.Flatten(), num_features, num_classes)
