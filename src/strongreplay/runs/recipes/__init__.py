"""Recipes: published hyper-parameters by stream, method and memory size, as TOML files in this folder.

A file names its streams; `[train]` applies to every method on them, `[method]` to one method, `[method.200]`
to one memory size. Keys are those of a run: `train.lr`, `method.alpha`, `net.width`. `source` says where the
values come from. A file with `recipe = "tuned"` has our own settings, which override published ones.

A protocol is a recipe for whole tables: `full` is the published one; `cpu` (files with `recipe = "cpu"`) is
for machines without a GPU. Its `[every]` applies to all methods and overrides published values. This module
does not import torch. `ser tune` writes a file of a user's own, which also lists its `[[trials]]`.
"""

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from strongreplay.errors import ConfigError, unknown
from strongreplay.storage.records import flatten

PUBLISHED, TUNED, CPU = "published", "tuned", "cpu"
PROTOCOLS = ("full", CPU)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings for one stream, method and memory size, and where they come from."""

    stream: str
    method: str
    memory_size: int | None  # the published size of these values; none if they hold for any size
    settings: dict[str, Any] = field(default_factory=dict)
    source: str = "defaults of the method; nothing published"
    name: str = PUBLISHED


def parse_recipe(text: str, where: str) -> dict[str, Any]:
    """Parse and check the tables of one recipe file; the run checks whether the settings exist."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not readable as TOML ({error}); correct the file") from None
    streams = table.get("streams")
    if not isinstance(streams, list) or not streams or not all(isinstance(name, str) for name in streams):
        raise _misfit(where, "streams", 'a list of names such as ["p-mnist"]', streams)
    for section, held in table.items():
        if section == "train":
            _check_settings(held, f"{where}: [train]")
        elif section in ("source", "recipe"):
            _check_text(held, section, where)
        elif section == "every":
            _check_section(held, f"{where}: [every]", has_sizes=False)
        elif section not in ("streams", "trials"):
            _check_section(held, f"{where}: [{section}]")
    table.pop("trials", None)  # of a search, for people
    return table


def _check_section(section: Any, where: str, has_sizes: bool = True) -> None:
    """Check a method's section: tables of settings, the source, and one level of memory sizes."""
    if not isinstance(section, dict):
        raise _misfit(where, "", "a table", section)
    for key, value in section.items():
        if key == "source":
            _check_text(value, key, where)
        elif not key.isdigit():
            _check_settings(value, f"{where} {key}")
        elif has_sizes and re.fullmatch("0|[1-9][0-9]{0,8}", key):  # as `str` writes it; looked up like that
            _check_section(value, f"{where} {key}", has_sizes=False)
        else:
            raise _misfit(where, "a memory size", "a number such as 200 directly below the method", key)


def _check_settings(settings: Any, where: str) -> None:
    """Check a flat table of settings; a setting has a section and a key, so there are no further levels."""
    if not isinstance(settings, dict):
        raise _misfit(where, "", "a table of settings such as train.lr = 0.1", settings)
    for key, value in settings.items():
        if isinstance(value, dict):
            raise _misfit(where, key, "a value", value)


def _check_text(value: Any, key: str, where: str) -> None:
    if not isinstance(value, str):
        raise _misfit(where, key, "a text", value)


def _misfit(where: str, key: str, rule: str, got: object) -> ConfigError:
    # Values other than text are shown by type only: tables may be too deep and numbers too long to print.
    shown = repr(got[:60]) if isinstance(got, str) else f"a value of type {type(got).__name__}"
    return ConfigError(f"{where}: {f'{key} ' if key else ''}must be {rule}, got {shown}; correct the file")


def tables_of(name: str) -> dict[str, dict[str, Any]]:
    """The tables of each stream in the recipes of this name, or in a user's file."""
    if not name.endswith(".toml"):
        return read_recipes(name)
    try:
        table = parse_recipe(Path(name).read_text(encoding="utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--recipe {name}: cannot be read ({error}); give the path of a recipe") from None
    table.pop("recipe", None)
    return dict.fromkeys(table.pop("streams"), table)


@cache
def read_recipes(name: str = PUBLISHED) -> dict[str, dict[str, Any]]:
    """The tables of each stream, from all files with recipes of this name."""
    tables: dict[str, dict[str, Any]] = {}
    for file in sorted(files(__package__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            table = parse_recipe(file.read_text(encoding="utf-8"), file.name)
            if table.pop("recipe", PUBLISHED) == name:
                for stream in table.pop("streams"):  # several files may have methods of one stream
                    tables[stream] = tables.get(stream, {}) | table
    return tables


def find_recipe(stream: str, method: str, memory_size: int | None = None, name: str = PUBLISHED) -> Recipe:
    """The recipe of a name; if it has no settings for the memory size, those of the nearest size are used."""
    table = tables_of(name).get(stream, {})
    own, every = table.get(method), table.get("every")
    settings = {f"train.{key}": value for key, value in table.get("train", {}).items()} | flatten(every or {})
    source, size = table.get("source", ""), None
    if name != PUBLISHED:
        if own is None and every is None:
            raise _no_recipe(name, stream, method)
        below = find_recipe(stream, method, memory_size)
        settings, size = below.settings | settings, below.memory_size
        source += f"; else: {below.source}" if every else ""
    elif own is None:
        return Recipe(stream, method, None, settings)
    own = own or {}
    settings |= flatten({key: value for key, value in own.items() if not key.isdigit()})
    if sizes := sorted(int(key) for key in own if key.isdigit()):
        size = min(sizes, key=lambda size: abs(size - (sizes[0] if memory_size is None else memory_size)))
        settings |= flatten(own[str(size)])
    source = settings.pop("source", source)
    if sizes and memory_size is not None and size != memory_size:
        source += f"; {name} for memory {size}"
    return Recipe(stream, method, size, settings, source, name)


def recipe_of(protocol: str, recipe: str = PUBLISHED) -> str:
    """The name of the recipe that a protocol uses."""
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS, "")
    if protocol == CPU and recipe != PUBLISHED:
        raise ConfigError(f"--protocol cpu has its own recipe, got --recipe {recipe}; leave one of them out")
    return CPU if protocol == CPU else recipe


def _no_recipe(name: str, stream: str, method: str) -> ConfigError:
    tables = tables_of(name)
    whole = [stream for stream, table in tables.items() if "every" in table]
    there = whole or [
        f"{stream} {method}"
        for stream, table in tables.items()
        for method, own in table.items()
        if isinstance(own, dict) and method != "train"
    ]
    known = f"there is one for {', '.join(dict.fromkeys(there))}" if there else "see: ser list recipes"
    return ConfigError(f"no recipe '{name}' for {stream} {method}; {known}")


def all_recipes() -> list[Recipe]:
    """All recipes, for `ser list`."""
    found = []
    for name in (PUBLISHED, TUNED, CPU):
        for stream, table in read_recipes(name).items():
            methods = (read_recipes().get(stream, {}) if "every" in table else {}) | table
            for method, own in methods.items():
                if isinstance(own, dict) and method not in ("train", "every"):
                    sizes = [int(key) for key in own if key.isdigit()]
                    found += [find_recipe(stream, method, size, name) for size in sizes or (None,)]
    return found
