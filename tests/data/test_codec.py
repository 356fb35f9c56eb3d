"""Images as PNG and JPEG files and back."""

import pytest
import torch

from strongreplay.data import codec
from strongreplay.errors import DataError


@pytest.mark.parametrize("channels", [1, 3])
def test_png_gives_back_every_pixel_and_jpeg_nearly(channels: int) -> None:
    grid = torch.arange(32)
    images = (grid[:, None] * 4 + grid * 3).to(torch.uint8).expand(5, channels, 32, 32).clone()
    images[1:] = images[1:].flip(-1)
    for how in ("png", "jpeg"):
        files = codec.part(*codec.join(codec.encode(images, how)))
        decoded = codec.decode(files, (channels, 32, 32))
        difference = (decoded.int() - images.int()).abs().max()
        assert difference == 0 if how == "png" else 0 <= difference < 20
    with pytest.raises(DataError, match="stored image 0"):
        codec.decode([b"no image"], (channels, 32, 32))
    with pytest.raises(DataError, match="stored image 0"):
        codec.decode(files[:1], (channels, 16, 16))
    assert codec.decode(files).equal(codec.decode(files, (channels, 32, 32)))  # the shape of the first
    for damaged in ([b"no image"], [files[0], codec.encode(images[:1, :, 1:], "png")[0]]):
        with pytest.raises(DataError, match=f"stored image {len(damaged) - 1}"):
            codec.decode(damaged)
    assert codec.part(*codec.join([])) == []
