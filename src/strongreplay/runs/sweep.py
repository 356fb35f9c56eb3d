"""Sweep: settings with several values, some of them for one method alone, as the configurations of all runs.

A text with commas is several values, and one run is made for each: `train.lr=0.03,0.1`. A setting that is a
list itself takes commas for one list, `train.milestones=35,45`; several lists have brackets, `[35,45],[40]`.
A key given twice has the values of both. `ser.alpha` and `ser.train.lr` are for the method ser alone.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from strongreplay.errors import ConfigError
from strongreplay.methods import METHODS, MethodRow, method_row
from strongreplay.runs.config import DataConfig, EvalConfig, RunConfig, TrainConfig, resolve
from strongreplay.runs.recipes import PUBLISHED
from strongreplay.storage.records import flatten, format_setting, record_path
from strongreplay.training.settings import net_section, split_pairs, takes_list

SECTIONS = ("method", "net", "train", "eval", "data")
MEMORY = "memory"  # the key of --memory, which methods without a memory ignore
OPTIONS = {"memory": "method.memory_size", "net": "net.name", "tasks": "data.num_tasks"}
MOST_RUNS = 10_000
LISTS = re.compile(r"\[[^\[\]]*\](\s*,\s*\[[^\[\]]*\])*")

Values = dict[str, list[Any]]  # the values of each key, as they were given


def collect_settings(pairs: list[str]) -> Values:
    """The values of each key of `KEY=VALUE` texts."""
    settings: Values = {}
    for key, value in split_pairs(pairs):
        settings.setdefault(key, []).append(value)
    return settings


def add_options(settings: Values, options: Mapping[str, Sequence[Any]]) -> Values:
    """Settings, and the options that stand for one of them; both with different values are an error."""
    found, faults = dict(settings), []
    for name, key in OPTIONS.items():
        given = split_commas(options.get(name, ()))
        if options.get(name) and not given:
            faults.append(f"--{name} has no value; give one, or leave it out")
        if name in ("memory", "tasks") and (wrong := [one for one in given if not is_whole(one)]):
            faults.append(f"--{name} takes whole numbers >= 0, with commas if several, got '{wrong[0]}'")
        if given and split_commas(found.get(key, given)) != given:
            held = ",".join(split_commas(found[key]))
            faults.append(f"--{name} {','.join(given)} contradicts {key}={held}; leave one of them out")
        if given:
            found.pop(key, None)
            found[MEMORY if name == "memory" else key] = given
    if not faults and MEMORY in found:
        found[MEMORY] = [int(size) for size in found[MEMORY]]
    if faults:
        raise ConfigError("\n".join(faults))
    return found


def is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit()


def split_commas(values: Iterable[Any]) -> list[str]:
    """All entries of texts with commas."""
    return [part.strip() for value in values for part in str(value).split(",") if part.strip()]


def override(below: Values, above: Values) -> Values:
    """All settings of both; those above win."""
    sizes = {MEMORY, OPTIONS["memory"]}
    hidden = sizes if sizes & set(above) else set[str]()
    return {key: values for key, values in below.items() if key not in hidden} | above


@dataclass(frozen=True, slots=True)
class Sweep:
    """Methods, seeds and settings of many runs on one stream."""

    stream: str
    methods: Sequence[str]
    seeds: Sequence[int] = (0,)
    settings: Values = field(default_factory=dict)
    recipe: str = PUBLISHED

    def reading_settings(self) -> list[dict[str, Any]]:
        """The combinations of the settings that decide how a user's own data are read."""
        keys = [key for key in ("data.side", "data.test") if key in self.settings]
        values = [expand(self.settings[key], float) for key in keys]
        return [dict(zip(keys, chosen, strict=True)) for chosen in product(*values)]

    def without_absent(self, keys: Iterable[str]) -> "Sweep":
        """Leave out those of the keys that are for a method which is not run."""
        absent = {key for key in keys if self.owner_of(key) not in (None, *self.methods)}
        return replace(self, settings={k: v for k, v in self.settings.items() if k not in absent})

    def configs(self) -> list[RunConfig]:
        """The configuration of every run, each once, or one ConfigError that lists all errors."""
        found: dict[Path, RunConfig] = {}
        faults = self.unused()
        for method in self.methods:
            try:
                for config in self.configs_of(method):
                    found.setdefault(record_path(Path(), config.to_dict()), config)
            except ConfigError as error:
                faults += [line for line in str(error).splitlines() if line not in faults]
        if faults:
            raise ConfigError("\n".join(faults))
        return list(found.values())

    def configs_of(self, method: str) -> Iterator[RunConfig]:
        try:
            row = method_row(method)
        except ConfigError:
            resolve(self.stream, method)  # raises the error, and that of the stream
            raise
        settings = self.settings_of(method)
        self.check_fields(row, settings)
        sizes = settings.pop(MEMORY, None)
        axes = {key: expand(values, annotation_of(key, row, settings)) for key, values in settings.items()}
        if sizes and row.has_memory:
            axes[MEMORY] = expand(sizes, int)
        if (count := prod(map(len, axes.values())) * len(self.seeds)) > MOST_RUNS:
            raise ConfigError(
                f"{count:,} runs of {method}, expected at most {MOST_RUNS:,}; give fewer values"
            )
        for values in product(*axes.values()):
            chosen = dict(zip(axes, values, strict=True))
            size = chosen.pop(MEMORY, None)
            for seed in self.seeds:
                yield resolve(self.stream, method, size, seed, chosen, self.recipe)

    def settings_of(self, method: str) -> Values:
        """The settings of all methods, and those of this one alone, which win."""
        own = {rest: values for key, values in self.settings.items() if (rest := own_key(method, key))}
        shared = {key: values for key, values in self.settings.items() if self.owner_of(key) is None}
        return override(shared, own)

    def owner_of(self, key: str) -> str | None:
        """The method that a setting is for; None if it is for all."""
        known = [*self.methods, *METHODS]
        return next((name for name in known if own_key(name, key)), None)

    def unused(self) -> list[str]:
        """A line for each setting that no run would use."""
        faults = []
        for key in self.settings:
            owner = self.owner_of(key)
            if owner is not None and owner not in self.methods:
                faults.append(
                    f"{key} is for {owner}, which is not among the methods ({', '.join(self.methods)}); "
                    f"add it with --method, or leave {key} out"
                )
            elif owner is None and not any(
                self.settings_of(method).get(key) is self.settings[key] for method in self.methods
            ):
                name = "--memory" if key == MEMORY else key
                faults.append(f"{name} is used by no run: each method has its own value; leave {name} out")
        return faults

    def check_fields(self, row: MethodRow, settings: Values) -> None:
        """Name the method if it lacks a setting that another one has."""
        faults = []
        for key in settings:
            section, _, name = key.partition(".")
            if section != "method" or name in row.config.model_fields:
                continue
            if others := [other for other in self.methods if has_setting(other, name)]:
                hint = "use --memory" if name == "memory_size" else f"use {others[0]}.{name}"
                faults.append(f"{row.name} has no setting '{name}', {', '.join(others)} has; {hint}")
        if faults:
            raise ConfigError("\n".join(faults))


