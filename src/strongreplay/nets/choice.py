"""The default net for a sample shape."""

from typing import Any

SMALL_SIDE, TINY_SIDE = 32, 8  # grey images up to the first suit the small net; below the second only an MLP


def choose_net(shape: tuple[int, ...], width: int | None) -> dict[str, Any]:
    """A net that learns samples of a shape in reasonable time on a CPU."""
    if len(shape) == 1 or shape[-1] < TINY_SIDE:
        return {"name": "mlp"}
    if shape[-1] < 2 * TINY_SIDE or (shape[0] == 1 and shape[-1] <= SMALL_SIDE):
        return {"name": "cnn"}
    return {"name": "resnet18", "width": width or 20}
