"""What the manifest of a checkpoint says of its run, checked before it is used."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
        faults = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise DataError(f"{path}: not the checkpoint of a run ({faults}); remove the folder") from None
