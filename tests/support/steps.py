"""Single steps of methods: batches, gradients, passes through the net, states."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from strongreplay.data.streams import Stream, make_train_view
from strongreplay.memory import Memory
from strongreplay.methods import METHODS, Method
from strongreplay.methods.base import evaluation_mode
from strongreplay.methods.gradients import (
    flat_gradient,
    trainable,
)
from strongreplay.nets import Classifier, build_net
from strongreplay.protocol import Batch, Problem, Split, Terms, derive_generator
from strongreplay.training.engine import evaluate, train_task
from strongreplay.training.events import Listener, Position
from support.tiny_stream import NUM_CLASSES, make_net, make_problem, weights


def count_passes(method: Any, monkeypatch: pytest.MonkeyPatch, step: Callable[[], object]) -> tuple[int, int]:
    """Forward and backward passes of one step, both ways to ask for gradients included."""
    calls: list[str] = []
    handle = method.net.register_forward_hook(lambda *args: calls.append("forward"))
    for name in ("backward", "grad"):
        ask: Any = getattr(torch.autograd, name)

        def spy(*arguments: Any, ask: Any = ask, **options: Any) -> Any:
            calls.append("back")
            return ask(*arguments, **options)

        monkeypatch.setattr(torch.autograd, name, spy)
    step()
    handle.remove()
    monkeypatch.undo()
    return calls.count("forward"), calls.count("back")


def tasks(stream: Stream, count: int) -> Stream:
    return Stream(stream.scenario, stream.task_classes[:count], stream.input_shape, stream.make)


EVERYTHING = tuple(range(NUM_CLASSES))


def build(
    name: str, problem: Problem, seed: int = 0, net: nn.Module | None = None, **settings: Any
) -> Method:
    row = METHODS[name]
    if row.has_memory:
        settings = {"memory_size": 24} | settings
    return row.build(net or net_for(name, seed), problem, row.config(**settings))


def net_for(name: str, seed: int = 0) -> Classifier:
    """The common small net, unless the method is made for another."""
    net = METHODS[name].net
    if net is None:
        return make_net(seed)
    return build_net(net, (1, 6, 6), NUM_CLASSES, derive_generator(seed, "net"), width=8)


class Steps(Listener):
    """Calls a function after every step."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call

    def on_step(self, position: Position, terms: Terms) -> None:
        self.call()


def learn(
    method: Method, stream: Stream, seed: int = 0, epochs: int = 4, on_step: Callable[[], None] | None = None
) -> list[dict[str, float]]:
    order, history = derive_generator(seed, "order"), []
    view = stream.train_view(derive_generator(seed, "views"))
    for task in stream:
        optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1)
        history += train_task(
            method, task, view, optimizer, epochs=epochs, batch_size=16, generator=order,
            listener=Steps(on_step) if on_step else None,
        )  # fmt: skip
    return history


def state_bytes(method: Method) -> dict[str, Any]:
    return {
        k: v.clone() if isinstance(v, Tensor) else v
        for k, v in method.state_dict().items()
        if "extra" not in k
    }


def same_state(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(value, second[key]) for key, value in first.items()
    )


def first_batch(stream: Stream, task: int = 0, size: int = 16) -> Batch:
    split = stream[task].train
    rows = torch.arange(size)
    images = split.inputs[rows]
    return Batch(rows, images, stream.test_view(images), split.labels[rows])


def auxiliary_for(name: str) -> dict[str, str]:
    """Unlabelled images, for a method that needs them."""
    return {"data.auxiliary": "digits"} if METHODS[name].needs_auxiliary else {}


def memories(method: Method) -> list[Memory[Any]]:
    return [module for module in method.modules() if isinstance(module, Memory)]


def batches_of(split: Split, stream: Stream) -> list[Batch]:
    assert len(split) == 80
    found = []
    for rows in torch.arange(80).split(16):
        images = split.inputs[rows]
        found.append(Batch(rows, images, stream.test_view(images), split.labels[rows]))
    return found


def optimizer_of(method: Any, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(method.net.parameters(), lr=lr)


def final_weights(name: str, stream: Stream, **settings: Any) -> Tensor:
    method = build(name, make_problem(stream), **settings)
    learn(method, stream)
    return weights(method.net)


def gradient(net: nn.Module, loss: Tensor) -> Tensor:
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(net.parameters()))])


def make_cnn(seed: int = 0) -> Classifier:
    return build_net("cnn", (1, 6, 6), NUM_CLASSES, derive_generator(seed, "net"), width=8)


def make_resnet(seed: int = 0) -> Classifier:
    return build_net("resnet18", (1, 6, 6), NUM_CLASSES, derive_generator(seed, "net"), width=4)


def first_norm(net: nn.Module) -> Any:
    return next(module for module in net.modules() if isinstance(module, nn.BatchNorm2d))


def noisy(stream: Stream, generator: torch.Generator) -> Problem:
    view = make_train_view(stream.test_view, 2, generator)
    return Problem(NUM_CLASSES, len(stream), view, stream.test_view)


def accuracies(method: Method, stream: Stream) -> list[float]:
    """Of every net that can answer, on every task, among all classes."""
    asked = [(ask, task) for ask in method.predictors().values() for task in range(len(stream))]
    return [evaluate(method, stream.test(t), stream.test_view, EVERYTHING, ask=ask)[0] for ask, t in asked]


def first_task(stream: Stream) -> Stream:
    return Stream(stream.scenario, stream.task_classes[:1], stream.input_shape, stream.make)


def captured_gradient(method: Any, batch: Batch) -> torch.Tensor:
    """The gradient one step descends along."""
    before = weights(method.net)
    method.observe(batch, optimizer_of(method, lr=1.0))
    return before - weights(method.net)


def one_by_one(net: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    with evaluation_mode(net):
        losses = [cross_entropy(net(x), y) for x, y in zip(inputs.split(1), labels.split(1), strict=True)]
    return torch.stack([flat_gradient(loss, trainable(net)) for loss in losses])
