"""What the checkpoint of a run says of it, checked before it is used: its sums may be a forger's."""

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
    """A run that was stopped, and where it stands."""

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
    files: dict[str, dict[str, Any]]


def read_stopped(path: Path) -> StoppedState:
    """The run of a checkpoint; a DataError says what it is of instead."""
    manifest = read_manifest(path)
    if "config" not in manifest and "lesson" in manifest:
        raise DataError(
            f"{path}: a stopped update of the model in {path.parent.parent}, not of a run; "
            "go on with the same ser learn command, or forget it with --restart"
        )
    try:
        return StoppedState.model_validate(manifest)
    except ValidationError as error:
        raise DataError(
            f"{path}: not the checkpoint of a run ({faults_in(error)}); remove the folder"
        ) from None


def faults_in(error: ValidationError) -> str:
    """All faults in one line."""
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())


Row = dict[str, list[float | None]]


class RunTree(BaseModel):
    """The plain values in the state of a run; tensors are checked by those who load them."""

    model_config = ConfigDict(strict=True, extra="ignore")

    index: int = Field(ge=0)
    learnt: bool
    terms: list[list[dict[str, float]]]
    scores: dict[str, list[Any]] = Field(validation_alias=AliasChoices("scores", "boards"))
    started: str
    measured: dict[str, dict[str, Any]] = Field(validation_alias=AliasChoices("measured", "phases"))

    @field_validator("scores")
    @classmethod
    def check_scores(cls, scores: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """The row of the untrained net, and a row for each task."""
        for untrained, rows in scores.values():
            TypeAdapter(list[Row]).validate_python([untrained, *rows], strict=True)
        return scores


def check_tree(tree: dict[str, Any], num_tasks: int) -> None:
    """A ValueError says what cannot be the state of a run of so many tasks."""
    try:
        index = RunTree.model_validate(tree).index
    except ValidationError as error:
        raise ValueError(faults_in(error)) from None
    if index > num_tasks:
        raise ValueError(f"index: task {index + 1} of {num_tasks}")
