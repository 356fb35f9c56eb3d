"""Encode images as PNG or JPEG and decode them, so that a memory keeps more images in the same space."""

import io
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strongreplay.data.images import BadImage, open_image
from strongreplay.errors import DataError

Codec = Literal["raw", "png", "jpeg"]
QUALITY = 90  # of JPEG


def encode(images: Tensor, codec: Codec) -> list[bytes]:
    """The file bytes of each (C, H, W) uint8 image of a batch."""
    from PIL import Image

    files = []
    for pixels in images.cpu().numpy():
        file = io.BytesIO()
        image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
        image.save(file, codec, **({"quality": QUALITY} if codec == "jpeg" else {"optimize": True}))
        files.append(file.getvalue())
    return files


def decode(files: Sequence[bytes], shape: tuple[int, ...] | None = None) -> Tensor:
    """The inverse of `encode`, except for JPEG's loss; every image has this shape, or that of the first."""
    images: list[NDArray[np.uint8]] = []
    for number, data in enumerate(files):
        try:
            with open_image(io.BytesIO(data), ("PNG", "JPEG")) as image:
                found = len(image.getbands()), image.height, image.width
                shape = shape or found
                if found != shape:
                    raise DataError(f"stored image {number}: {image.size} {image.mode}, expected {shape}")
                pixels = np.asarray(image)
        except BadImage as error:
            raise DataError(f"stored image {number} {error}; roll back to a version before") from None
        images.append(pixels[None] if found[0] == 1 else pixels.transpose(2, 0, 1))
    if not images:
        return torch.empty(0, *(shape or (0,)), dtype=torch.uint8)
    return torch.from_numpy(np.stack(images))


def join(files: Sequence[bytes]) -> tuple[Tensor, Tensor]:
    """All bytes in one tensor, and the length of each file."""
    joined = torch.frombuffer(bytearray(b"".join(files)) or bytearray(1), dtype=torch.uint8)
    return joined, torch.tensor([len(data) for data in files], dtype=torch.int64)


def part(joined: Tensor, lengths: Tensor) -> list[bytes]:
    """The inverse of `join`."""
    data, ends = joined.numpy().tobytes(), lengths.cumsum(0).tolist()
    return [data[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
