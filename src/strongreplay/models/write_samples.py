"""Write kept samples as files: images in class folders, or features as one array file, and a manifest."""

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from strongreplay.data.user_data import Label
from strongreplay.errors import ConfigError, RunError
from strongreplay.models.memory_view import Remembered
from strongreplay.storage import files

HEADER = ("path", "label", "id", "source", "update", "kind")
MANIFEST, FEATURES = "manifest.csv", "features.npz"
RESERVED = {"con", "prn", "aux", "nul", *(f"{name}{n}" for name in ("com", "lpt") for n in range(1, 10))}
LONGEST = 200  # bytes of a folder's name; file systems allow 255
PROGRESS_STEP = 50  # files between two reports


def write_samples(
    folder: Path,
    samples: Sequence[Remembered],
    images: Tensor,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> None:
    """Write samples into a folder that is new or empty; nothing is written outside it."""
    expect_empty(folder)
    try:
        files.make_folder(folder)
        paths = write_images(folder, samples, images, progress) if images.dim() == 4 else []
        if images.dim() == 2 and len(samples):
            labels = [one.label for one in samples]
            with files.replaced(folder / FEATURES) as (_, file):
                np.savez(file, inputs=images.numpy(), labels=label_array(labels))
        paths = paths or [f"{FEATURES}#{row}" for row in range(len(samples))]
        rows = [
            (path, one.label, one.id, one.source, one.update, one.kind)
            for path, one in zip(paths, samples, strict=True)
        ]
        files.write_text(folder / MANIFEST, files.csv_text([HEADER, *rows]))
    except OSError as error:
        raise RunError(
            f"{folder}: could not be written ({error.strerror or error}); make room or choose another folder"
        ) from None


def expect_empty(folder: Path) -> None:
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise ConfigError(f"{folder}: a file is there; give a folder that is new or empty")
    if next(folder.iterdir(), None) is not None:
        raise ConfigError(f"{folder}: the folder is not empty; give one that is new or empty")


def write_images(
    folder: Path,
    samples: Sequence[Remembered],
    images: Tensor,
    progress: Callable[[str, int, int], None],
) -> list[str]:
    """Write each image and return its path in the folder; a sample in two rows is written twice."""
    from PIL import Image

    paths: dict[str, None] = {}
    for row, (one, image) in enumerate(zip(samples, images.numpy(), strict=True)):
        path, copy = f"{folder_name(one.label)}/{one.kind}-{one.id:06d}", 1
        while (name := f"{path}{f'-{copy}' if copy > 1 else ''}.png") in paths:
            copy += 1
        paths[name] = None
        pixels = image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        files.write_bytes(folder / name, buffer.getvalue())
        if row % PROGRESS_STEP == 0:
            progress("writing images", row, len(samples))
    return list(paths)


def folder_name(label: Label) -> str:
    """A label as a folder name that every file system accepts; urllib.parse.unquote restores the label.

    A name that is too long is cut and ends with %~ and a hash; the manifest has the full label.
    """
    text = str(label)
    name = "".join(sign if sign.isalnum() or sign in " _-.,+()" else escaped(sign) for sign in text)
    if name.startswith((".", " ")) or name.lower().partition(".")[0] in RESERVED:
        name = escaped(text[0]) + name[1:]
    if name.endswith((".", " ")):
        name = name[:-1] + escaped(text[-1])
    return name if len(name.encode()) <= LONGEST else shortened(name)


def escaped(sign: str) -> str:
    return "".join(f"%{byte:02X}" for byte in sign.encode())


def shortened(name: str) -> str:
    import hashlib

    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    kept = name.encode()[: LONGEST - len(digest) - 2].decode(errors="ignore").rstrip("%0123456789ABCDEF. ")
    return f"{kept}%~{digest}"


def label_array(labels: Sequence[Label]) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64 | np.str_]]":
    if all(isinstance(label, int) for label in labels):
        return np.array(labels, np.int64)
    return np.array([str(label) for label in labels], np.str_)
