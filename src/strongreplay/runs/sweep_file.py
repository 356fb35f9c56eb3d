"""Files of sweeps: the options of `ser run` as TOML, with the table `set` for its settings.

stream = "split-digits"
method = ["er", "ser"]
memory = [200, 500]
seeds = 5
jobs = 2

[set]
train.lr = [0.03, 0.1]
ser.alpha = 0.3
"""

import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strongreplay.errors import ConfigError, DataError, unknown
from strongreplay.runs.config import resolve
from strongreplay.runs.recipes import CPU, PUBLISHED, TUNED, find_recipe
from strongreplay.runs.sweep import OPTIONS, Values, add_options
from strongreplay.storage import files
from strongreplay.storage.records import RunRecord, fingerprint, flatten

MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class SweepFile:
    options: dict[str, Any]  # by the name of the option, with _ for -
    settings: Values


def read_sweep(path: Path, known: Collection[str]) -> SweepFile:
    """Read a file; `known` are the names of the options."""
    try:
        text = files.read_bytes(path, MAX_BYTES, "give a TOML file", follow=True).decode()
        table = tomllib.loads(text)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); give a TOML file") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise ConfigError(f"{path}: not readable as TOML ({error}); correct the file") from None
    if not table:
        raise ConfigError(f"{path}: has no options; print one with: ser show RECORD --config")
    try:
        return parse_sweep(table, known)
    except ConfigError as error:
        raise ConfigError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from None


def parse_sweep(table: dict[str, Any], known: Collection[str]) -> SweepFile:
    settings = table.pop("set", {})
    if not isinstance(settings, dict):
        raise ConfigError("set must be a table, such as set.train.lr = 0.1, got another value")
    options = {key.replace("-", "_"): value for key, value in table.items()}
    for key, value in options.items():
        if key not in known:
            hint = f"settings are in the table set: set.{key} = ..." if isinstance(value, dict) else ""
            raise unknown("option", key, [*known, "set"], hint)
        if isinstance(value, dict):
            raise ConfigError(f"{key} must be a value, got a table; settings are in the table set")
    if isinstance(seeds := options.get("seeds"), list):
        options["seeds"] = "".join(f"{seed}," for seed in seeds)
    if "method" in options:
        options["method"] = as_list(options["method"])
    held = {name: as_list(options.pop(name)) for name in OPTIONS if name in options}
    values = {key: [value] for key, value in flatten(settings).items()}
    return SweepFile(options, add_options(values, held))


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def write_sweep(records: Sequence[RunRecord]) -> str:
    """The configuration of records that differ in nothing but the seed; `ser run` finds the same records."""
    first = records[0]
    if others := {fingerprint(record.config) for record in records} - {fingerprint(first.config)}:
        raise ConfigError(
            f"{len(others) + 1} configurations; a file has one: give records that differ in their seeds only"
        )
    recipe, settings = recipe_name_of(first), flatten(first.config)
    stream, method = settings.pop("stream"), settings.pop("method.name")
    code = {key: settings.pop(key) for key in list(settings) if key.startswith("code.")}
    settings.pop("seed")
    options = {"stream": stream, "method": method, "seeds": sorted(record.seed for record in records)}
    options |= {"protocol": CPU} if recipe == CPU else {} if recipe == PUBLISHED else {"recipe": recipe}
    known = {key: value for key, value in settings.items() if value is not None}
    if not leads_back(first, known, recipe):
        known = settings
    lines = [f"{key} = {to_toml(value)}" for key, value in options.items()]
    lines += [f"# {key.replace('.', ' of the ')}: {value}" for key, value in code.items()]
    return "\n".join([*lines, "", "[set]", *(f"{key} = {to_toml(value)}" for key, value in known.items())])


def leads_back(record: RunRecord, settings: Mapping[str, Any], recipe: str) -> bool:
    """Whether these settings give the record's configuration."""
    try:
        config = resolve(record.stream, record.method, None, record.seed, settings, recipe)
    except ConfigError:
        return False
    return fingerprint(config.to_dict()) == fingerprint(record.config)


def recipe_name_of(record: RunRecord) -> str:
    """The name of the recipe whose source the record has; published if there is none."""
    for name in (PUBLISHED, TUNED, CPU):
        try:
            source = find_recipe(record.stream, record.method, record.memory_size, name).source
        except ConfigError:
            continue
        if source == record.measured.get("recipe"):
            return name
    return CPU if record.protocol == CPU else PUBLISHED


def to_toml(value: Any) -> str:
    """A value in TOML, which is JSON but for null."""
    return json.dumps("none" if value is None else value, ensure_ascii=False)
