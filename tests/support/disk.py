"""A disk that fails on purpose: the Nth call of the system fails, or every call is written down.

`Disk` stands between the package and the functions of `os`; `tests/storage/test_files.py` checks that all
writes of the package go through them. From what it wrote down, `after_power_cut` makes the folders that a
disk may hold when the power goes: what was synced is there, of the rest any part may be missing.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

FEW = 3  # changes that were not synced: up to so many, every choice of them is tried
NAMES = ("write", "fsync", "ftruncate", "replace", "rename", "unlink", "mkdir", "rmdir")


@dataclass
class Call:
    """One change of the disk: of a file's content, or of a name in a folder."""

    kind: str  # write, truncate, sync, sync folder, name, unname
    node: int  # the file or folder that is changed
    name: str = ""
    target: int = 0  # what gets the name
    offset: int = 0
    data: bytes = b""
    moved_from: tuple[int, str] | None = None
    is_folder: bool = False  # what gets the name


@dataclass
class Disk:
    """Counts the calls on files in a folder; the one with the number `fail_at` fails with `error`."""

    root: Path
    fail_at: int = -1
    error: int = errno.EIO
    count: int = 0
    failed: str = ""
    calls: list[Call] = field(default_factory=list)
    paths: dict[int, str] = field(default_factory=dict)  # of open files
    nodes: dict[str, int] = field(default_factory=dict)  # of what is there, by path
    flags: dict[int, int] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)  # where the next write goes, by open file

    def install(self, patch: pytest.MonkeyPatch) -> "Disk":
        self.real = {name: getattr(os, name) for name in (*NAMES, "open", "close")}
        for path in [self.root, *sorted(self.root.rglob("*"))]:
            self.node(str(path))
        for name in (*NAMES, "open", "close"):
            patch.setattr(os, name, getattr(self, name))
        lock = fcntl.flock

        def flock(handle: int, operation: int) -> None:
            self.step("flock", self.paths.get(handle, ""))
            lock(handle, operation)

        patch.setattr(fcntl, "flock", flock)
        return self

    def node(self, path: str) -> int:
        return self.nodes.setdefault(path, len(self.nodes) + 1)

    def inside(self, path: str) -> bool:
        return path == str(self.root) or path.startswith(f"{self.root}/")

    def step(self, name: str, path: str) -> None:
        """Count a call; the chosen one fails."""
        if not self.inside(path):
            return
        self.count += 1
        if self.count - 1 == self.fail_at:
            self.failed = name
            raise OSError(self.error, os.strerror(self.error), path)

    def path(self, path: Any, dir_fd: int | None = None) -> str:
        place = os.fspath(path)
        return (
            os.path.join(self.paths.get(dir_fd, ""), place) if dir_fd is not None else os.path.abspath(place)
        )

    def note(self, path: str, call: Call) -> None:
        if self.inside(path):
            self.calls.append(call)

    def name_it(self, path: str, node: int, moved_from: tuple[int, str] | None = None) -> None:
        folder, name = os.path.split(path)
        is_folder = os.path.isdir(path)
        self.note(
            path,
            Call("name", self.node(folder), name, node, moved_from=moved_from, is_folder=is_folder),
        )

    # The functions of os

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        place = self.path(path, dir_fd)
        new = bool(flags & os.O_CREAT) and not os.path.lexists(place)
        if new:
            self.step("open", place)
        handle: int = self.real["open"](path, flags, mode, dir_fd=dir_fd)
        self.paths[handle], self.flags[handle], self.places[handle] = place, flags, 0
        if new:
            self.nodes.pop(place, None)
            self.name_it(place, self.fresh(place))
        return handle

    def fresh(self, path: str) -> int:
        """The number of a new file or folder."""
        self.nodes[path] = number = max(self.nodes.values(), default=0) + 1
        self.nodes[f"once {number}"] = number  # so that no number comes twice
        return number

    def close(self, handle: int) -> None:
        self.paths.pop(handle, None)
        self.real["close"](handle)

    def write(self, handle: int, data: Any) -> int:
        path = self.paths.get(handle, "")
        half = bytes(data)[: len(data) // 2]
        try:
            self.step("write", path)
        except OSError:
            self.put(handle, path, half)  # a part of it is there all the same
            raise
        return self.put(handle, path, bytes(data))

    def put(self, handle: int, path: str, data: bytes) -> int:
        if self.inside(path):
            end = os.fstat(handle).st_size
            place = end if self.flags[handle] & os.O_APPEND else self.places[handle]
            self.calls.append(Call("write", self.node(path), offset=place, data=data))
            self.places[handle] = place + len(data)
        written: int = self.real["write"](handle, data)
        return written

    def ftruncate(self, handle: int, size: int) -> None:
        path = self.paths.get(handle, "")
        self.step("ftruncate", path)
        self.real["ftruncate"](handle, size)
        self.note(path, Call("truncate", self.node(path), offset=size))

    def fsync(self, handle: int) -> None:
        path = self.paths.get(handle, "")
        self.step("fsync", path)
        self.note(path, Call("sync folder" if os.path.isdir(path) else "sync", self.node(path)))

    def replace(self, old: Any, new: Any, **more: Any) -> None:
        self.move("replace", self.path(old), self.path(new))

    def rename(self, old: Any, new: Any, **more: Any) -> None:
        self.move("rename", self.path(old), self.path(new))

    def move(self, kind: str, old: str, new: str) -> None:
        self.step(kind, new)
        self.real[kind](old, new)
        node, (folder, name) = self.nodes.pop(old, 0), os.path.split(old)
        for path in [path for path in self.nodes if path.startswith(f"{old}/")]:
            self.nodes[new + path[len(old) :]] = self.nodes.pop(path)
        self.nodes[new] = node
        self.name_it(new, node, (self.node(folder), name))

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self.take_away("unlink", path, dir_fd)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self.take_away("rmdir", path, dir_fd)

    def take_away(self, kind: str, path: Any, dir_fd: int | None) -> None:
        place = self.path(path, dir_fd)
        self.step(kind, place)
        self.real[kind](path, dir_fd=dir_fd)
        self.nodes.pop(place, None)
        folder, name = os.path.split(place)
        self.note(place, Call("unname", self.node(folder), name))

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        place = self.path(path, dir_fd)
        self.step("mkdir", place)
        self.real["mkdir"](path, mode, dir_fd=dir_fd)
        self.nodes.pop(place, None)
        self.name_it(place, self.fresh(place))


# What a disk may hold after a power cut


@dataclass
class Image:
    """Contents of files and names in folders, by number."""

    contents: dict[int, bytes]
    names: dict[int, dict[str, int]]

    def copy(self) -> "Image":
        return Image(dict(self.contents), {node: dict(names) for node, names in self.names.items()})

    def apply(self, call: Call) -> None:
        if call.kind in ("write", "truncate"):
            old = self.contents.get(call.node, b"")
            if call.kind == "truncate":
                self.contents[call.node] = old[: call.offset]
            else:
                rest = old[call.offset + len(call.data) :]
                self.contents[call.node] = old[: call.offset].ljust(call.offset, b"\0") + call.data + rest
        elif call.kind == "name":
            if call.moved_from:
                self.names.get(call.moved_from[0], {}).pop(call.moved_from[1], None)
            self.names.setdefault(call.node, {})[call.name] = call.target
        elif call.kind == "unname":
            self.names.get(call.node, {}).pop(call.name, None)

    def tree(self, node: int, folders: set[int]) -> Any:
        """The whole as nested values, by which equal ones are known."""
        if node not in folders:
            return self.contents.get(node, b"")
        inside = self.names.get(node, {})
        return {name: self.tree(inner, folders) for name, inner in sorted(inside.items())}


def write_tree(tree: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, inner in tree.items():
        if isinstance(inner, dict):
            write_tree(inner, folder / name)
        else:
            (folder / name).write_bytes(inner)


def image_of(disk: Disk) -> tuple[Image, set[int]]:
    """What is there before the first call, all of it synced; and which numbers are folders."""
    image, folders = Image({}, {}), set[int]()
    for path in [disk.root, *sorted(disk.root.rglob("*"))]:
        node = disk.node(str(path))
        if path.is_dir():
            folders.add(node)
            image.names[node] = {}
        else:
            image.contents[node] = path.read_bytes()
        if path != disk.root:
            image.names[disk.node(str(path.parent))][path.name] = node
    return image, folders


def synced_later(calls: list[Call], place: int) -> bool:
    """Whether a change was followed by a sync of what it changed."""
    call = calls[place]
    kind = "sync" if call.kind in ("write", "truncate") else "sync folder"
    return any(later.kind == kind and later.node == call.node for later in calls[place + 1 :])


def choices(loose: list[int]) -> Iterator[set[int]]:
    """Which of the changes that were not synced are on disk: every choice of few, or the first so many."""
    if len(loose) <= FEW:
        for size in range(len(loose) + 1):
            yield from map(set, combinations(loose, size))
    else:
        for end in range(len(loose) + 1):
            yield set(loose[:end])
        for missing in loose:
            yield set(loose) - {missing}


def after_power_cut(
    before: Image, folders: set[int], calls: list[Call], root: int
) -> Iterator[tuple[int, Any]]:
    """Every tree that may be there if the power goes after so many calls, and that number."""
    folders = folders | {call.target for call in calls if call.is_folder}
    seen = set[str]()
    for cut in range(len(calls) + 1):
        done = calls[:cut]
        changes = [place for place, call in enumerate(done) if not call.kind.startswith("sync")]
        loose = [place for place in changes if not synced_later(done, place)]
        for kept in choices(loose):
            image = before.copy()
            for place in changes:
                if place in kept or place not in loose:
                    image.apply(done[place])
            tree = image.tree(root, folders)
            key = f"{cut == len(calls)}{tree!r}"
            if key not in seen:
                seen.add(key)
                yield cut, tree
