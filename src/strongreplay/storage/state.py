"""Checkpoints: a tree of tensors and plain values as a folder that is written whole or not at all.

A checkpoint is a folder of three files: the tensors (safetensors), the rest of the tree (JSON), and a
manifest with the size and SHA-256 of both and a sum of its own. It is written under another name, synced and
renamed, so under its right name it is whole. Reading checks names, sizes and sums before anything else, and
executes nothing from the files.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as pack_tensors
from torch import Tensor

from strongreplay import __version__
from strongreplay.errors import DataError, RunError

FORMAT = 1
TENSORS, TREE, MANIFEST = "tensors.safetensors", "tree.json", "manifest.json"
MAX_JSON = 2**28  # bytes; a tree of that size is not one of ours
PREFIX = "state-"
# What parsing and unpacking raise on bytes that this package did not write.
MALFORMED = (
    SafetensorError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    OverflowError,
)

Tree = Any  # nested dicts, lists and tuples of tensors, numbers, texts, booleans and none


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint on disk, its sums checked."""

    path: Path
    manifest: dict[str, Any]
    tree: Tree


def pack(tree: Tree) -> tuple[Tree, dict[str, Tensor]]:
    """The tree with every tensor replaced by its name, and the tensors by name."""
    tensors: dict[str, Tensor] = {}
    storages: set[int] = set()

    def keep(tensor: Tensor, name: str) -> Tree:
        while name in tensors:  # the keys "a/b" and "a", "b" lead to one name
            name += "'"
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        # Tied weights and overlapping views: safetensors takes only tensors with memory of their own
        tensors[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
        return {"tensor": name}

    def visit(node: Tree, name: str) -> Tree:
        if isinstance(node, Tensor):
            return keep(node, name)
        if isinstance(node, dict):  # as pairs, because keys may be numbers
            return {"dict": [[key, visit(value, f"{name}/{key}")] for key, value in node.items()]}
        if isinstance(node, list | tuple):
            kind = "list" if isinstance(node, list) else "tuple"
            return {kind: [visit(value, f"{name}/{number}") for number, value in enumerate(node)]}
        if node is None or isinstance(node, bool | int | float | str):
            return node
        raise TypeError(f"state: {name} is a {type(node).__name__}; only tensors and plain values are kept")

    return visit(tree, ""), tensors


def unpack(node: Tree, tensors: dict[str, Tensor]) -> Tree:
    """The inverse of `pack`; anything it would not have written is a KeyError, TypeError or ValueError."""
    if not isinstance(node, dict):
        if node is None or isinstance(node, bool | int | float | str):
            return node
        raise TypeError(f"a {type(node).__name__} stands where a value should")
    ((kind, content),) = node.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: unpack(value, tensors) for key, value in content}
    if kind == "list":
        return [unpack(value, tensors) for value in content]
    if kind == "tuple":
        return tuple(unpack(value, tensors) for value in content)
    raise KeyError(kind)


def write_checkpoint(
    folder: Path,
    tree: Tree,
    about: dict[str, Any],
    keep: int = 2,
    remedy: str = "make room or choose another folder with --out",
) -> Path:
    """Write the next one whole, then forget all but the newest `keep`; the old ones stay if it fails."""
    path = folder / f"{PREFIX}{next_number(folder):06d}"
    temporary = folder / f".new-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        clear_leftovers(folder)
        temporary.mkdir()
        plain, tensors = pack(tree)
        files = {TENSORS: pack_tensors(tensors), TREE: json.dumps(plain, allow_nan=True).encode()}
        manifest = {
            "format": FORMAT,
            "package": __version__,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            **about,
            "files": {name: {"bytes": len(data), "sha256": sha256(data)} for name, data in files.items()},
        }
        manifest["sum"] = manifest_sum(manifest)
        files[MANIFEST] = json.dumps(manifest, indent=1).encode()
        for name, data in files.items():
            write_synced(temporary / name, data)
        sync_folder(temporary)
        temporary.rename(path)
        sync_folder(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        with contextlib.suppress(OSError):  # unless something is in it
            folder.rmdir()
        raise RunError(
            f"{path}: the checkpoint could not be written ({error.strerror or error}); "
            f"{remedy}. {last_good(folder)}"
        ) from None
    for old in checkpoints(folder)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def next_number(folder: Path) -> int:
    """Above all that are there, damaged ones too: nothing is ever written over."""
    numbers = [path.name.removeprefix(PREFIX) for path in checkpoints(folder)]
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)


