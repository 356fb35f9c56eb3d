"""Checks of a version's contents before use: valid checksums do not prove that a file can be trusted."""

import functools
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from strongreplay.errors import ConfigError, DataError, SerError
from strongreplay.models.budget import Budget

# Exceptions of code that reads invalid content.
MISFITS = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError)
REMEDY = "go to another version with rollback, or put the files back from a copy"

NEEDED = ("model", "net", "method", "held")  # parts; not every method has a memory

Count = Field(ge=0, lt=2**48)
Given = ParamSpec("Given")
Result = TypeVar("Result")


class StrictModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class ChunkAbout(StrictModel):
    fingerprint: str
    samples: list[Annotated[tuple[str | int, int], Strict(False)]]
    learnt: int = Count
    held_out: int = Count


class ChangeAbout(StrictModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    label: str | int
    where: str
    count: int = Count
    before: float | None
    after: float
    lost: int | None = Field(None, ge=0)
    gained: int | None = Field(None, ge=0)


class About(StrictModel):
    """The description of a version, as `models.learn.describe` writes it."""

    lesson: str
    labels: list[str | int]
    new_labels: list[str | int]
    chunk: ChunkAbout
    changes: list[ChangeAbout]
    fresh: list[Annotated[tuple[str | int, int, int], Strict(False)]]  # label, right answers, samples
    max_drop: float | None
    notes: list[str]
    seconds: float


class ModelPart(StrictModel):
    """The part `model` of a version."""

    plan: dict[str, dict[str, Any]]
    shape: list[int] | tuple[int, ...]
    mean: list[float]
    std: list[float]
    labels: list[str | int]
    lessons: int = Count
    next_id: int = Count
    capacity: int = Count
    generators: dict[str, Any]


def faults_of(kind: type[StrictModel], content: Any) -> str:
    """A text that lists all errors; empty if there are none."""
    try:
        kind.model_validate(content)
    except ValidationError as error:
        found = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        return "; ".join(found[:5])
    return ""


def check_manifest(manifest: dict[str, Any], where: object) -> None:
    """Raise a DataError if the manifest is not the manifest of a model."""
    faults = faults_of(About, manifest["about"])
    if missing := [part for part in NEEDED if part not in manifest["parts"]]:
        faults = f"no part {', '.join(missing)}"
    if faults:
        raise DataError(f"{where}: not the manifest of a model ({faults}); {REMEDY}")


def check_parts(parts: dict[str, Any], where: object) -> None:
    """Raise a DataError for invalid settings, before anything is allocated for them."""
    if (model := parts.get("model")) is None:
        return
    if faults := faults_of(ModelPart, model) or misfits_of(model):
        raise DataError(f"{where}: not the settings of a model ({faults}); {REMEDY}")


def misfits_of(model: dict[str, Any]) -> str:
    """A text about values in the part `model` that contradict each other; empty if there are none."""
    try:
        budget = Budget.parse(str(model["plan"].get("learner", {}).get("memory")))
    except ConfigError as error:
        return str(error)
    if model["capacity"] > max(budget.largest, 1):
        return f"capacity: {model['capacity']} samples in a memory of {budget}"
    backbone = model.get("backbone") or {}
    is_frozen = model["plan"].get("net", {}).get("tune") in ("nothing", "head")
    width = backbone.get("num_features") if is_frozen else [*model["shape"], 0][0]
    if not len(model["mean"]) == len(model["std"]) == width:
        return f"mean and std: {len(model['mean'])} and {len(model['std'])} values for {model['shape']}"
    return "" if model["labels"] else "labels: none"


def refuses_misfits(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorator: parts that do not fit together raise a DataError."""

    @functools.wraps(function)
    def call(*args: Given.args, **given: Given.kwargs) -> Result:
        try:
            return function(*args, **given)
        except SerError:
            raise
        except MISFITS as error:
            reason = str(error).partition("\n")[0][:200]
            raise DataError(
                f"the parts of this version do not fit together ({type(error).__name__}: {reason}); {REMEDY}"
            ) from error

    return call
