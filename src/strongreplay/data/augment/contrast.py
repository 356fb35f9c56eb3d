"""Augmentation for contrastive learning, in three matrix products per batch: crop, flip, blur and colour.

Random resized crop, flip and blur are linear and separable, so each image needs one small matrix for its rows
and one for its columns; on a CPU this takes about half the time of sampling a grid. Brightness, contrast,
saturation and hue are affine in colour: one 3 x 3 matrix and one offset per image. Grey is saturation zero.

Differences from torchvision, which the published code uses: values are clamped only at the end, so the four
colour changes commute and their order is not random; hue rotates the chroma plane of YIQ, not of HSV; crops
have fractional bounds; a blur near the border uses only pixels inside the image, without reflection.
"""

from math import log, pi

import torch
from torch import Tensor

TRIES = 10  # draws per crop; the first that fits is used, or the whole image if none fits
JITTER, GREY, BLUR = 0.8, 0.2, 0.5  # probabilities
STRENGTHS = torch.tensor([0.4, 0.4, 0.4, 0.1])  # for brightness, contrast, saturation and hue
LARGEST_SHARP = 32  # pixels per side; only larger images are blurred
SIGMAS = 0.1, 2.0

TO_YIQ = torch.tensor(
    [[0.299, 0.587, 0.114], [0.595716, -0.274453, -0.321263], [0.211456, -0.522591, 0.311135]]
)
LUMA = TO_YIQ[0]
TO_GREY = LUMA.expand(3, 3)
QUARTER_TURN = torch.linalg.solve(
    TO_YIQ, torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]]) @ TO_YIQ
)


def contrast_view(
    images: Tensor, generator: torch.Generator, crop_scale: float, flip: bool, jitter: bool
) -> Tensor:
    """(B, C, H, W) uint8 -> a new float batch in [0, 1]; every image has its own random draws."""
    count, channels, height, width = images.shape
    starts, extents = draw_crops(count, crop_scale, generator)
    if flip:
        mirrored = torch.rand(count, generator=generator) < 0.5
        starts[mirrored, 1] += extents[mirrored, 1]
        extents[mirrored, 1] *= -1
    starts, extents = starts.to(images.device), extents.to(images.device)
    rows, columns = (
        resampling(starts[:, side], extents[:, side], size) for side, size in enumerate((height, width))
    )
    if min(height, width) > LARGEST_SHARP:
        sigmas = draw_sigmas(count, generator).to(images.device)
        rows, columns = blurring(sigmas, height) @ rows, blurring(sigmas, width) @ columns
    pixels = images.float().div_(255) if images.dtype == torch.uint8 else images
    across = torch.bmm(pixels.reshape(count, channels * height, width), columns.mT)
    shown = rows[:, None] @ across.view(images.shape)
    return recolour(shown, *draw_colours(count, channels, generator)) if jitter else shown


def draw_crops(count: int, crop_scale: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Start and extent of each crop, both (B, 2), rows before columns, as fractions of the image's side."""
    tries = torch.rand(TRIES, count, 2, generator=generator)
    area = crop_scale + (1 - crop_scale) * tries[..., 0]
    ratio = torch.exp((2 * tries[..., 1] - 1) * log(4 / 3))  # width to height, 3/4 to 4/3
    extents = torch.stack([area / ratio, area * ratio], 2).sqrt()  # (TRIES, B, 2)
    fits = (extents <= 1).all(2)
    extents = extents[fits.to(torch.uint8).argmax(0), torch.arange(count)]
    extents[~fits.any(0)] = 1
    return torch.rand(count, 2, generator=generator) * (1 - extents), extents


def resampling(start: Tensor, extent: Tensor, size: int) -> Tensor:
    """(B, size, size): row i has the bilinear weights of the input pixels for output pixel i."""
    pixels = torch.arange(size, dtype=extent.dtype, device=extent.device)
    places = size * start[:, None] + (pixels + 0.5) * extent[:, None] - 0.5
    return (1 - (places.clamp_(0, size - 1)[:, :, None] - pixels).abs_()).clamp_(min=0)


def draw_sigmas(count: int, generator: torch.Generator) -> Tensor:
    """(B,) standard deviations in pixels; images that are not blurred get nearly zero."""
    low, high = SIGMAS
    sigmas = low + (high - low) * torch.rand(count, generator=generator)
    return torch.where(torch.rand(count, generator=generator) < BLUR, sigmas, 1e-3)


def blurring(sigmas: Tensor, size: int) -> Tensor:
    """(B, size, size): row i has the Gaussian weights of the pixels around pixel i."""
    pixels = torch.arange(size, dtype=sigmas.dtype, device=sigmas.device)
    distances = (pixels[:, None] - pixels).abs_()
    weights = torch.exp(-0.5 * (distances / sigmas[:, None, None]).square_())
    weights.masked_fill_(distances > size // 20, 0)
    return weights / weights.sum(2, keepdim=True)


def draw_colours(count: int, channels: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(B, C, C) colour matrices, and (B,) factors of the image's mean grey value, which is added."""
    chances = torch.rand(2, count, generator=generator)
    changes = (2 * torch.rand(count, 4, generator=generator) - 1) * STRENGTHS
    brightness, contrast, saturation, hue = (changes * (chances[0] < JITTER)[:, None]).t()
    gain, lift = (1 + brightness) * (1 + contrast), -(1 + brightness) * contrast
    if channels != 3:  # there is no colour to change
        return gain[:, None, None] * torch.eye(channels), lift
    chroma = torch.where(chances[1] < GREY, 0.0, 1 + saturation)[:, None, None]
    angle = 2 * pi * hue[:, None, None]
    turned = angle.cos() * (torch.eye(3) - TO_GREY) + angle.sin() * QUARTER_TURN
    return gain[:, None, None] * (TO_GREY + chroma * turned), lift


def recolour(images: Tensor, matrices: Tensor, lift: Tensor) -> Tensor:
    pixels = images.flatten(2)
    means = pixels.mean(2)
    grey = means @ LUMA.to(means.device) if images.shape[1] == 3 else means.mean(1)
    offset = (lift.to(grey.device) * grey)[:, None, None]
    return torch.baddbmm(offset, matrices.to(pixels.device), pixels).clamp_(0, 1).view(images.shape)
