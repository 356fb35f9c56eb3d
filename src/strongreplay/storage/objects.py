"""Objects: trees of tensors in files that are named by their content, so equal trees are stored once.

A manifest holds an entry for each tree: its plain values, and name and size of the file with its tensors.
"""

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load as parse_tensors
from safetensors.torch import save as pack_tensors

from strongreplay.errors import DataError
from strongreplay.storage import files
from strongreplay.storage.state import MALFORMED, Tree, pack, unpack

NAME = re.compile(r"[0-9a-f]{64}")

Entry = dict[str, Any]


class Objects:
    """The object files of a folder."""

    def __init__(self, folder: Path, remedy: str) -> None:
        self.folder, self.remedy = folder, remedy

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def keep(self, tree: Tree) -> Entry:
        """Write the tensors of a tree unless they are stored already; returns the entry of the tree.

        The caller syncs the folder before it writes a manifest with the entry.
        """
        plain, tensors = pack(tree)
        if not tensors:
            return {"tree": plain, "object": None, "bytes": 0}
        data = pack_tensors(tensors)
        entry = {"tree": plain, "object": files.sha256(data), "bytes": len(data)}
        try:
            self.read(entry)
        except DataError:  # missing or damaged
            files.write_bytes(self.file(entry["object"]), data, sync=False)
        return entry

    def read(self, entry: Entry) -> bytes | None:
        """The checked bytes of an entry's tensors."""
        if (name := entry["object"]) is None:
            return None
        return files.read_checked(self.file(name), {"bytes": entry["bytes"], "sha256": name}, self.remedy)

    def load(self, entry: Entry, where: Path) -> Tree:
        """The tree of an entry in the manifest at `where`."""
        data = self.read(entry)
        try:
            return unpack(entry["tree"], parse_tensors(data) if data else {})
        except MALFORMED as error:
            raise DataError(
                f"{where}: not a part of a model of this package ({error}); {self.remedy}"
            ) from None

    def expect(self, sizes: Mapping[str, int], user: str) -> None:
        """Raise if a file is missing or has another size; checksums are verified when a file is read."""
        for name, size in sizes.items():
            file = self.file(name)
            if not file.is_file() or file.stat().st_size != size:
                raise DataError(f"{file}: {user} needs it, but it is missing or cut off; {self.remedy}")

    def sweep(self, named: Collection[str]) -> None:
        """Remove the objects that are not in `named`, and sync, so a power cut does not bring them back."""
        if os.path.isdir(self.folder):
            for path in sorted(self.folder.iterdir()):
                if NAME.fullmatch(path.stem) and path.stem not in named:
                    files.remove(path)
            files.sync_folder(self.folder)


def is_entry(entry: Any) -> bool:
    """Whether an entry is valid: its file name must be an object's name, never a path out of the folder."""
    name, size = entry["object"], entry["bytes"]
    named = size == 0 if name is None else bool(NAME.fullmatch(name))
    return named and type(size) is int and size >= 0 and "tree" in entry
