"""The capacity of a kept model's memory within its budget, and which samples are dropped beyond it."""

import torch

from strongreplay.errors import ConfigError
from strongreplay.models.model import Model
from strongreplay.models.parts import sample_bytes

HELD_BYTES = 16  # of a held-out sample in addition to its image: class and key


def make_room(model: Model, image_bytes: int) -> int:
    """Set the capacity of the memory to the current budget; returns the limit of held-out samples.

    The memory knows the bytes of a row without its image. They grow with the head if logits are stored.
    """
    budget, hold, memory = model.settings.budget, model.settings.learner.val > 0, model.memory

    def capacity_for(row_bytes: dict[str, int]) -> int:
        return budget.replay_room(sum((row_bytes | {"images": image_bytes}).values()), hold)

    if memory is not None and budget.bytes is None:
        resize(model, budget.replay_room(1, hold))
    elif memory is not None:
        memory.fit(capacity_for)
    return budget.held_room(image_bytes + HELD_BYTES, hold)


def resize(model: Model, capacity: int) -> None:
    if capacity < 1:
        raise ConfigError(f"a memory of {model.settings.budget} has no room to replay; give more")
    if capacity != model.memory.capacity:
        model.memory.resize(capacity)


def drop_rows_over_budget(model: Model, generator: torch.Generator) -> None:
    """Drop rows until all fit the budget; needed because encoded images differ in size."""
    limit, memory = model.settings.budget.bytes, model.memory
    if limit is None or model.settings.learner.store == "raw" or memory is None:
        return
    while (used := sum(sample_bytes(model).values())) > limit and len(memory) > 1:
        fitting = max(1, int(len(memory) * limit / used) - 1)
        memory.shrink(fitting, generator)