def own_key(method: str, key: str) -> str | None:
    """The key without the method's name before it: ser.alpha is method.alpha of ser; None if it has none."""
    rest = key.removeprefix(f"{method}.")
    if rest == key:
        return None
    return rest if rest.partition(".")[0] in SECTIONS and "." in rest else f"method.{rest}"


def has_setting(method: str, name: str) -> bool:
    try:
        return name in method_row(method).config.model_fields
    except ConfigError:
        return False


def annotation_of(key: str, row: MethodRow, settings: Values) -> Any:
    """The type of a setting; None if there is no such setting."""
    section, _, name = key.partition(".")
    if section == "net":
        nets = [net_section(net) for net in split_commas(settings.get("net.name", ()))]
        found = [net.model_fields for net in (*nets, net_section(None)) if name in net.model_fields]
        return found[0][name].annotation if found else None
    kinds: dict[str, type[BaseModel]] = {
        "method": row.config,
        "train": TrainConfig,
        "eval": EvalConfig,
        "data": DataConfig,
    }
    held = kinds[section].model_fields.get(name) if section in kinds else None
    return held.annotation if held else None


def expand(values: Sequence[Any], annotation: Any) -> list[Any]:
    """The values of a setting, each once, from texts with commas, brackets, and arrays of a file."""
    found = [one for value in values for one in expand_one(value, takes_list(annotation))]
    return list({format_setting(one): one for one in found}.values())


def expand_one(value: Any, is_list: bool) -> list[Any]:
    if isinstance(value, list):
        if is_list and not any(isinstance(one, list) for one in value):
            return [value]
        return [part for one in value for part in expand_one(one, is_list)]
    if not isinstance(value, str):
        return [value]
    if is_list:
        return re.findall(r"\[[^\[\]]*\]", value) if LISTS.fullmatch(value) else [value]
    return split_commas([value]) or [value]


def differences(configs: Sequence[RunConfig]) -> list[str]:
    """The settings in which each configuration differs from others of its method, such as train.lr=0.1."""
    flat = [flatten(config.to_dict()) for config in configs]
    values: dict[tuple[str, str], set[str]] = {}
    for config in flat:
        for key, value in config.items():
            values.setdefault((config["method.name"], key), set()).add(format_setting(value))
    return [
        " ".join(
            f"{key}={format_setting(value)}"
            for key, value in config.items()
            if key not in ("seed", "method.memory_size") and len(values[config["method.name"], key]) > 1
        )
        for config in flat
    ]
