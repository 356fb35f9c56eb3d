"""Scaled gradients: a method sees them as they are, and a step that overflows is left out."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from strongreplay.nets import seeded_init
from strongreplay.training.scaling import Scaling

CPU = torch.device("cpu")


def loss_of(net: Any, inputs: Tensor, scaling: Scaling | None, size: float) -> Tensor:
    if scaling is None:
        plain: Tensor = size * net(inputs).sum()
        return plain
    (given,) = scaling.enter(net, [inputs], CPU)
    with torch.autocast("cpu", torch.float16):
        outputs = net(given)
    return size * scaling.leave(outputs.float()).sum()


@pytest.mark.parametrize("ask", ["backward", "grad"])
def test_gradients_too_small_for_float16_arrive_unscaled(ask: str) -> None:
    generator = torch.Generator().manual_seed(0)
    with seeded_init(generator):
        net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    inputs = torch.rand(3, 4, generator=generator).requires_grad_()
    wanted = [inputs, *net.parameters()]
    size = 1e-8  # below the smallest float16, 6e-8
    found = []
    for scaling in (None, Scaling("cpu")):
        loss = loss_of(net, inputs, scaling, size)
        if ask == "grad":
            found.append(torch.autograd.grad(loss, wanted))
        else:
            for each in wanted:
                each.grad = None
            loss.backward()
            found.append(tuple(each.grad.clone() for each in wanted if each.grad is not None))
    for exact, low in zip(*found, strict=True):
        assert exact.abs().max() > 0
        assert torch.allclose(low, exact, rtol=1e-2, atol=0.02 * size)
    with torch.autocast("cpu", torch.float16):  # what is lost without a scale
        lost = torch.autograd.grad(size * net(inputs).float().sum(), wanted)
    assert not any(gradient.any() for gradient in lost)


def test_a_step_with_an_overflow_is_left_out_and_halves_the_scale() -> None:
    net, scaling = nn.Linear(2, 1), Scaling("cpu")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaling.guard(optimizer)
    before, scale = net.weight.detach().clone(), []
    for size in (0.01, 1e6):
        optimizer.zero_grad()
        loss_of(net, torch.ones(3, 2), scaling, size).backward()
        optimizer.step()
        scale.append(scaling.scaler.get_scale())
        if size < 1:
            assert torch.allclose(net.weight, before - 0.1 * 0.01 * 3, rtol=1e-3)
            before = net.weight.detach().clone()
    assert torch.equal(net.weight, before)
    assert scale[1] == scale[0] / 2
