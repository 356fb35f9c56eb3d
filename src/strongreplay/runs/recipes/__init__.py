"""Recipes: published hyper-parameters by stream, method and memory size, as TOML files beside this one. No
torch.

A file names its streams; `[train]` holds for every method on them, `[method]` for one, `[method.200]` for
one memory size. Keys are those of a run: `train.lr`, `method.alpha`, `net.width`. `source` says where the
values come from. A file with `recipe = "tuned"` has settings of our own, on top of the published ones.
"""

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from strongreplay.errors import ConfigError
from strongreplay.storage.records import flatten

PUBLISHED, TUNED = "published", "tuned"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings for one stream, method and memory size, and where they come from."""

    stream: str
    method: str
    memory_size: int | None  # the published size these values belong to; none where size does not matter
    settings: dict[str, Any] = field(default_factory=dict)
    source: str = "defaults of the method; nothing published"
    name: str = PUBLISHED


def parse_recipe(text: str, where: str) -> dict[str, Any]:
    """The tables of one recipe file, or a ConfigError; whether a setting exists is for the run to say."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not readable as TOML ({error}); mend the file") from None
    streams = table.get("streams")
    if not isinstance(streams, list) or not streams or not all(isinstance(name, str) for name in streams):
        raise _misfit(where, "streams", 'a list of names such as ["p-mnist"]', streams)
    for section, held in table.items():
        if section == "train":
            _check_settings(held, f"{where}: [train]")
        elif section in ("source", "recipe"):
            _check_text(held, section, where)
        elif section != "streams":
            _check_section(held, f"{where}: [{section}]")
    return table


def _check_section(section: Any, where: str, has_sizes: bool = True) -> None:
    """Tables of settings, the source, and one level of memory sizes."""
    if not isinstance(section, dict):
        raise _misfit(where, "", "a table", section)
    for key, value in section.items():
        if key == "source":
            _check_text(value, key, where)
        elif not key.isdigit():
            _check_settings(value, f"{where} {key}")
        elif has_sizes and re.fullmatch("0|[1-9][0-9]{0,8}", key):  # as `str` writes it, so that it is found
            _check_section(value, f"{where} {key}", has_sizes=False)
        else:
            raise _misfit(where, "a memory size", "a number such as 200 straight below the method", key)


def _check_settings(settings: Any, where: str) -> None:
    """A flat table: a setting is named by its section and its key, so there is nothing deeper."""
    if not isinstance(settings, dict):
        raise _misfit(where, "", "a table of settings such as train.lr = 0.1", settings)
    for key, value in settings.items():
        if isinstance(value, dict):
            raise _misfit(where, key, "a value", value)


def _check_text(value: Any, key: str, where: str) -> None:
    if not isinstance(value, str):
        raise _misfit(where, key, "a text", value)


def _misfit(where: str, key: str, rule: str, got: object) -> ConfigError:
    # Of what is no text the type is told: tables may be too deep and numbers too long to be shown.
    shown = repr(got[:60]) if isinstance(got, str) else f"a value of type {type(got).__name__}"
    return ConfigError(f"{where}: {f'{key} ' if key else ''}must be {rule}, got {shown}; mend the file")


@cache
def read_recipes(name: str = PUBLISHED) -> dict[str, dict[str, Any]]:
    """The parsed files of each stream that hold recipes of this name."""
    tables: dict[str, dict[str, Any]] = {}
    for file in sorted(files(__package__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            table = parse_recipe(file.read_text(encoding="utf-8"), file.name)
            if table.pop("recipe", PUBLISHED) == name:
                for stream in table.pop("streams"):  # a second file may add methods to streams of a first
                    tables[stream] = tables.get(stream, {}) | table
    return tables


def find_recipe(stream: str, method: str, memory_size: int | None = None, name: str = PUBLISHED) -> Recipe:
    """The settings of a name; for a memory size that has none, those of the nearest that has."""
    table = read_recipes(name).get(stream, {})
    common = {f"train.{key}": value for key, value in table.get("train", {}).items()}
    own = table.get(method)
    if name != PUBLISHED:
        if own is None:
            raise _no_recipe(name, stream, method)
        common = find_recipe(stream, method, memory_size).settings | common
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
        source += f"; {name} for memory {nearest}"
    return Recipe(stream, method, nearest, settings, source, name)


def _no_recipe(name: str, stream: str, method: str) -> ConfigError:
    there = [f"{r.stream} {r.method}" for r in all_recipes() if r.name == name]
    known = f"there is one for {', '.join(dict.fromkeys(there))}" if there else "see: ser list recipes"
    return ConfigError(f"no recipe '{name}' for {stream} {method}; {known}")


def all_recipes() -> list[Recipe]:
    """Every combination there is, for a list."""
    found = []
    for name in (PUBLISHED, TUNED):
        for stream, table in read_recipes(name).items():
            for method, own in table.items():
                if isinstance(own, dict) and method != "train":
                    sizes = [int(key) for key in own if key.isdigit()]
                    found += [find_recipe(stream, method, size, name) for size in sizes or (None,)]
    return found
