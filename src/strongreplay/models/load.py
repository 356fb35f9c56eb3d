"""Load a version of a kept model for prediction."""

import torch

from strongreplay.models.model import Model
from strongreplay.models.parts import FROZEN, TO_ANSWER, model_of
from strongreplay.models.store import Store, Version


def load_model(store: Store, name: str | None, device: torch.device) -> tuple[Version, Model]:
    """A version, by default the one in use, with only the parts needed for prediction."""
    version, parts = store.read(name, TO_ANSWER, (FROZEN,))
    return version, model_of(parts, device)
