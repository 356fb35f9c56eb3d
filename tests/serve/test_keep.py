"""Images that the service was told to keep: bounded, as they were sent, and nothing else is touched."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from strongreplay.serve.keep import MOST_WAITING, ImageKeeper


def picture(shade: int, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((8, 8), shade, np.uint8)).save(stream, kind)
    return stream.getvalue()


def keep(folder: Path, images: Sequence[bytes], count: int = 100, num_bytes: int = 10**6) -> list[str]:
    """Offer images one by one to a keeper; returns what it said."""
    said: list[str] = []
    keeper = ImageKeeper(folder, count, num_bytes, said.append)
    keeper.start()
    for content in images:
        keeper.offer([content])
        while not keeper.images.empty():
            pass
    keeper.stop()
    return said


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def test_the_newest_are_kept_as_they_were_sent_also_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    sent = [picture(shade) for shade in range(5)]
    assert keep(folder, sent, count=3) == []
    assert contents(folder) == sent[2:]
    other = picture(9, "JPEG")
    keep(folder, [other], count=3)
    assert contents(folder) == [*sent[3:], other]
    assert [path.suffix for path in sorted(folder.iterdir())] == [".png", ".png", ".jpeg"]
    keep(folder, [], count=1)
    assert contents(folder) == [other]


def test_bytes_are_bounded_and_other_files_stay(tmp_path: Path) -> None:
    mine = tmp_path / "mine.png"
    mine.write_bytes(picture(1))
    sent = [picture(shade) for shade in range(4)]
    room = len(sent[2]) + len(sent[3])
    keep(tmp_path, sent, num_bytes=room)
    mine.unlink()  # it was left alone
    assert contents(tmp_path) == sent[2:]
    keep(tmp_path, [picture(0) + bytes(room)], num_bytes=room)
    assert contents(tmp_path) == sent[2:]  # an image that is too large alone pushes nothing out


def test_images_are_passed_over_while_the_disk_is_busy(tmp_path: Path) -> None:
    keeper = ImageKeeper(tmp_path, 100, 10**6)
    keeper.offer(picture(shade) for shade in range(50))  # nobody writes yet
    keeper.start()
    keeper.stop()
    assert len(contents(tmp_path)) == MOST_WAITING


def test_an_error_of_the_disk_is_told_once_and_ends_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    said: list[str] = []
    keeper = ImageKeeper(folder, 100, 10**6, said.append)
    folder.rmdir()
    folder.write_text("a file where the folder was")
    keeper.start()
    keeper.offer([picture(1), picture(2)])
    keeper.stop()
    assert len(said) == 1
    assert "images cannot be kept" in said[0]
    with pytest.raises(OSError, match="directory"):
        ImageKeeper(folder, 100, 10**6)