def write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def clear_leftovers(folder: Path) -> None:
    """What a killed process was writing; the caller holds the lock, so nobody is writing it now."""
    for path in folder.glob(".new-*"):
        shutil.rmtree(path, ignore_errors=True)


def last_good(folder: Path) -> str:
    found = checkpoints(folder)
    return f"The last good one is {found[0]}" if found else "There is no earlier one"


def checkpoints(folder: Path) -> list[Path]:
    """The newest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.name.startswith(PREFIX) and path.is_dir()]
    return sorted(found, key=lambda path: path.name, reverse=True)


def folders_with_state(folder: Path) -> list[Path]:
    """The folder itself or those of runs inside it, if they have checkpoints."""
    found = [folder]
    for place, inside, _ in os.walk(folder):  # which is not put out by folders that come and go meanwhile
        found += [Path(place, name) for name in inside if name.endswith(".state")]
        inside[:] = [name for name in inside if not name.endswith(".state")]
    return [path for path in sorted(found) if checkpoints(path)]


def read_newest(folder: Path, tell: Callable[[str], None] = lambda text: None) -> Checkpoint | None:
    """The newest checkpoint that is whole; `tell` hears of each that is not."""
    for path in checkpoints(folder):
        try:
            return read_checkpoint(path)
        except DataError as error:
            tell(str(error))
    return None


def read_checkpoint(path: Path) -> Checkpoint:
    """Everything of one checkpoint, or a DataError that names the file at fault."""
    manifest = read_manifest(path)
    tensors_bytes, tree_bytes = (
        read_checked(path / name, manifest["files"][name]) for name in (TENSORS, TREE)
    )
    try:
        tensors = parse_tensors(tensors_bytes)
        tree = unpack(json.loads(tree_bytes), tensors)
        if not isinstance(tree, dict):
            raise TypeError("the tree is no dict")
    except MALFORMED as error:
        raise DataError(f"{path}: not a checkpoint of this package ({error}); remove the folder") from None
    return Checkpoint(path, manifest, migrate(manifest["format"], tree))


def read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    try:
        manifest = json.loads(read_plain(file, MAX_JSON))
        whole = manifest["sum"] == manifest_sum(manifest)
        number, files = int(manifest["format"]), manifest["files"]
        known = sorted(files) == sorted((TENSORS, TREE)) and all(
            int(files[name]["bytes"]) >= 0 for name in files
        )
    except MALFORMED as error:
        raise DataError(f"{file}: not a manifest ({type(error).__name__}: {error}); remove {path}") from None
    if number > FORMAT:
        raise DataError(f"{file}: checkpoint format {number} is newer than {FORMAT}; update strongreplay")
    if not (whole and known) or number < 1:
        raise DataError(f"{file}: the manifest is damaged (its sum does not fit); remove {path}")
    found: dict[str, Any] = manifest
    return found


def read_checked(file: Path, entry: dict[str, Any], remedy: str = "") -> bytes:
    """A file whose size and sum are those of the manifest."""
    size, remedy = int(entry["bytes"]), remedy or f"remove {file.parent}"
    data = read_plain(file, size, remedy)
    if len(data) != size:
        raise DataError(f"{file}: {len(data)} bytes instead of {size}, it is cut off; {remedy}")
    if sha256(data) != entry["sha256"]:
        raise DataError(f"{file}: its SHA-256 does not fit the manifest, it is damaged; {remedy}")
    return data


def read_plain(file: Path, most: int, remedy: str = "") -> bytes:
    """The bytes of a regular file, no more than `most`; a link could lead anywhere and is refused."""
    remedy = remedy or f"remove {file.parent}"
    try:
        if file.is_symlink() or file.parent.is_symlink():
            raise DataError(f"{file}: a link where a file should be; {remedy}")
        if not file.is_file():
            raise DataError(f"{file}: missing; {remedy}")
        size = file.stat().st_size
        if size > most:
            raise DataError(f"{file}: {size} bytes, at most {most} expected; {remedy}")
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: not readable ({error.strerror or error}); make it readable") from None


# Format -> what turns a tree of that format into one of the next.
MIGRATIONS: dict[int, Callable[[Tree], Tree]] = {}


def migrate(number: int, tree: Tree) -> Tree:
    for older in range(number, FORMAT):
        tree = MIGRATIONS[older](tree)
    return tree


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def manifest_sum(manifest: dict[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sum"}
    return sha256(json.dumps(rest, sort_keys=True).encode())
