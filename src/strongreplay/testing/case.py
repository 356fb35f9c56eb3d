"""A method under check: a small stream of three tasks, batches, steps, and how states are compared."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from strongreplay.data.streams import Stream, split_by_class
from strongreplay.methods import MethodRow, method_row
from strongreplay.methods.base import Method
from strongreplay.nets import build_net, seeded_init
from strongreplay.protocol import Batch, Problem, Split, Task, Terms, derive_generator
from strongreplay.training.engine import train_task

NUM_CLASSES, NUM_TASKS, SHAPE, BATCH_SIZE, MEMORY_SIZE = 6, 3, (1, 6, 6), 16, 24
ALL_CLASSES = tuple(range(NUM_CLASSES))


class ContractError(AssertionError):
    """A contract is broken; the message says which one and how to fix it."""


def expect(holds: bool, contract: str, remedy: str) -> None:
    if not holds:
        raise ContractError(f"{contract} {remedy}")


def make_split(per_class: int, seed: int) -> Split:
    """Noise images with a bright patch whose position depends on the class, in shuffled order."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(NUM_CLASSES).repeat(per_class)
    labels = labels[torch.randperm(len(labels), generator=generator)]
    images = torch.randint(0, 100, (len(labels), *SHAPE), dtype=torch.uint8, generator=generator)
    for number, label in enumerate(labels.tolist()):
        row, column = divmod(label, 3)
        images[number, :, 3 * row : 3 * row + 3, 2 * column : 2 * column + 2] += 150
    return Split(images, labels)


def small_stream() -> Stream:
    """Three tasks of two classes of 6 x 6 images that a small net learns in a few steps."""
    return split_by_class(make_split(40, seed=1), make_split(20, seed=2), NUM_CLASSES, NUM_TASKS)


@dataclass(frozen=True)
class MethodCase:
    """A method to check, the stream it learns, and how a new one is made."""

    row: MethodRow
    settings: dict[str, Any] = field(default_factory=dict)
    net: Callable[[], nn.Module] | None = None  # draws its weights from the global generator
    stream: Stream = field(default_factory=small_stream)

    def make(self, seed: int = 0) -> Method:
        settings = ({"memory_size": MEMORY_SIZE} if self.row.has_memory else {}) | self.settings
        view = self.stream.train_view(derive_generator(seed, "replayed views"))
        num_classes, test_view = self.stream.num_classes, self.stream.test_view
        images = make_split(10, seed=3).inputs  # for methods that need unlabelled ones
        problem = Problem(num_classes, len(self.stream), view, test_view, seed, images)
        return self.row.build(self.make_net(seed), problem, self.row.config(**settings))

    @cached_property
    def learnt(self) -> Method:
        """A method that has learnt the stream with seed 0, for the checks that do not change it."""
        method = self.make()
        self.learn(method)
        return method

    def make_net(self, seed: int) -> nn.Module:
        generator = derive_generator(seed, "net")
        if self.net is not None:
            with seeded_init(generator):
                return self.net()
        name, width = (self.row.net, 8) if self.row.net else ("mlp", 32)
        return build_net(name, SHAPE, NUM_CLASSES, generator, width=width)

    def pretrained(self) -> "MethodCase":
        """The same, with a net that was trained on images like those of the stream and has a fresh head."""

        def net() -> nn.Module:
            made: Any = build_net(
                self.row.net or "mlp", SHAPE, NUM_CLASSES, derive_generator(0, "net"), width=8
            )
            plain, images = MethodCase(method_row("sgd"), net=lambda: made).make(), make_split(40, seed=4)
            task, order = Task(0, ALL_CLASSES, images, images), derive_generator(0, "order")
            optimizer = torch.optim.Adam(made.parameters(), lr=0.01)
            view = self.stream.test_view
            train_task(plain, task, view, optimizer, epochs=20, batch_size=BATCH_SIZE, generator=order)
            made.head.reset_parameters()
            return cast(nn.Module, made)

        return replace(self, net=net)

    def learn(self, method: Method, seed: int = 0, epochs: int = 1, stream: Stream | None = None) -> None:
        stream = stream or self.stream
        order, view = derive_generator(seed, "order"), stream.train_view(derive_generator(seed, "views"))
        for task in stream:
            self.learn_task(method, task, order, epochs, view)

    def learn_task(
        self, method: Method, task: Task, order: torch.Generator, epochs: int = 1, view: Any = None
    ) -> None:
        optimizer: torch.optim.Optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1)
        if self.row.needs_weights:  # prompts of a frozen net hardly move by plain gradients
            optimizer = torch.optim.Adam(method.net.parameters(), lr=0.01)
        view = view or self.stream.test_view
        train_task(method, task, view, optimizer, epochs=epochs, batch_size=BATCH_SIZE, generator=order)

    def batch(self, task: int = 0, start: int = 0) -> Batch:
        split, rows = self.stream[task].train, torch.arange(start, start + BATCH_SIZE)
        images = split.inputs[rows]
        return Batch(rows, images, self.stream.test_view(images), split.labels[rows])

    def step(self, method: Method, batch: Batch) -> Terms:
        method.train()
        return method.observe(batch, torch.optim.SGD(method.net.parameters(), lr=0.1))


def weights(module: nn.Module) -> Tensor:
    return torch.cat([torch.empty(0), *(value.detach().flatten().clone() for value in module.parameters())])


def snapshot(method: Method) -> dict[str, Any]:
    """A copy of everything that is saved."""
    return deepcopy(dict(method.state_dict()))


def differences(first: Any, second: Any, where: str = "") -> list[str]:
    """The names of values that differ between two states by at least one bit; NaN equals NaN."""
    if isinstance(first, dict) and isinstance(second, dict):
        keys = [*first, *(key for key in second if key not in first)]
        return [d for key in keys for d in differences(first.get(key), second.get(key), f"{where}/{key}")]
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        if first.shape != second.shape or first.dtype != second.dtype:
            return [where]
        unset = first.isnan() & second.isnan() if first.is_floating_point() else torch.zeros(()).bool()
        return [] if bool(((first == second) | unset).all()) else [where]
    return [] if first == second else [where]
