"""Domain-IL: every task shows the same images through its own transform, a table of pixel sources.

All transforms are drawn when the stream is built; the images of a task are made on request.
"""

import numpy as np
import torch
from torch import Tensor

from strongreplay.data.tasks import Part, Stream, check_labels
from strongreplay.protocol import Split


def remap_pixels(train: Split, test: Split, num_classes: int, maps: Tensor) -> Stream:
    """Domain-IL: task t shows every image through row t of a table of pixel sources, (T, P); -1 is black."""
    for part, split in (("train", train), ("test", test)):
        check_labels(split, num_classes, f"remap_pixels: {part}")
    by_pixel = test.inputs.flatten(1).t().contiguous()  # (P, N)

    def make(index: int, part: Part) -> Split:
        sources = maps[index]
        if part == "test":
            # Test images are read in order and often; gathering rows is 30 times faster than columns.
            pixels = by_pixel.index_select(0, sources.clamp(min=0))
            pixels[sources < 0] = 0
            return Split(pixels.t().view(test.inputs.shape), test.labels)
        # numpy's take along rows is 3 times quicker than index_select for single bytes.
        taken = np.take(train.inputs.flatten(1).numpy(), sources.clamp(min=0).numpy(), axis=1)
        taken[:, (sources < 0).numpy()] = 0
        return Split(torch.from_numpy(taken).view(train.inputs.shape), train.labels)

    classes = tuple(range(num_classes))
    return Stream("domain-il", (classes,) * len(maps), tuple(train.inputs.shape[1:]), make)


def permutation_maps(height: int, width: int, num_tasks: int, generator: torch.Generator) -> Tensor:
    """One uniform permutation of all pixels for each task."""
    return torch.stack([torch.randperm(height * width, generator=generator) for _ in range(num_tasks)])


def rotation_map(height: int, width: int, angle: float) -> Tensor:
    """The source of each pixel when Pillow rotates by `angle` degrees with nearest-neighbour sampling."""
    from PIL import Image

    numbered = np.arange(1, height * width + 1, dtype=np.int32).reshape(height, width)
    # Pillow rotates an image of pixel numbers once; the result holds for every image of the split.
    rotated = Image.fromarray(numbered).rotate(angle, resample=Image.Resampling.NEAREST)
    return torch.from_numpy(np.array(rotated, dtype=np.int64)).flatten() - 1


def rotation_angles(num_tasks: int, generator: torch.Generator) -> list[float]:
    """One angle for each task, uniform in [0, 180) degrees."""
    angles: list[float] = (180 * torch.rand(num_tasks, dtype=torch.float64, generator=generator)).tolist()
    return angles


def rotation_maps(height: int, width: int, num_tasks: int, generator: torch.Generator) -> Tensor:
    return torch.stack(
        [rotation_map(height, width, angle) for angle in rotation_angles(num_tasks, generator)]
    )


def permuted(
    train: Split, test: Split, num_classes: int, num_tasks: int, generator: torch.Generator
) -> Stream:
    height, width = train.inputs.shape[-2:]
    return remap_pixels(train, test, num_classes, permutation_maps(height, width, num_tasks, generator))


def rotated(
    train: Split, test: Split, num_classes: int, num_tasks: int, generator: torch.Generator
) -> Stream:
    height, width = train.inputs.shape[-2:]
    return remap_pixels(train, test, num_classes, rotation_maps(height, width, num_tasks, generator))
