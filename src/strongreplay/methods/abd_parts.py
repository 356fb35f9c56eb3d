"""Parts of ABD: the generator of images, and the losses that invert a classifier."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

SMALLEST = 8  # pixels on a side of the generator's first maps, at most
TINY = 1e-8


class ImageGenerator(nn.Module):
    """From codes to images with mean 0 and variance 1 in each channel; maps are doubled twice or more."""

    def __init__(self, shape: tuple[int, ...], code_size: int, width: int) -> None:
        super().__init__()
        channels, *sides = shape
        doublings = 2
        while ceil(max(sides) / 2**doublings) > SMALLEST:
            doublings += 1
        sizes = [[ceil(side / 2**n) for side in sides] for n in range(doublings, -1, -1)]
        self.start = (width, *sizes[0])
        self.code = nn.Linear(code_size, int(torch.Size(self.start).numel()))
        layers: list[nn.Module] = [nn.BatchNorm2d(width)]
        for number, size in enumerate(sizes[1:], 1):
            after = width if number < doublings else width // 2
            layers += [
                nn.Upsample(size=tuple(size)),
                nn.Conv2d(width, after, 3, padding=1, bias=False),  # batch norm would undo one
                nn.BatchNorm2d(after, eps=0.8),
                nn.LeakyReLU(0.2),
            ]
        layers += [nn.Conv2d(width // 2, channels, 3, padding=1), nn.Tanh()]
        self.layers = nn.Sequential(*layers, nn.BatchNorm2d(channels, affine=False))

    def forward(self, codes: Tensor) -> Tensor:
        images: Tensor = self.layers(self.code(codes).unflatten(1, self.start))
        return images


def balance(logits: Tensor, among: Tensor) -> Tensor:
    """0 if the mean answer of a batch is uniform among the given classes, 1 if it is a single class."""
    mean = logits.softmax(1).mean(0)
    logs = mean.clamp(min=TINY).log()  # the slope of p ln p at exactly 0 is infinite
    return 1 + (mean * logs).sum() / among.sum().clamp(min=2).log()


def statistics_distance(maps: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Divergence of the batch's distribution from a layer's running one, mean over channels."""
    maps = maps.to(mean.dtype).transpose(0, 1).flatten(1)
    found, spread = maps.mean(1), maps.var(1, unbiased=False) + TINY
    known = variance + TINY
    logs = (spread / known).log() / 2
    return (logs - (1 - (known + (mean - found).square()) / spread) / 2).mean()


@contextmanager
def recorded_statistics(net: nn.Module) -> Iterator[list[Tensor]]:
    """Within the context, the distance of each batch-norm layer's input to its statistics is recorded."""
    distances: list[Tensor] = []

    def record(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer.running_mean, Tensor)
        assert isinstance(layer.running_var, Tensor)
        distances.append(statistics_distance(inputs[0], layer.running_mean, layer.running_var))

    norms = [layer for layer in net.modules() if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)]
    hooks = [layer.register_forward_pre_hook(record) for layer in norms]
    try:
        yield distances
    finally:
        for hook in hooks:
            hook.remove()


def roughness(images: Tensor) -> Tensor:
    """Mean squared difference of images to themselves blurred over 5 x 5 pixels."""
    steps = torch.arange(5, dtype=images.dtype, device=images.device)
    line = (-((steps - 2) / 2).square()).exp()
    kernel = line[:, None] * line
    maps = images.flatten(0, 1)[:, None]
    blurred = conv2d(pad(maps, (2, 2, 2, 2), mode="reflect"), (kernel / kernel.sum())[None, None])
    return (maps - blurred).square().mean()
