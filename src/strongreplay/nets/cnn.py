"""A small convolutional net for 28 x 28 images: three 3 x 3 layers with batch norm and max-pooling.

It is our own, for streams where an MLP is too weak to compare methods and ResNet18 too slow on a CPU. With
width 16, one channel and 10 classes it has 24,058 parameters.
"""

from itertools import pairwise

from torch import Tensor, nn

from strongreplay.nets.classifier import Classifier
from strongreplay.nets.resnet import conv3x3, layout_for


class CNNBody(nn.Module):
    """Three layers and global average pooling."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.layout = layout_for(width)
        widths = [channels, width, 2 * width, 4 * width]
        halve = nn.MaxPool2d(2, ceil_mode=True)
        layers = [
            nn.Sequential(conv3x3(before, after), nn.BatchNorm2d(after), nn.ReLU(), halve)
            for before, after in pairwise(widths)
        ]
        self.layers = nn.Sequential(*layers)

    def forward(self, inputs: Tensor) -> Tensor:
        maps: Tensor = self.layers(inputs.contiguous(memory_format=self.layout))
        return maps.mean(dim=(2, 3))


def cnn(input_shape: tuple[int, ...], num_classes: int, width: int = 16) -> Classifier:
    net = Classifier(CNNBody(input_shape[0], width), 4 * width, num_classes)
    return net.to(memory_format=layout_for(width))  # type: ignore[call-overload, no-any-return]
