"""State: a tree of tensors and plain values, written as a checkpoint and read back to the bit."""

import contextlib
import json
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
from strongreplay.storage import files
from strongreplay.storage.checkpoints import (
    FORMAT,
    MANIFEST,
    TENSORS,
    TREE,
    checkpoints,
    last_good,
    next_path,
    read_files,
)

# Exceptions of parsing and unpacking if this package did not write the bytes.
MALFORMED = (
    SafetensorError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    OverflowError,
)

Tree = Any  # nested dicts, lists and tuples of tensors, numbers, texts, booleans and None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk, with checked checksums."""

    path: Path
    manifest: dict[str, Any]
    tree: Tree


def pack(tree: Tree) -> tuple[Tree, dict[str, Tensor]]:
    """The tree with every tensor replaced by its name, and the tensors by name."""
    tensors: dict[str, Tensor] = {}
    storages: set[int] = set()

    def keep(tensor: Tensor, name: str) -> Tree:
        while name in tensors:  # the keys "a/b" and "a", "b" give the same name
            name += "'"
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        # safetensors refuses tensors that share memory, such as tied weights and overlapping views
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
    """The inverse of `pack`; invalid input is a KeyError, TypeError or ValueError."""
    if not isinstance(node, dict):
        if node is None or isinstance(node, bool | int | float | str):
            return node
        raise TypeError(f"got a {type(node).__name__} where a value should be")
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
    """Write the next checkpoint completely, then remove all but the newest `keep`."""
    path = next_path(folder)
    plain, tensors = pack(tree)
    try:
        files.make_folder(folder)
        files.clear_leftovers(folder)
        write_files(path, {TENSORS: pack_tensors(tensors), TREE: json.dumps(plain).encode()}, about)
    except OSError as error:
        with contextlib.suppress(OSError):  # the folder may not be empty
            folder.rmdir()
        raise RunError(
            f"{path}: the checkpoint could not be written ({error.strerror or error}); "
            f"{remedy}. {last_good(folder)}"
        ) from None
    for old in checkpoints(folder)[keep:]:
        files.discard(old)
    return path


def write_files(path: Path, contents: dict[str, bytes], about: dict[str, Any]) -> None:
    """Write the files of a checkpoint and their manifest."""
    entries = {name: {"bytes": len(data), "sha256": files.sha256(data)} for name, data in contents.items()}
    manifest = {
        "format": FORMAT,
        "package": __version__,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        **about,
        "files": entries,
    }
    manifest["sum"] = files.manifest_sum(manifest)
    with files.new_folder(path) as folder:
        for name, data in {**contents, MANIFEST: json.dumps(manifest, indent=1).encode()}.items():
            with files.new_file(folder / name) as file:
                file.write(data)


def read_newest(folder: Path, tell: Callable[[str], None] = lambda text: None) -> Checkpoint | None:
    """The newest complete checkpoint; `tell` is called with a message about each damaged one."""
    for path in checkpoints(folder):
        try:
            return read_checkpoint(path)
        except DataError as error:
            tell(str(error))
    return None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint, or raise a DataError that names the damaged file."""
    manifest, tensors, tree = read_files(path)
    try:
        found = unpack(files.parse_json(tree), parse_tensors(tensors))
        if not isinstance(found, dict):
            raise TypeError("the tree is no dict")
    except MALFORMED as error:
        raise DataError(f"{path}: not a checkpoint of this package ({error}); remove the folder") from None
    return Checkpoint(path, manifest, found)
