"""The views of a kept model: samples are normalised and, during training, augmented."""

from collections.abc import Sequence

import torch
from torch import Tensor

from strongreplay.data.views import crop_flip, moments, normalise, scale, standardise
from strongreplay.errors import ConfigError
from strongreplay.models.settings import ModelSettings
from strongreplay.protocol import View


def plain_view(
    settings: ModelSettings, shape: tuple[int, ...], mean: Sequence[float], std: Sequence[float]
) -> View:
    """A view without augmentation."""
    if not settings.learner.normalise:
        return scale
    return normalise(mean, std) if len(shape) == 3 else standardise(mean, std)


def training_view(
    settings: ModelSettings,
    shape: tuple[int, ...],
    mean: Sequence[float],
    std: Sequence[float],
    generator: torch.Generator,
) -> View:
    """A view that augments images and then applies the plain view."""
    plain, augment = plain_view(settings, shape, mean, std), settings.learner.augment
    if augment == "auto":
        augment = "crop-flip" if shape[0] == 3 and len(shape) == 3 else "none"
    if augment == "none" or len(shape) == 1:
        return plain
    pad, flip = max(1, shape[-1] // 8), augment == "crop-flip"
    return lambda images: plain(crop_flip(images, pad, generator, flip))


def choose_moments(settings: ModelSettings, inputs: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation as set by the user, or else of the first samples."""
    mean, std, shape = settings.learner.mean, settings.learner.std, inputs.shape[1:]
    if mean is None or std is None:
        return moments(inputs)
    if not len(mean) == len(std) == shape[0]:
        what = "channel" if len(shape) == 3 else "feature"
        raise ConfigError(
            f"learner.mean and learner.std must have a value for each {what}, {shape[0]}, "
            f"got {len(mean)} and {len(std)}"
        )
    return list(mean), list(std)
