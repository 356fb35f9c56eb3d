"""Recipes: published hyper-parameters by stream, method and memory size, as TOML files beside this one. No
torch.

A file names its streams; `[train]` holds for every method on them, `[method]` for one, `[method.200]` for
one memory size. Keys are those of a run: `train.lr`, `method.alpha`, `net.width`. `source` says where the
values come from.
"""

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from strongreplay.records import flatten


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings for one stream, method and memory size, and where they were published."""

    stream: str
    method: str
    memory_size: int | None  # the published size these values belong to; none where size does not matter
    settings: dict[str, Any] = field(default_factory=dict)
    source: str = "defaults of the method; nothing published"


@cache
def read_recipes() -> dict[str, dict[str, Any]]:
    """The parsed file of each stream."""
    tables: dict[str, dict[str, Any]] = {}
    for file in sorted(files(__package__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            table = tomllib.loads(file.read_text(encoding="utf-8"))
            for stream in table.pop("streams"):  # a second file may add methods to some streams of a first
                tables[stream] = tables.get(stream, {}) | table
    return tables


def find_recipe(stream: str, method: str, memory_size: int | None = None) -> Recipe:
    """The published settings; for an unpublished memory size, those of the nearest published one."""
    table = read_recipes().get(stream, {})
    common = {f"train.{key}": value for key, value in table.get("train", {}).items()}
    own = table.get(method)
    if own is None:
        return Recipe(stream, method, None, common)
    settings = common | flatten({key: value for key, value in own.items() if not key.isdigit()})
    sizes = sorted(int(key) for key in own if key.isdigit())
    nearest = None
    if sizes:
        nearest = min(
            sizes, key=lambda size: abs(size - (memory_size if memory_size is not None else sizes[0]))
        )
        settings |= flatten(own[str(nearest)])
    source = settings.pop("source", table.get("source", ""))
    if nearest is not None and memory_size is not None and nearest != memory_size:
        source += f"; published for memory {nearest}"
    return Recipe(stream, method, nearest, settings, source)


def all_recipes() -> list[Recipe]:
    """Every published combination, for a list."""
    found = []
    for stream, table in read_recipes().items():
        for method, own in table.items():
            if isinstance(own, dict) and method != "train":
                sizes = [int(key) for key in own if key.isdigit()]
                found += [find_recipe(stream, method, size) for size in sizes or (None,)]
    return found
