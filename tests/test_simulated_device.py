"""The simulated device: what it refuses, and where; methods/test_methods_common runs all methods on it."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.steps import optimizer_of
from support.tiny_stream import make_net
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from torch.optim import Optimizer

from strongreplay.methods.base import Method, Problem, descend
from strongreplay.methods.er import ER
from strongreplay.methods.row import row_of_class
from strongreplay.protocol import Batch, Terms
from strongreplay.simulated_device import DeviceFault, SimulatedDevice
from strongreplay.testing import MethodCase, check_device


class Reads(ER):
    """A fault: the loss is read in every step."""

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        terms = super().observe(batch, optimizer)
        if max(terms.values()) > 1e9:  # FAULT
            raise RuntimeError
        return terms


class Stays(Method):
    """A fault: the weights of classes stay on the CPU when the method moves."""

    def __init__(self, net: nn.Module, problem: Problem, config: Any = None) -> None:
        super().__init__()
        self.net, self.weight = net, torch.ones(problem.num_classes)

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        logits = self.net(batch.inputs) * self.weight  # FAULT
        return descend(optimizer, {"current": cross_entropy(logits, batch.labels)})


def line_of(faulty: type) -> str:
    lines, first = inspect.getsourcelines(faulty)
    return f"{__file__}:{first + next(n for n, line in enumerate(lines) if 'FAULT' in line)}"


@pytest.mark.parametrize(
    ("faulty", "what"), [(Reads, "reads values within a step"), (Stays, "mixes tensors")]
)
def test_an_injected_fault_is_found_with_file_and_line(faulty: type[Method], what: str) -> None:
    with pytest.raises(DeviceFault, match=what) as caught:
        check_device(MethodCase(row_of_class("faulty", faulty, None)))
    assert str(caught.value).startswith(line_of(faulty))


READING: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x[0]),
    "bool": lambda x: bool(x[0] > 0),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "to device=": lambda x: x.to(device=torch.device("cpu"), dtype=torch.float64),
    "copy": lambda x: torch.empty(3).copy_(x),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "asarray": lambda x: np.asarray(x),
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "solve": lambda x: torch.linalg.solve(torch.eye(3, device=x.device), x),
}


@pytest.mark.parametrize("how", READING)
def test_every_way_to_read_is_refused_in_a_step(how: str) -> None:
    with SimulatedDevice() as device:
        tensor = torch.rand(3).to(device.name)
        with device.step(), pytest.raises(DeviceFault, match=__file__):
            READING[how](tensor)
        if how not in ("numpy", "asarray"):
            READING[how](tensor)  # allowed between steps


def test_transfers_are_counted_and_results_are_those_of_the_cpu() -> None:
    inputs, labels = torch.rand(4, 1, 6, 6), torch.tensor([0, 1, 2, 3])
    plain, net = make_net(), make_net()
    kept = list(net.parameters())
    cross_entropy(plain(inputs), labels).backward()
    with SimulatedDevice() as device:
        net.to(device.name)
        assert all(a is b for a, b in zip(kept, net.parameters(), strict=True))
        before = device.num_to_device, device.bytes_to_device
        moved, there = inputs.to(device.name), labels.to(device.name)
        assert (device.num_to_device - before[0], device.bytes_to_device - before[1]) == (2, 4 * 36 * 4 + 32)
        with device.step():
            cross_entropy(net(moved), there).backward()
            assert one_hot(there, 6).device == torch.tensor(1.0).to(moved).device == moved.device
        assert device.num_to_host == 0
        found = [p.grad.cpu() for p in net.parameters() if p.grad is not None]
        assert device.num_to_host == len(found) == 6
    assert all(
        torch.equal(a, b.grad) for a, b in zip(found, plain.parameters(), strict=True) if b.grad is not None
    )


def test_a_generator_of_the_cpu_does_not_draw_there() -> None:
    with SimulatedDevice() as device, pytest.raises(DeviceFault, match="generator of the CPU"):
        torch.rand(3, device=device.name, generator=torch.Generator())
    with SimulatedDevice() as device, pytest.raises(DeviceFault, match="mixes"):
        torch.rand(3).index_select(0, torch.tensor([1]).to(device.name))


def test_its_tensors_are_of_no_use_outside() -> None:
    with SimulatedDevice() as device:
        tensor = torch.rand(3).to(device.name)
    with pytest.raises(DeviceFault, match="outside of its context"):
        tensor + 1
    assert optimizer_of(ER(make_net(), Problem(6, 3, abs, abs)))  # all else works
