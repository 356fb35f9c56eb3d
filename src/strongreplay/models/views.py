"""The views of a kept model: samples are normalised and, during training, augmented."""

from collections.abc import Sequence

import torch
from torch import Tensor

from strongreplay.data.views import check_moments, crop_flip, moments, normalise_as, scale
from strongreplay.models.settings import ModelSettings
from strongreplay.protocol import View


def plain_view(
    settings: ModelSettings, shape: tuple[int, ...], mean: Sequence[float], std: Sequence[float]
) -> View:
    """A view without augmentation."""
    if not settings.learner.normalise:
        return scale
    return normalise_as(shape, mean, std)


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
    check_moments("learner", mean, std, tuple(shape))
    return list(mean), list(std)
