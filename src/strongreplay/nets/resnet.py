"""The ResNet18 of the continual-learning papers: 3 x 3 stem with stride 1, no max-pool, global average pool.

He et al., "Deep Residual Learning for Image Recognition", 2016. Width 64 is the published size (11,173,962
parameters with 10 classes); width 20 is the usual reduced one for CPUs.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from strongreplay.nets.classifier import Classifier


def conv3x3(num_in: int, num_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(num_in, num_out, 3, stride, padding=1, bias=False)


class Projection(nn.Conv2d):
    """A 1 x 1 convolution with stride, for shortcuts.

    With fewer than 16 channels, PyTorch 2.13 writes out of bounds in the backward pass of such a convolution
    (seen with AVX-512 in both memory layouts: 4 to 8 channels at 64 x 64 pixels, 8 to 14 at 128 x 128). In
    that case the input is subsampled first, and the convolution has no stride.
    """

    SAFE = 16

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__(num_in, num_out, 1, stride, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        if self.in_channels >= self.SAFE:
            return super().forward(input)
        return F.conv2d(input[:, :, :: self.stride[0], :: self.stride[1]], self.weight)


class Block(nn.Module):
    """Two 3 x 3 convolutions with a shortcut, which is projected if the shape changes."""

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv3x3(num_in, num_out, stride), nn.BatchNorm2d(num_out)
        self.conv2, self.norm2 = conv3x3(num_out, num_out), nn.BatchNorm2d(num_out)
        self.shortcut = nn.Sequential()
        if stride != 1 or num_in != num_out:
            self.shortcut = nn.Sequential(Projection(num_in, num_out, stride), nn.BatchNorm2d(num_out))

    def forward(self, maps: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(maps)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(maps))


def layout_for(width: int) -> torch.memory_format:
    """Channels last is up to 1.4 times faster on a CPU, but not with fewer than 8 channels."""
    return torch.channels_last if width >= 8 else torch.contiguous_format


class ResNetBody(nn.Module):
    """Stem, four stages of two blocks, and global average pooling."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.layout = layout_for(width)
        self.stem, self.norm = conv3x3(channels, width), nn.BatchNorm2d(width)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(Block(before, after, stride), Block(after, after, 1))
                for before, after, stride in zip(widths, widths[1:], (1, 2, 2, 2), strict=False)
            )
        )

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.contiguous(memory_format=self.layout)
        maps: Tensor = self.stages(F.relu(self.norm(self.stem(inputs))))
        return maps.mean(dim=(2, 3))


def resnet18(input_shape: tuple[int, ...], num_classes: int, width: int = 64) -> Classifier:
    net = Classifier(ResNetBody(input_shape[0], width), 8 * width, num_classes)
    return net.to(memory_format=layout_for(width))  # type: ignore[call-overload, no-any-return]
