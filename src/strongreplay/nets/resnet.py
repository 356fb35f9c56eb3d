"""The ResNet18 of the continual-learning papers: 3 x 3 stem with stride 1, no max-pool, global average pool.

He et al., "Deep Residual Learning for Image Recognition", 2016. Width 64 is the published size (11,173,962
parameters with 10 classes); width 20 is the usual reduced one for CPUs.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from strongreplay.nets.classifier import Classifier

# With fewer channels, PyTorch 2.13 writes out of bounds in the backward pass of a 1 x 1 convolution with
# stride (AVX-512, both memory layouts: 4 to 8 channels at 64 x 64 pixels, 8 to 14 at 128 x 128).
FEWEST_STRIDED = 16


def conv3x3(num_in: int, num_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(num_in, num_out, 3, stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut, which is projected if the shape changes."""

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv3x3(num_in, num_out, stride), nn.BatchNorm2d(num_out)
        self.conv2, self.norm2 = conv3x3(num_out, num_out), nn.BatchNorm2d(num_out)
        self.inner: nn.Module = nn.ReLU()  # a method may replace both
        self.outer: nn.Module = nn.ReLU()
        self.shortcut, self.pixel_step = nn.Sequential(), 1
        if stride != 1 or num_in != num_out:
            # With few channels the pixels are chosen first, and the convolution has no stride.
            self.pixel_step, stride = (1, stride) if num_in >= FEWEST_STRIDED else (stride, 1)
            conv = nn.Conv2d(num_in, num_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(num_out))

    def forward(self, maps: Tensor) -> Tensor:
        inner = self.inner(self.norm1(self.conv1(maps)))
        if self.pixel_step > 1:
            maps = maps[:, :, :: self.pixel_step, :: self.pixel_step]
        summed: Tensor = self.outer(self.norm2(self.conv2(inner)) + self.shortcut(maps))
        return summed


def layout_for(width: int) -> torch.memory_format:
    """Channels last is up to 1.4 times faster on a CPU, but not with fewer than 8 channels."""
    return torch.channels_last if width >= 8 else torch.contiguous_format


class ResNetBody(nn.Module):
    """Stem, four stages of two blocks, and global average pooling, each callable by itself."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.layout = layout_for(width)
        self.stem, self.norm = conv3x3(channels, width), nn.BatchNorm2d(width)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(BasicBlock(before, after, stride), BasicBlock(after, after, 1))
                for before, after, stride in zip(widths, widths[1:], (1, 2, 2, 2), strict=False)
            )
        )

    def begin(self, inputs: Tensor) -> Tensor:
        """The maps that the first of the stages takes."""
        return F.relu(self.norm(self.stem(inputs.contiguous(memory_format=self.layout))))

    def pool(self, maps: Tensor) -> Tensor:
        """(B, D) features, from the maps of the last stage."""
        return maps.mean(dim=(2, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.pool(self.stages(self.begin(inputs)))


def resnet18(input_shape: tuple[int, ...], num_classes: int, width: int = 64) -> Classifier:
    net = Classifier(ResNetBody(input_shape[0], width), 8 * width, num_classes)
    return net.to(memory_format=layout_for(width))  # type: ignore[call-overload, no-any-return]
