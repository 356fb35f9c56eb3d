"""The public checks: right things pass, and each broken contract is named with a remedy."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.tiny_stream import make_net
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.data.streams import Stream
from strongreplay.methods.base import Method, MethodConfig, descend
from strongreplay.nets import mlp
from strongreplay.protocol import Batch, Problem, Split, Terms
from strongreplay.testing import (
    ContractError,
    check_listener,
    check_method,
    check_net,
    check_stream,
    small_stream,
)
from strongreplay.training.events import Listener, Position


class Plain(Method):
    def __init__(self, net: nn.Module, problem: Problem) -> None:
        super().__init__()
        self.net, self.problem = net, problem

    def loss(self, batch: Batch) -> Tensor:
        return cross_entropy(self.net(batch.inputs), batch.labels)

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        return descend(optimizer, {"current": self.loss(batch)})


class Attached(Plain):
    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        loss = self.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"current": loss}


class Leaking(Plain):
    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        loss = self.loss(batch)
        loss.backward()
        optimizer.step()
        return {"current": loss.detach()}


class Idle(Plain):
    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        return {"current": self.loss(batch).detach()}


class Noisy(Plain):
    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        return descend(optimizer, {"current": self.loss(batch) * (1 + 1e-3 * torch.rand(()))})


class Counting(Plain):
    """Weighs its loss by a number of steps that is not saved."""

    steps = 0

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        self.steps += 1
        return descend(optimizer, {"current": self.loss(batch) / self.steps})


class Unmoved(Plain):
    def __init__(self, net: nn.Module, problem: Problem) -> None:
        super().__init__(net, problem)
        self.mask = torch.ones(problem.num_classes)


class Restless(Plain):
    asked: Tensor

    def __init__(self, net: nn.Module, problem: Problem) -> None:
        super().__init__(net, problem)
        self.register_buffer("asked", torch.zeros(()))

    def predict(self, inputs: Tensor) -> Tensor:
        self.asked += 1
        return super().predict(inputs)


class Silent(Plain):
    class Config(MethodConfig):
        alpha: float = 1.0

    def __init__(self, net: nn.Module, problem: Problem, config: Config) -> None:
        super().__init__(net, problem)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Attached, "the term current must be a detached scalar tensor. Return what descend"),
        (Leaking, "gradients of one step leak into the next. Call optimizer.zero_grad"),
        (
            Idle,
            "another seed changes nothing|gets .* % on images that any method learns",
        ),
        (Noisy, "moves the global generator of torch. Draw with generator=problem.generator"),
        (Counting, "saved after 2 steps, it does not continue the same: .*Keep tensors as buffers"),
        (Unmoved, "Unmoved.mask is a tensor that .to.device. does not move. Use self.register_buffer"),
        (Restless, "Restless.predict changes the method. Draw and store nothing"),
        (Silent, "the setting alpha has no help text. Write Field"),
    ],
)
def test_a_broken_contract_of_a_method_is_named(method: type[Method], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        check_method(method)


@pytest.mark.slow
def test_right_methods_pass_by_class_and_by_name() -> None:
    check_method(Plain)
    check_method("er", memory_size=30)
    check_method(Plain, net=lambda: make_net().requires_grad_(True))


class Peeking(nn.Module):
    """Normalises by the batch even when it is evaluated."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(36, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head((inputs - inputs.mean(0)).flatten(1))
        return logits


class Unused(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.head, self.spare = nn.Linear(36, num_classes), nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(inputs.flatten(1))
        return logits


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda shape, classes: 3, "The net is a int. Return an nn.Module"),
        (lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(36, 5)), "gives .4, 5., not .4, 6."),
        (lambda shape, classes: Peeking(classes), "logits depend on its batch. Use running statistics"),
        (lambda shape, classes: Unused(classes), "No gradient reaches spare.weight, spare.bias"),
    ],
)
def test_a_broken_contract_of_a_net_is_named(make: Any, message: str) -> None:
    check_net(mlp)
    with pytest.raises(ContractError, match=message):
        check_net(make)


def test_a_broken_contract_of_a_stream_is_named() -> None:
    stream = small_stream()
    check_stream(stream)
    check_stream(small_stream)
    draws = torch.Generator().manual_seed(0)

    def shaky(index: int, part: Any) -> Split:
        split = stream.make(index, part)
        return split.take(torch.randperm(len(split), generator=draws))

    with pytest.raises(ContractError, match=r"Task 0 differs when it is made again\. Draw from a generator"):
        check_stream(lambda: replace(stream, make=shaky))
    with pytest.raises(ContractError, match=r"labels .* are not of its classes"):
        check_stream(Stream("class-il", ((0, 1), (2, 5), (3, 4)), (1, 6, 6), stream.make))
    with pytest.raises(ContractError, match=r"inputs are .1, 6, 6.. Say input_shape="):
        check_stream(replace(stream, input_shape=(36,)))


class Meddling(Listener):
    def __init__(self) -> None:
        self.seen: list[Position] = []

    def on_step(self, position: Position, terms: Terms) -> None:
        self.seen.append(position)


class Broken(Listener):
    def on_epoch(self, position: Position, terms: dict[str, float], rate: float, seconds: float) -> None:
        raise KeyError("nothing there")


def test_listeners_are_sent_every_event_and_what_they_raise_is_named() -> None:
    listener = Meddling()
    check_listener(listener)
    assert len(listener.seen) == 15
    with pytest.raises(ContractError, match=r"Broken.on_epoch raises KeyError: 'nothing there'"):
        check_listener(Broken())
