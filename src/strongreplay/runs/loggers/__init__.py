"""LOGGERS: what writes the course of a run for people to look at; a file and a row each.

`--log tensorboard,csv` names rows; `--log mine.py:Logger` is a listener of the user's own. A logger is made
where the run is made, also in another process, and never ends a run: without it the run goes on.
"""

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from strongreplay.errors import ConfigError, unknown
from strongreplay.extensions import explain, installed, is_path, load_object
from strongreplay.runs.config import RunConfig
from strongreplay.training.events import Listener


@dataclass(frozen=True, slots=True)
class LoggerRow:
    code: str  # the class, relative to this folder
    about: str
    needs: str = ""  # the package to import; empty: none


LOGGERS = {
    "csv": LoggerRow(".csv_files:CSVLogger", "tables of scalars, matrices and settings"),
    "tensorboard": LoggerRow(".tensorboard:TensorBoardLogger", "event files", "tensorboard"),
    "mlflow": LoggerRow(".mlflow:MLflowLogger", "a database, or the server of MLFLOW_TRACKING_URI", "mlflow"),
    "wandb": LoggerRow(".wandb:WandbLogger", "offline runs, for: wandb sync", "wandb"),
}


def parse_loggers(entries: Iterable[str]) -> tuple[str, ...]:
    """The names of all entries, which may have commas; a ConfigError unless each of them can be used."""
    names = [name.strip() for entry in entries for name in entry.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"--log names no logger; known: {', '.join(LOGGERS)}")
    for name in dict.fromkeys(names):
        find_class(name)
    return tuple(dict.fromkeys(names))


def find_class(name: str) -> Any:
    if name in LOGGERS:
        row = LOGGERS[name]
        if row.needs and find_spec(row.needs) is None:
            raise ConfigError(
                f"--log {name} needs the package {row.needs}; install it with: "
                "pip install 'strongreplay[loggers]'"
            )
        return resolve_name(f"{__package__}{row.code}")
    if not is_path(name) and name not in installed("listener"):
        known = [*LOGGERS, *installed("listener")]
        raise unknown("logger", name, known, "A class of your own is mine.py:Logger.")
    found = load_object(name, "listener").value
    if not (isinstance(found, type) and issubclass(found, Listener)):
        raise ConfigError(f"--log {name} must be a subclass of strongreplay.Listener, got {found!r:.80}")
    return found


def prepare_loggers(names: Iterable[str], out: Path) -> None:
    """What is done once, before the runs begin, such as making a database that they share."""
    for name in names:
        if prepare := getattr(find_class(name), "prepare", None):
            prepare(out)


def make_loggers(names: Iterable[str], config: RunConfig, out: Path) -> tuple[list[Listener], list[str]]:
    """The loggers of a run, and a line for each that cannot be made; those are left out.

    A class that takes arguments gets the run's configuration and the folder of records.
    """
    made, problems = list[Listener](), list[str]()
    for name in names:
        try:
            found = find_class(name)
            made.append(found(config, out) if inspect.signature(found).parameters else found())
        except Exception as error:
            reason = str(error) if isinstance(error, ConfigError) else explain(error)
            problems.append(f"--log {name} is left out: {reason}")
    return made, problems
