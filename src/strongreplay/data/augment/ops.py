"""Deterministic operations on whole batches of raw images: (B, C, H, W) uint8 in and out, C = 1 or 3.

Amounts are (B,), one per image, in natural units. The operations equal those of Pillow's ImageOps and
ImageEnhance, in integer arithmetic where possible, so that every device gives the same bytes. They use
nearest-neighbour sampling; pixels from outside the image are black.
"""

import torch
from torch import Tensor


def affine(images: Tensor, matrices: Tensor) -> Tensor:
    """Affine transform: the (B, 2, 3) matrices map output pixel centres (x, y, 1) to input positions."""
    height, width = images.shape[-2:]
    rows, columns = (torch.arange(size, device=images.device) + 0.5 for size in (height, width))
    centres = torch.cartesian_prod(rows, columns).t()  # (2, P): y, x
    across, down, shift = matrices.unsqueeze(3).unbind(2)  # (B, 2, 1) each
    column, row = (across * centres[1] + down * centres[0] + shift).floor().long().unbind(1)  # (B, P)
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    places = (row * width + column).clamp(0, height * width - 1)[:, None].expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, places).mul_(inside[:, None]).view(images.shape)


def matrix(*entries: Tensor) -> Tensor:
    """(B, 2, 3) from six entries, row by row."""
    return torch.stack(entries, 1).view(-1, 2, 3)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate counter-clockwise about the centre."""
    cos, sin = degrees.deg2rad().cos(), degrees.deg2rad().sin()
    y, x = images.shape[-2] / 2, images.shape[-1] / 2
    return affine(images, matrix(cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y))


def shear_x(images: Tensor, slopes: Tensor) -> Tensor:
    """Shift each row to the left in proportion to its distance from the top."""
    one, none = torch.ones_like(slopes), torch.zeros_like(slopes)
    return affine(images, matrix(one, slopes, none, none, one, none))


def shear_y(images: Tensor, slopes: Tensor) -> Tensor:
    """Shift each column up in proportion to its distance from the left edge."""
    one, none = torch.ones_like(slopes), torch.zeros_like(slopes)
    return affine(images, matrix(one, none, none, slopes, one, none))


def translate_x(images: Tensor, pixels: Tensor) -> Tensor:
    """Shift to the left by whole pixels."""
    one, none = torch.ones_like(pixels), torch.zeros_like(pixels)
    return affine(images, matrix(one, none, pixels.trunc(), none, one, none))


def translate_y(images: Tensor, pixels: Tensor) -> Tensor:
    """Shift up by whole pixels."""
    one, none = torch.ones_like(pixels), torch.zeros_like(pixels)
    return affine(images, matrix(one, none, none, none, one, pixels.trunc()))


def invert(images: Tensor) -> Tensor:
    return 255 - images


def solarise(images: Tensor, thresholds: Tensor) -> Tensor:
    """Invert values that are not below the threshold."""
    return torch.where(images < each(thresholds), images, 255 - images)


def posterise(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest bits of each byte."""
    return images & (255 << 8 - each(bits).int()).to(torch.uint8)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to 0..255; a channel with a single value does not change."""
    low, high = images.amin((2, 3), keepdim=True).int(), images.amax((2, 3), keepdim=True).int()
    stretched = (images - low) * 255 // (high - low).clamp(min=1)
    return torch.where(high > low, stretched, images).to(torch.uint8)


def equalise(images: Tensor) -> Tensor:
    """Equalise each channel's histogram; one with fewer than 255 pixels below its maximum does not change."""
    values = images.flatten(2).long()  # (B, C, P)
    ones = torch.ones(1, dtype=torch.int32, device=images.device).expand_as(values)
    counts = torch.zeros(*values.shape[:2], 256, dtype=torch.int32, device=images.device)
    counts = counts.scatter_add_(2, values, ones)
    brightest = counts.gather(2, values.amax(2, keepdim=True))
    step = (values.shape[2] - brightest) // 255
    below = counts.cumsum(2) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255).to(torch.uint8)
    return torch.where(step[..., None] > 0, table.gather(2, values).view(images.shape), images)


def brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Factor 0 is black, 1 the image, more is brighter."""
    return blend(torch.zeros_like(images), images, factors)


def contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Factor 0 is the mean grey, 1 the image."""
    grey = luminance(images)
    pixels = grey.shape[2] * grey.shape[3]
    mean = (2 * grey.sum((2, 3), keepdim=True) + pixels) // (2 * pixels)  # to the nearest whole number
    return blend(mean, images, factors)


def colour(images: Tensor, factors: Tensor) -> Tensor:
    """Factor 0 is grey, 1 the image, more is more saturated; one-channel images do not change."""
    return blend(luminance(images), images, factors)


def sharpness(images: Tensor, factors: Tensor) -> Tensor:
    """Factor 0 is smooth, 1 the image, more is sharper; the border pixels do not change."""
    whole = images.int()
    columns = whole[:, :, :-2] + whole[:, :, 1:-1] + whole[:, :, 2:]
    around = columns[..., :-2] + columns[..., 1:-1] + columns[..., 2:]
    smooth = whole.clone()
    # The centre has weight 5 and its eight neighbours 1, in sum 13; rounded to the nearest integer.
    smooth[..., 1:-1, 1:-1] = (2 * (around + 4 * whole[..., 1:-1, 1:-1]) + 13) // 26
    return blend(smooth, images, factors)


def each(amounts: Tensor) -> Tensor:
    """(B,) to (B, 1, 1, 1)."""
    return amounts.view(-1, 1, 1, 1)


def luminance(images: Tensor) -> Tensor:
    """(B, 1, H, W) integers: ITU-R 601 luma, computed with 16 fractional bits."""
    if images.shape[1] == 1:
        return images.int()
    red, green, blue = images.int().split(1, 1)
    luma: Tensor = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    return luma


def blend(base: Tensor, images: Tensor, factors: Tensor) -> Tensor:
    """base + factor * (image - base), clamped to 0..255; factor 1 is the image."""
    start = base.float()
    return (start + each(factors) * (images.float() - start)).clamp_(0, 255).to(torch.uint8)
