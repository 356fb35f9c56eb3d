"""EfficientNet-Lite0: a small net for photos, trained on ImageNet, whose features are used frozen.

Tan and Le, "EfficientNet", 2019, and its Lite variant of 2020: no squeeze-and-excitation, ReLU6 instead of
swish, stem and last layer of fixed width. Parameters have the names of the published file.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu6

# repeats, kernel, stride of the first, expansion, channels out
STAGES = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192), (1, 3, 1, 6, 320),
)  # fmt: skip
STEM, NUM_FEATURES = 32, 1280


class SameConv(nn.Conv2d):
    """A convolution whose output has ceil(side / stride) pixels; odd padding goes right and below."""

    def __init__(self, num_in: int, num_out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(num_in, num_out, kernel, stride, groups=groups, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride == 1:
            return nn.functional.conv2d(inputs, self.weight, None, 1, kernel // 2, 1, self.groups)
        sides = []
        for side in (inputs.shape[-1], inputs.shape[-2]):  # pad wants the width first
            needed = max((-(-side // stride) - 1) * stride + kernel - side, 0)
            sides += [needed // 2, needed - needed // 2]
        return super().forward(pad(inputs, sides))


def batch_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class InvertedBlock(nn.Module):
    """Widen, convolve each channel by itself, project; a shortcut if the shape does not change."""

    def __init__(self, num_in: int, num_out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = num_in * expansion
        self.widens, self.adds = expansion > 1, stride == 1 and num_in == num_out
        if self.widens:
            self._expand_conv, self._bn0 = SameConv(num_in, wide, 1), batch_norm(wide)
        self._depthwise_conv, self._bn1 = SameConv(wide, wide, kernel, stride, wide), batch_norm(wide)
        self._project_conv, self._bn2 = SameConv(wide, num_out, 1), batch_norm(num_out)

    def forward(self, inputs: Tensor) -> Tensor:
        maps = relu6(self._bn0(self._expand_conv(inputs))) if self.widens else inputs
        maps = relu6(self._bn1(self._depthwise_conv(maps)))
        maps = self._bn2(self._project_conv(maps))
        features: Tensor = maps + inputs if self.adds else maps
        return features


class EfficientNetLite0(nn.Module):
    """From normalised photos to (B, 1280) features; with `num_classes`, to logits as published."""

    def __init__(self, num_classes: int | None = None) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = SameConv(3, STEM, 3, 2), batch_norm(STEM)
        blocks, channels = [], STEM
        for repeats, kernel, stride, expansion, after in STAGES:
            for number in range(repeats):
                blocks.append(InvertedBlock(channels, after, kernel, 1 if number else stride, expansion))
                channels = after
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = SameConv(channels, NUM_FEATURES, 1), batch_norm(NUM_FEATURES)
        self._fc = nn.Linear(NUM_FEATURES, num_classes) if num_classes else None

    def forward(self, inputs: Tensor) -> Tensor:
        maps = inputs.contiguous(memory_format=torch.channels_last)
        maps = relu6(self._bn0(self._conv_stem(maps)))
        for block in self._blocks:
            maps = block(maps)
        features = relu6(self._bn1(self._conv_head(maps))).mean(dim=(2, 3))
        return features if self._fc is None else self._fc(features)
