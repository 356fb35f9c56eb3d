"""Where tensors live: the device a user names, if it is there."""

import torch

from strongreplay.errors import ConfigError


def find_device(name: str) -> torch.device:
    """'auto' is the best there is; anything else must be there."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if not available.get(device.type, False):
        usable = ", ".join(kind for kind, there in available.items() if there)
        raise ConfigError(f"device '{name}' is not available; this machine has {usable}. Use --device auto")
    return device
