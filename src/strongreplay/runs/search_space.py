"""Which settings are searched, and within which limits: from a method's typed settings, or from a TOML file.

By default the learning rate and every number of the method with a fraction are searched, from a tenth to ten
times the recipe's value on a logarithmic scale, within the limits of its type. A number between 0.9 and 1,
such as a decay, is searched by its distance to 1. Memory, epochs, batch size and variants are not: they would
give methods different budgets. A file names settings for all methods or for one:

    [every]
    train.lr = { low = 0.01, high = 1.0, log = true }
    [ser]
    method.alpha = { low = 0.05, high = 2.0, log = true }
    method.early = [true, false]
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from strongreplay.errors import ConfigError
from strongreplay.runs.config import RunConfig

if TYPE_CHECKING:
    from optuna import Trial

FACTOR = 10.0  # from a tenth to ten times the recipe's value
NEAR_ONE = 0.9


@dataclass(frozen=True, slots=True)
class Range:
    """The values that a setting may take."""

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    below_one: bool = False  # the distance to 1 is searched
    whole: bool = False  # whole numbers
    choices: tuple[Any, ...] = ()

    def suggest(self, trial: "Trial", key: str) -> Any:
        if self.choices:
            return trial.suggest_categorical(key, self.choices)
        if self.whole:
            return trial.suggest_int(key, int(self.low), int(self.high), log=self.log)
        return self.value(trial.suggest_float(key, self.low, self.high, log=self.log))

    def value(self, drawn: Any) -> Any:
        """The setting of a drawn number, rounded to a few digits."""
        if self.choices or self.whole:
            return drawn
        return float(f"{1 - drawn:.6g}" if self.below_one else f"{drawn:.4g}")

    def drawn(self, value: Any) -> Any:
        """The inverse of `value`, within the limits."""
        if self.choices:
            return value
        return min(max(1 - value if self.below_one else value, self.low), self.high)

    @property
    def ends(self) -> tuple[Any, ...]:
        return self.choices or (self.value(self.low), self.value(self.high))


Space = dict[str, Range]


def space_of(config: RunConfig) -> Space:
    """The learning rate and the fractions among the settings of the method, around the values of a config."""
    found = {"train.lr": around(config.train.lr, 0.0, float("inf"))}
    for section, model in (("method", config.method),):
        for key, field in type(model).model_fields.items():
            value = getattr(model, key)
            if field.annotation is float and isinstance(value, float):
                found[f"{section}.{key}"] = around(value, *limits(model, key))
    return {key: one for key, one in found.items() if one is not None}


def limits(model: BaseModel, key: str) -> tuple[float, float]:
    low, high = 0.0, float("inf")
    for rule in type(model).model_fields[key].metadata:
        low = max(low, getattr(rule, "ge", low), getattr(rule, "gt", low))
        high = min(high, getattr(rule, "le", high), getattr(rule, "lt", high))
    return low, high


def around(value: float, low: float, high: float) -> Range | None:
    """The range around a value; none for 0 without an upper limit, which says nothing about the scale."""
    if high == 1 and NEAR_ONE <= value < 1:
        return Range((1 - value) / FACTOR, min((1 - value) * FACTOR, 1 - low), log=True, below_one=True)
    if value > 0:
        return Range(max(value / FACTOR, low), min(value * FACTOR, high), log=True)
    return Range(low, high) if high < float("inf") else None


def read_space(file: Path, method: str) -> Space:
    """The ranges of a method in a TOML file: those of [every], and those of its own section."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--space {file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(f"--space {file}: not readable as TOML ({error}); correct the file") from None
    found: Space = {}
    for section in ("every", method):
        for group, settings in entries(table.get(section, {}), f"--space {file}: [{section}]"):
            for key, held in entries(settings, f"--space {file}: [{section}] {group}"):
                found[f"{group}.{key}"] = parse_range(held, f"--space {file}: [{section}] {group}.{key}")
    if not found:
        raise ConfigError(f"--space {file}: no settings for {method}; add a section [every] or [{method}]")
    return found


def entries(table: Any, where: str) -> list[tuple[str, Any]]:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table such as train.lr = {{ low = 0.01, high = 1.0 }}")
    return list(table.items())


def parse_range(held: Any, where: str) -> Range:
    rule = "must be a list of values, or { low = 0.01, high = 1.0, log = true }"
    if isinstance(held, list) and held and all(isinstance(one, str | int | float) for one in held):
        return Range(choices=tuple(held))
    if not isinstance(held, Mapping) or not {"low", "high"} <= set(held) <= {"low", "high", "log"}:
        raise ConfigError(f"{where} {rule}, got {held!r:.80}")
    low, high, log = held["low"], held["high"], held.get("log", False)
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (low, high))
    if not numbers or not low < high or (log and low <= 0):
        raise ConfigError(f"{where} {rule}, with low < high, and low > 0 if log; got {held!r:.80}")
    return Range(low, high, bool(log), whole=isinstance(low, int) and isinstance(high, int))
