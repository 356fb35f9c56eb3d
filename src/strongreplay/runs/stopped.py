"""Checks of a run's checkpoint before use: valid checksums do not prove that a file can be trusted."""

from pathlib import Path
from typing import Any

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from strongreplay.errors import DataError
from strongreplay.storage.checkpoints import read_manifest

MOST_THREADS = 4096


class StoppedState(BaseModel):
    """A stopped run and its position."""

    model_config = ConfigDict(strict=True, extra="ignore")

    config: dict[str, Any]
    recipe: str
    written: str
    package: str
    format: int
    step: int = Field(ge=0)
    steps_expected: int
    task: int
    tasks: int
    threads: int = Field(ge=1, le=MOST_THREADS)
    device: str
    ranks: int = Field(1, ge=1, le=MOST_THREADS)  # processes that made it together
    files: dict[str, dict[str, Any]]


def read_stopped(path: Path) -> StoppedState:
    """The run of a checkpoint; a DataError if the checkpoint is not a run's."""
    manifest = read_manifest(path)
    if "config" not in manifest and "lesson" in manifest:
        raise DataError(
            f"{path}: a stopped update of the model in {path.parent.parent}, not of a run; "
            "resume it with the same ser learn command, or discard it with --restart"
        )
    try:
        return StoppedState.model_validate(manifest)
    except ValidationError as error:
        raise DataError(
            f"{path}: not the checkpoint of a run ({faults_in(error)}); remove the folder"
        ) from None


def faults_in(error: ValidationError) -> str:
    """All errors in one line."""
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())


Row = dict[str, list[float | None]]


class PhaseUse(BaseModel):
    """What one phase of a run has used so far."""

    model_config = ConfigDict(strict=True)

    seconds: float
    peak_memory_bytes: int
    peak_is_of_phase: bool = False


class RunTree(BaseModel):
    """The plain values in the state of a run; tensors are checked when they are loaded."""

    model_config = ConfigDict(strict=True, extra="ignore")

    index: int = Field(ge=0)
    learnt: bool
    terms: list[list[dict[str, float]]]
    scores: dict[str, list[Any]] = Field(validation_alias=AliasChoices("scores", "boards"))
    started: str
    measured: dict[str, PhaseUse] = Field(validation_alias=AliasChoices("measured", "phases"))

    @field_validator("scores")
    @classmethod
    def check_scores(cls, scores: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Check the row of the untrained net and the row of each task."""
        for untrained, rows in scores.values():
            TypeAdapter(list[Row]).validate_python([untrained, *rows], strict=True)
        return scores


def check_tree(tree: dict[str, Any], num_tasks: int) -> None:
    """Raise a ValueError if the tree is not the state of a run with `num_tasks` tasks."""
    try:
        index = RunTree.model_validate(tree).index
    except ValidationError as error:
        raise ValueError(faults_in(error)) from None
    if index > num_tasks:
        raise ValueError(f"index: task {index + 1} of {num_tasks}")
