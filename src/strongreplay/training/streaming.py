"""Batches of data that stay on the host because they do not fit into the device's memory."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor


def stream_batches(images: Tensor, parts: Sequence[Tensor], device: torch.device) -> Iterator[Tensor]:
    """The images of each part, on the device. Data that are there already are gathered there.

    Otherwise a thread gathers the next rows, into pinned memory if the device is CUDA's, and the copy of a
    batch is under way before the one before it is used: neither disk nor copy keeps a step waiting.
    """
    if images.device == device:
        for rows in parts:
            yield images.index_select(0, rows)
        return
    pinned = device.type == "cuda"

    def gather(rows: Tensor) -> Tensor:
        chosen = images.index_select(0, rows)
        return chosen.pin_memory() if pinned else chosen

    with ThreadPoolExecutor(1, "batches") as thread:
        left, moved = iter(parts), deque[Tensor]()
        gathered = deque[Future[Tensor]](thread.submit(gather, rows) for rows in take(left, 2))

        def advance() -> None:
            if gathered:
                chosen = gathered.popleft().result()
                gathered.extend(thread.submit(gather, rows) for rows in take(left, 1))
                moved.append(chosen.to(device, non_blocking=pinned))

        advance()
        while moved:
            advance()
            yield moved.popleft()


def take(left: Iterator[Tensor], count: int) -> list[Tensor]:
    return [rows for _, rows in zip(range(count), left, strict=False)]
