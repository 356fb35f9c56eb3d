"""Frozen traces: a few steps of a method in float64 from given weights, batches and seed, with what came out.

`tests/fixtures/write_traces.py` writes them; `tests/methods/test_traces.py` repeats them.
"""

from typing import Any

import torch
from torch import Tensor

from strongreplay.data.streams import Stream
from strongreplay.methods import METHODS
from strongreplay.nets import build_net
from strongreplay.protocol import Batch, Problem, Split, derive_generator

SHAPE, NUM_CLASSES, NUM_TASKS, WIDTH, RATE = (1, 2, 2), 4, 2, 3, 0.1
SETTINGS: dict[str, dict[str, Any]] = {
    "er": {"memory_size": 6},
    "derpp": {"memory_size": 6, "alpha": 0.5, "beta": 0.5},
    "ser": {"memory_size": 6, "alpha": 0.2, "beta": 0.2},
}


def unchanged(images: Tensor) -> Tensor:
    return images


def repeat(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Train on the given batches, one list a task; returns the replayed samples and the weights."""
    net = build_net("mlp", SHAPE, NUM_CLASSES, derive_generator(0, "net"), width=WIDTH).double()
    for parameter, values in zip(net.parameters(), given["weights"], strict=True):
        parameter.data = torch.tensor(values, dtype=torch.float64)
    row = METHODS[name]
    problem = Problem(NUM_CLASSES, NUM_TASKS, unchanged, unchanged, seed=given["seed"])
    method: Any = row.build(net, problem, row.config(**SETTINGS[name]))
    optimizer, draws = torch.optim.SGD(net.parameters(), lr=RATE), list[list[float]]()
    sample = method.memory.sample

    def sample_and_note(count: int) -> Any:
        replayed = sample(count)
        draws[-1] += replayed.images[:, 0, 0, 0].tolist()  # the first pixel is the number of the image
        return replayed

    method.memory.sample = sample_and_note
    stream = as_stream(given["batches"])
    for index, batches in enumerate(given["batches"]):
        task = method.begin_task(stream[index])
        for rows, images, labels in batches:
            inputs = torch.tensor(images, dtype=torch.float64)
            draws.append([])
            method.observe(Batch(torch.tensor(rows), inputs, inputs, torch.tensor(labels)), optimizer)
        method.end_task(task)
    return {"draws": draws, "weights": [parameter.tolist() for parameter in net.parameters()]}


def as_stream(batches: list[Any]) -> Stream:
    """The tasks that the batches belong to."""

    def make(index: int, part: str) -> Split:
        images = torch.cat([torch.tensor(images, dtype=torch.float64) for _, images, _ in batches[index]])
        return Split(images, torch.cat([torch.tensor(labels) for _, _, labels in batches[index]]))

    return Stream("class-il", ((0, 1), (2, 3)), SHAPE, make)
