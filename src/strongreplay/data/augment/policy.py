"""Random augmentation of whole batches: AutoAugment, RandAugment, Cutout, CutMix, sets of perturbations.

Papers: Cubuk et al., "AutoAugment: Learning Augmentation Policies from Data", 2019,
https://arxiv.org/abs/1805.09501; Cubuk et al., "RandAugment", 2020, https://arxiv.org/abs/1909.13719;
DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout", 2017,
https://arxiv.org/abs/1708.04552; Yun et al., "CutMix", 2019, https://arxiv.org/abs/1905.04899
Every image has its own draw, made on the CPU; all images with the same operation are processed in one call.
Ranges are those of the AutoAugment paper's table of operations; a larger magnitude is a stronger change.
Inputs and outputs are raw images, (B, C, H, W) uint8; CutMix works on the inputs of the net.
"""

from collections.abc import Callable
from functools import partial
from math import sqrt
from typing import Literal

import torch
from torch import Tensor

from strongreplay.data.augment import ops
from strongreplay.errors import DataError

Operation = Callable[[Tensor, Tensor], Tensor]  # images and (B,) strengths in [-1, 1]
Perturbation = Callable[[Tensor, torch.Generator], Tensor]

OPERATIONS: dict[str, Operation] = {
    "identity": lambda images, strength: images,
    "shear_x": lambda images, strength: ops.shear_x(images, 0.3 * strength),
    "shear_y": lambda images, strength: ops.shear_y(images, 0.3 * strength),
    "translate_x": lambda images, strength: ops.translate_x(images, 150 / 331 * images.shape[3] * strength),
    "translate_y": lambda images, strength: ops.translate_y(images, 150 / 331 * images.shape[2] * strength),
    "rotate": lambda images, strength: ops.rotate(images, 30 * strength),
    "brightness": lambda images, strength: ops.brightness(images, 1 + 0.9 * strength),
    "colour": lambda images, strength: ops.colour(images, 1 + 0.9 * strength),
    "contrast": lambda images, strength: ops.contrast(images, 1 + 0.9 * strength),
    "sharpness": lambda images, strength: ops.sharpness(images, 1 + 0.9 * strength),
    "posterise": lambda images, strength: ops.posterise(images, 8 - (4 * strength.abs()).round()),
    "solarise": lambda images, strength: ops.solarise(images, 256 * (1 - strength.abs())),
    "autocontrast": lambda images, strength: ops.autocontrast(images),
    "equalise": lambda images, strength: ops.equalise(images),
    "invert": lambda images, strength: ops.invert(images),
}
NAMES = tuple(OPERATIONS)
GEOMETRIC = NAMES[1:6]
ENHANCING = NAMES[6:10]

# The policy found on CIFAR-10: operation, probability, magnitude of 9.
CIFAR10_POLICY = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 8), ("equalise", 0.9, 2)),
    (("shear_y", 0.2, 7), ("posterise", 0.3, 7)),
    (("colour", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalise", 0.6, 5), ("equalise", 0.5, 1)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("colour", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalise", 0.3, 7), ("autocontrast", 0.4, 8)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("colour", 0.2, 8)),
    (("solarise", 0.5, 2), ("invert", 0.0, 3)),
    (("equalise", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalise", 0.2, 8), ("equalise", 0.6, 4)),
    (("colour", 0.9, 9), ("equalise", 0.6, 6)),
    (("autocontrast", 0.8, 4), ("solarise", 0.2, 8)),
    (("brightness", 0.1, 3), ("colour", 0.7, 0)),
    (("solarise", 0.4, 5), ("autocontrast", 0.9, 3)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 2), ("solarise", 0.8, 3)),
    (("equalise", 0.8, 8), ("invert", 0.1, 3)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 1)),
)


def strength_of(name: str, magnitude: int) -> float:
    """Enhancing factors range from smallest to largest, all other operations from no change to strongest."""
    return 2 * magnitude / 9 - 1 if name in ENHANCING else magnitude / 9


CHOICES = torch.tensor([[NAMES.index(name) for name, _, _ in pair] for pair in CIFAR10_POLICY])  # (25, 2)
CHANCES = torch.tensor([[chance for _, chance, _ in pair] for pair in CIFAR10_POLICY])
STRENGTHS = torch.tensor([[strength_of(name, level) for name, _, level in pair] for pair in CIFAR10_POLICY])
SIGNED = torch.tensor([[name in GEOMETRIC for name, _, _ in pair] for pair in CIFAR10_POLICY])


def auto_augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """The CIFAR-10 policy: one of 25 pairs of operations per image, with probabilities and magnitudes."""
    count = len(images)
    drawn = torch.randint(len(CIFAR10_POLICY), (count,), generator=generator)
    takes = torch.rand(count, 2, generator=generator) < CHANCES[drawn]
    choices = torch.where(takes, CHOICES[drawn], NAMES.index("identity"))
    strengths = STRENGTHS[drawn] * torch.where(SIGNED[drawn], signs((count, 2), generator), 1)
    for choice, strength in zip(choices.t(), strengths.t(), strict=True):
        images = apply(images, NAMES, choice, strength)
    return images


