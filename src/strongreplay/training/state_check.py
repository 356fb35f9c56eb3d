"""Checks of what a checkpoint holds, before training resumes from it."""

from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from strongreplay.memory import Memory


class ProgressState(BaseModel):
    """The form of `TaskProgress.state`; `check_progress` checks the tensors."""

    model_config = ConfigDict(strict=True, extra="ignore")

    phase: str = ""
    epoch: int = Field(ge=0)
    step: int = Field(ge=0)
    order: Any
    generator: Any = None
    names: list[list[str]]
    values: Any
    history: list[dict[str, float]]
    first_step: int | None = None


def check_progress(state: dict[str, Any]) -> None:
    """Raise a ValueError, TypeError or RuntimeError if the state is not the progress of a task."""
    progress = ProgressState.model_validate(state)
    for draws in (progress.order, progress.generator):
        if draws is not None:
            torch.Generator().set_state(draws)
    if len(progress.values) != sum(map(len, progress.names)):
        raise ValueError(f"progress: {len(progress.values)} values of {sum(map(len, progress.names))} terms")


def check_labels(method: nn.Module, num_classes: int) -> None:
    """Raise a ValueError if a memory holds a label that no class has."""
    for name, module in method.named_modules():
        labels = getattr(module.rows, "labels", None) if isinstance(module, Memory) and len(module) else None
        if labels is not None and not ((labels >= 0) & (labels < num_classes)).all():
            raise ValueError(f"{name}: its labels must be 0 to {num_classes - 1}")
