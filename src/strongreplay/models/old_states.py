"""Convert states that older versions of the package wrote, while they are read."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from strongreplay.data.user_data import digests


def with_ids(method_state: dict[str, Any], known: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """The state of a method whose memory has ids.

    Version 0.1 wrote no ids for a stopped update. Each row is one of the `known` samples, which are pairs of
    images and ids; the row's pixels decide which one. Unused rows get -1.
    """
    if "memory.images" not in method_state or "memory.ids" in method_state:
        return method_state
    ids: dict[str, int] = {}
    for images, numbers in known:
        for digest, number in zip(digests(images), numbers.tolist(), strict=True):
            ids.setdefault(digest, number)
    found = [ids.get(digest, -1) for digest in digests(method_state["memory.images"])]
    return method_state | {"memory.ids": torch.tensor(found)}