def rand_augment(
    images: Tensor, generator: torch.Generator, num_ops: int = 2, magnitude: float = 9
) -> Tensor:
    """`num_ops` uniformly drawn operations per image, at a magnitude out of 30; one-channel images get only
    geometry and inversion."""
    names = NAMES[:-1] if images.shape[1] == 3 else ("identity", *GEOMETRIC, "invert")
    for _ in range(num_ops):
        choice = torch.randint(len(names), (len(images),), generator=generator)
        images = apply(images, names, choice, magnitude / 30 * signs(choice.shape, generator))
    return images


def signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return 2.0 * torch.randint(2, shape, generator=generator) - 1


def apply(images: Tensor, names: tuple[str, ...], choice: Tensor, strengths: Tensor) -> Tensor:
    """Apply the chosen operation to each image, with one call per operation."""
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] not in (1, 3):
        raise DataError(
            "augmentation needs (B, C, H, W) uint8 images with 1 or 3 channels, "
            f"got {tuple(images.shape)} {images.dtype}; switch it off for other inputs"
        )
    order, counts = choice.argsort(stable=True), choice.bincount(minlength=len(names)).tolist()
    device = images.device
    groups = images.index_select(0, order.to(device)).split(counts)
    amounts = strengths[order].to(device).split(counts)
    changed = [
        OPERATIONS[name](group, amount)
        for name, group, amount in zip(names, groups, amounts, strict=True)
        if len(group)
    ]
    return torch.cat(changed).index_select(0, order.argsort().to(device))


def cutout(images: Tensor, generator: torch.Generator, size: int) -> Tensor:
    """A black square at a random position in each image, clipped at the edges."""
    near = []
    for length in images.shape[-2:]:
        centre = torch.randint(length, (len(images), 1), generator=generator)
        offset = torch.arange(length) - centre + size // 2
        near.append(((offset >= 0) & (offset < size)).to(images.device))
    return images.masked_fill((near[0][:, :, None] & near[1][:, None, :])[:, None], 0)


def turn(images: Tensor, generator: torch.Generator, limit: float) -> Tensor:
    """Rotate by a random angle of up to `limit` degrees in either direction."""
    degrees = limit * (2 * torch.rand(len(images), generator=generator) - 1)
    return ops.rotate(images, degrees.to(images.device))


def solarised(images: Tensor, generator: torch.Generator, threshold: int) -> Tensor:
    return ops.solarise(images, torch.full((len(images),), threshold, device=images.device))


VR: tuple[Perturbation, ...] = (
    *(partial(cutout, size=size) for size in (8, 16, 24, 32)),
    lambda images, generator: images.flip(-1),
    lambda images, generator: images.flip(-2),
    partial(turn, limit=45),
    partial(turn, limit=90),
    lambda images, generator: ops.invert(images),
    *(partial(solarised, threshold=threshold) for threshold in (128, 64, 32)),
)


def perturbations(kind: Literal["rand", "vr"], channels: int) -> tuple[Perturbation, ...]:
    """Twelve draws of RandAugment, or the fixed set, without its solarisations for one channel."""
    if kind == "rand":
        return (rand_augment,) * 12
    return VR if channels == 3 else VR[:-3]


Box = tuple[slice, slice]  # rows and columns


def cutmix(inputs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, float]:
    """Images with a box pasted from a partner, the partners' rows, and the share of the image kept."""
    height, width = inputs.shape[-2:]
    kept = torch.rand((), generator=generator).item()  # Beta(1, 1)
    row, column = (int(torch.randint(length, (), generator=generator)) for length in (height, width))
    partners = torch.randperm(len(inputs), generator=generator).to(inputs.device)
    box = box_around(row, height, kept), box_around(column, width, kept)
    return paste(inputs, partners, box), partners, share_outside(box, height, width)


def box_around(centre: int, length: int, kept: float) -> slice:
    """One side of a box that covers 1 - kept of the image, clipped at the edges."""
    side = int(length * sqrt(1 - kept))
    start = centre - side // 2
    return slice(max(start, 0), min(start + side, length))


def paste(inputs: Tensor, partners: Tensor, box: Box) -> Tensor:
    """A copy of the inputs with the box of their partners."""
    mixed = inputs.clone()
    mixed[:, :, *box] = inputs[:, :, *box].index_select(0, partners)
    return mixed


def share_outside(box: Box, height: int, width: int) -> float:
    """The share of the image outside the clipped box."""
    rows, columns = (len(range(length)[side]) for side, length in zip(box, (height, width), strict=True))
    return 1 - rows * columns / (height * width)
