"""Views: functions from batches of stored images (uint8) to inputs of a net (float).

Images are padded before normalisation, so that the border is black and not the mean colour.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from strongreplay.errors import ConfigError
from strongreplay.protocol import View


def scale(images: Tensor) -> Tensor:
    """Scale uint8 to float in [0, 1]; float features do not change."""
    return images if images.is_floating_point() else images.float().div_(255)


def normalise(mean: Sequence[float], std: Sequence[float]) -> View:
    """A view that scales to [0, 1] and standardises each channel."""
    means = torch.tensor(mean).view(-1, 1, 1)
    stds = torch.tensor(std).view(-1, 1, 1)

    def view(images: Tensor) -> Tensor:
        nonlocal means, stds
        if means.device != images.device:  # moves the constants once
            means, stds = means.to(images.device), stds.to(images.device)
        return scale(images).sub_(means).div_(stds)

    return view


def standardise(mean: Sequence[float], std: Sequence[float]) -> View:
    """A view of float features that standardises each of them."""
    means, stds = torch.tensor(mean), torch.tensor(std)

    def view(features: Tensor) -> Tensor:
        nonlocal means, stds
        if means.device != features.device:
            means, stds = means.to(features.device), stds.to(features.device)
        return (features - means).div_(stds)

    return view


def normalise_as(shape: tuple[int, ...], mean: Sequence[float], std: Sequence[float]) -> View:
    """The view that standardises channels of images, or features."""
    return normalise(mean, std) if len(shape) == 3 else standardise(mean, std)


def check_moments(section: str, mean: Sequence[float], std: Sequence[float], shape: tuple[int, ...]) -> None:
    """Refuse another number of means or deviations than the samples have channels or features."""
    if not len(mean) == len(std) == shape[0]:
        what = "channel" if len(shape) == 3 else "feature"
        raise ConfigError(
            f"{section}.mean and {section}.std must have a value for each {what}, {shape[0]}, "
            f"got {len(mean)} and {len(std)}"
        )


def moments(inputs: Tensor) -> tuple[list[float], list[float]]:
    """Mean and deviation of each channel of images in [0, 1], or of each feature; 1 if it is constant."""
    if inputs.dtype == torch.uint8:
        counts = torch.zeros(inputs.shape[1], 256, dtype=torch.float64)
        for images in inputs.split(1000):
            for channel, pixels in enumerate(images.unbind(1)):
                counts[channel] += torch.bincount(pixels.flatten(), minlength=256)
        values, shares = torch.arange(256) / 255, counts / counts.sum(1, keepdim=True)
        mean = (shares * values).sum(1)
        variance = (shares * (values - mean[:, None]).square()).sum(1)
    else:
        mean = inputs.mean(0, dtype=torch.float64)
        variance = (inputs - mean).square().mean(0)
    deviation = variance.sqrt()
    return mean.tolist(), deviation.where(deviation > 1e-6, 1.0).tolist()


def crop_flip(images: Tensor, pad: int, generator: torch.Generator, flip: bool = True) -> Tensor:
    """Zero-pad, crop each image at a random position, and flip it horizontally with probability 1/2."""
    count, channels, height, width = images.shape
    offsets = torch.randint(2 * pad + 1, (2, count, 1), generator=generator)
    mirrored = torch.randint(2, (count, 1), generator=generator) * flip
    columns = torch.arange(width)
    columns = torch.where(mirrored.bool(), width - 1 - columns, columns) + offsets[1]  # (B, W)
    rows = torch.arange(height) + offsets[0]  # (B, H)
    places = rows[:, :, None] * (width + 2 * pad) + columns[:, None, :]  # (B, H, W) in the padded image
    padded = torch.nn.functional.pad(images, (pad, pad, pad, pad)).flatten(2)
    places = places.to(images.device).view(count, 1, height * width).expand(-1, channels, -1)
    return padded.gather(2, places).view(images.shape)
