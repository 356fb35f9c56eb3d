"""The one decoder: whatever Pillow raises means one bad file, which is named."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from strongreplay.data import codec
from strongreplay.data.images import BadImage, open_image, read_image
from strongreplay.data.user_data import read_chunk, stream_images
from strongreplay.errors import DataError


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def palette_png() -> bytes:
    """A PNG that says its pixels are places in a palette, and has no palette: Pillow's assertion fails."""
    header = struct.pack(">IIBBBBB", 4, 4, 8, 3, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + bytes(4) for _ in range(4)))
    parts = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*part) for part in parts)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "cat").mkdir()
    Image.fromarray(np.full((4, 4, 3), 7, np.uint8)).save(tmp_path / "cat/good.png")
    (tmp_path / "cat/bad.png").write_bytes(palette_png())
    return tmp_path


def test_a_palette_image_without_its_palette_is_one_bad_file(photos: Path) -> None:
    with pytest.raises(DataError, match=r"bad.png is damaged \(AssertionError: .*\); replace the file"):
        read_image(photos / "cat/bad.png", 4, 3)
    with pytest.raises(DataError, match=r"bad.png is damaged"):
        read_chunk(photos)
    paths = [photos / "cat/bad.png", photos / "cat/good.png"]
    ((read, images, faults),) = stream_images(paths, (3, 4, 4))
    assert read == paths[1:]  # the batch is not lost
    assert images.float().mean() == 7
    assert [path for path, _ in faults] == paths[:1]


def test_a_bad_picture_of_a_dataset_is_named_by_its_row(photos: Path) -> None:
    pictures = [Image.open(photos / "cat/good.png"), Image.open(photos / "cat/bad.png")]
    with pytest.raises(DataError, match=r"data #1: cannot be read \(AssertionError"):
        read_chunk(pictures, ["cat", "cat"], side=4, channels=3)


def test_a_damaged_stored_image_is_named() -> None:
    files = codec.encode(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), "png")
    cut = files[1][: files[1].index(b"IDAT") + 8]
    with pytest.raises(DataError, match=r"stored image 1 is damaged \(.*\); roll back to a version before"):
        codec.decode([files[0], cut], (3, 4, 4))
    with pytest.raises(DataError, match="stored image 1 is not an image"):
        codec.decode([files[0], b"nothing"], (3, 4, 4))


def test_errors_of_the_system_are_not_taken_for_damage(tmp_path: Path) -> None:
    class Failing:
        def read(self, size: int = -1) -> bytes:
            raise OSError(5, "Input/output error")

        def seek(self, *args: int) -> int:
            return 0

        tell = seek

    with pytest.raises(OSError, match="Input/output error"), open_image(Failing()):  # type: ignore[arg-type]
        pass
    (tmp_path / "x").write_bytes(b"")
    with (tmp_path / "x").open("rb") as file, pytest.raises(BadImage), open_image(file):
        pass
