"""Auxiliary images: unlabelled ones from another dataset or a user's own data, in the shape of a stream's."""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from strongreplay.data import datasets
from strongreplay.data.user_splits import is_user_data, open_user_splits
from strongreplay.errors import ConfigError, unknown


def check_auxiliary(name: str) -> None:
    """Raise an error unless the name is that of a dataset or of own data."""
    if not is_user_data(name) and name not in datasets.DATASETS:
        raise unknown("auxiliary data", name, datasets.DATASETS, "Or your own: folder:PHOTOS")


def read_auxiliary(
    name: str, shape: tuple[int, ...], folder: Path | None, progress: datasets.OnProgress | None = None
) -> Tensor:
    """(N, C, H, W) uint8, the training images of a dataset or of a user's data; labels are dropped."""
    check_auxiliary(name)
    if len(shape) != 3:
        raise ConfigError(f"data.auxiliary gives images, but the samples of this stream have shape {shape}")
    place = folder or datasets.default_folder()
    if is_user_data(name):
        images = open_user_splits(name, datasets.default_folder(), shape[-1], progress=progress).train.inputs
    else:
        images = datasets.load(name, place, progress)[0].inputs
    if images.dim() != 4 or images.dtype != torch.uint8:
        raise ConfigError(f"data.auxiliary={name} must be images, got {tuple(images.shape)} {images.dtype}")
    return fit(images, shape)


def fit(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Images in the shape of the stream's: grey or colour, and scaled to its size."""
    channels, *sides = shape
    if images.shape[1:] == shape:
        return images
    parts = []
    for part in images.split(1000):
        maps = part.float()
        maps = maps.mean(1, keepdim=True) if channels == 1 else maps.expand(-1, channels, -1, -1)
        maps = interpolate(maps, tuple(sides), mode="bilinear", antialias=True, align_corners=False)
        parts.append(maps.round_().clamp_(0, 255).to(torch.uint8))
    return torch.cat(parts)
