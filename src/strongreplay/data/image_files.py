"""Unlabelled image files for predictions: found in folders, read a batch at a time."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from strongreplay.data import images, tables
from strongreplay.data.archives import telling
from strongreplay.data.convert import expect_kind, required_form
from strongreplay.data.manifests import JSON_ENDINGS
from strongreplay.data.read_options import STRICT, Faults
from strongreplay.errors import ConfigError, DataError


def find_images(paths: Iterable[Path]) -> list[Path]:
    """The given files, and the images in given folders at any depth, sorted by name, without hidden files."""
    found: list[Path] = []
    for path in map(Path, paths):
        found += _walk(path) if os.path.isdir(path) else [path]
    return found


def stream_images(
    paths: Sequence[Path], shape: tuple[int, ...], batch_size: int = 256
) -> Iterator[tuple[list[Path], Tensor, list[tuple[Path, str]]]]:
    """Batches of: files that were read, their images, and (file, reason) for each that failed."""
    form = required_form(shape, None, None)
    expect_kind("image files", "images", form)
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, got {batch_size}; give another")
    return (_read_batch(paths[at : at + batch_size], shape) for at in range(0, len(paths), batch_size))


def is_labelled(path: Path) -> bool:
    """Whether a path names arrays, a list of images or a table, and not an image or a folder of images."""
    endings = (".npz", ".csv", ".tsv", *JSON_ENDINGS, *tables.ENDINGS)
    return path.suffix.lower() in endings and not path.is_dir()


def read_files(paths: Iterable[Path], shape: tuple[int, ...]) -> Iterator[Tensor]:
    """The images of files and folders, a batch at a time; all bad ones are named at once."""
    found, faults = find_images(paths), Faults("images", STRICT)
    for _, images_read, failed in stream_images(found, shape):
        faults.texts += [reason for _, reason in failed]
        yield images_read
    faults.settle(len(found) - len(faults.texts))


def _read_batch(
    paths: Sequence[Path], shape: tuple[int, ...]
) -> tuple[list[Path], Tensor, list[tuple[Path, str]]]:
    read: list[Path] = []
    faults: list[tuple[Path, str]] = []
    pixels = images.allocate("image files", (len(paths), *shape))
    for path in paths:
        try:
            pixels[len(read)] = images.read_image(path, shape[1], shape[0])
            read.append(path)
        except DataError as error:
            faults.append((path, str(error).encode(errors="backslashreplace").decode()))
    return read, torch.from_numpy(pixels)[: len(read)], faults


def _walk(folder: Path) -> list[Path]:
    found: list[Path] = []

    def fail(error: OSError) -> None:
        with telling(Path(error.filename), images.REPLACE):
            raise error  # otherwise an unreadable folder would look empty

    for place, inner, names in os.walk(folder, onerror=fail):
        inner[:] = [name for name in inner if not name.startswith(".")]
        shown = (Path(place, name) for name in names if not name.startswith("."))
        found += [path for path in shown if path.suffix.lower() in images.ENDINGS]
    if not found:
        endings = ", ".join(images.ENDINGS)
        raise DataError(f"{folder} must hold images, got none with the ending {endings}; give another folder")
    return sorted(found)
