"""Checkpoints as folders and files. This module does not import torch, because reports read checkpoints too.

A checkpoint is a folder `state-NUMBER` of three files: the tensors (safetensors), the rest of the tree
(JSON), and a manifest with the size and SHA-256 of both and its own checksum. Other names are ignored.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from strongreplay.errors import DataError
from strongreplay.storage import files

FORMAT = 1
TENSORS, TREE, MANIFEST = "tensors.safetensors", "tree.json", "manifest.json"
MAX_MANIFEST = 2**22  # bytes; a manifest holds a configuration and two checksums
NAME = re.compile(r"state-([0-9]{6,18})")
SUM = re.compile(r"[0-9a-f]{64}")


def path_of(folder: Path, number: int) -> Path:
    return folder / f"state-{number:06d}"


def number_of(path: Path) -> int | None:
    """The number of a checkpoint; None for any other name, such as state-old or state-0000007."""
    found = NAME.fullmatch(path.name)
    return int(found[1]) if found and path == path_of(path.parent, int(found[1])) else None


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    numbers = {number: path for path in folder.iterdir() if (number := number_of(path)) is not None}
    found = [numbers[number] for number in sorted(numbers, reverse=True)]
    return [path for path in found if path.is_dir() and not path.is_symlink()]


def next_path(folder: Path) -> Path:
    """The path of a new checkpoint. Its number is above all existing ones, so nothing is overwritten."""
    return path_of(folder, 1 + max((number_of(path) or 0 for path in checkpoints(folder)), default=0))


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints of a folder, and the folder itself unless it holds other files."""
    with contextlib.suppress(OSError):
        files.clear_leftovers(folder)
        for path in checkpoints(folder):
            files.discard(path)
        folder.rmdir()


def folders_with_state(folder: Path) -> list[Path]:
    """The folder and its subfolders, those that have checkpoints."""
    found = [folder]
    for place, inside, _ in os.walk(folder):  # os.walk skips folders that disappear during the search
        found += [Path(place, name) for name in inside if name.endswith(".state")]
        inside[:] = [name for name in inside if not name.endswith(".state")]
    return [path for path in sorted(found) if checkpoints(path)]


def last_good(folder: Path) -> str:
    """A sentence that names the newest checkpoint."""
    found = checkpoints(folder)
    return f"The last good one is {found[0]}" if found else "There is no earlier one"


def read_files(path: Path) -> tuple[dict[str, Any], bytes, bytes]:
    """The manifest, the tensors and the tree of a checkpoint, after checking sizes and checksums."""
    manifest = read_manifest(path)
    entries = manifest["files"]
    return (
        manifest,
        files.read_checked(path / TENSORS, entries[TENSORS]),
        files.read_checked(path / TREE, entries[TREE]),
    )


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, after checking its checksum and its entries."""
    file = path / MANIFEST
    try:
        manifest = files.parse_json(files.read_bytes(file, MAX_MANIFEST))
        whole = manifest["sum"] == files.manifest_sum(manifest)
        number, entries = manifest["format"], manifest["files"]
        known = sorted(entries) == sorted((TENSORS, TREE)) and all(map(is_entry, entries.values()))
        known &= type(number) is int and isinstance(manifest["written"], str)
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file}: not a manifest ({type(error).__name__}: {error}); remove {path}") from None
    if whole and type(number) is int and number > FORMAT:
        raise DataError(f"{file}: checkpoint format {number} is newer than {FORMAT}; update strongreplay")
    if not (whole and known) or number < 1:
        raise DataError(f"{file}: the manifest is damaged (its sum does not fit); remove {path}")
    found: dict[str, Any] = manifest
    return found


def is_entry(entry: Any) -> bool:
    """Whether a file's entry has a valid size and checksum."""
    size, digest = entry["bytes"], entry["sha256"]
    return type(size) is int and size >= 0 and isinstance(digest, str) and bool(SUM.fullmatch(digest))
