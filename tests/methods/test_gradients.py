"""Flat gradients, and single samples' gradients by formula, by torch.func and one by one."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from support.steps import one_by_one
from support.tiny_stream import make_net, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from strongreplay.methods import gradients
from strongreplay.methods.base import descend
from strongreplay.methods.gradients import (
    descend_along,
    flat_gradient,
    flat_weights,
    gradient_products,
    quadratic_pull,
    sample_gradients,
    squared_gradients,
    trace_layers,
    trainable,
)
from strongreplay.nets import Classifier, build_net
from strongreplay.protocol import derive_generator


def resnet(width: int, channels: int = 1) -> nn.Module:
    net = build_net("resnet18", (channels, 6, 6), 6, derive_generator(0, "net"), width=width)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics and weights with something to get wrong
            generator = torch.Generator().manual_seed(module.num_features)
            for values in (module.weight.data, module.running_var, module.bias.data, module.running_mean):
                values.copy_(0.5 + torch.rand(values.shape, generator=generator))  # type: ignore[union-attr]
    return net


class Twice(nn.Module):
    """One layer passed two times."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(36, 6), nn.Linear(6, 6)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layer(self.layer(self.first(inputs.flatten(1))).tanh())
        return logits


class LeftOut(nn.Module):
    """A net with parameters that its answer does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.spare = make_net(), nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.net(inputs)
        return logits


def partly_frozen(net: nn.Module | None = None) -> nn.Module:
    net = net or make_net()
    net.get_parameter("head.weight").requires_grad_(False)
    return net


def growing_resnet() -> nn.Module:
    net = cast(Classifier, resnet(8))
    net.grow(8, derive_generator(0, "growth"))
    return net


def layers(*inner: nn.Module) -> nn.Module:
    return nn.Sequential(*inner, nn.Flatten(), nn.LazyLinear(6))


KNOWN: dict[str, Callable[[], nn.Module]] = {
    "mlp": make_net,
    "resnet": lambda: resnet(4),
    "resnet with channels last": lambda: resnet(8),
    "resnet with a head that grows": growing_resnet,
    "overwritten outputs": lambda: layers(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True)),
    "no biases": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 6, bias=False)),
    "strides and holes": lambda: layers(nn.Conv2d(1, 3, 3, stride=2, padding=2, dilation=2)),
    "a layer left out": LeftOut,
}
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "another layer": lambda: layers(nn.Flatten(), nn.LayerNorm(36)),
    "a layer used twice": Twice,
    "frozen parameters": partly_frozen,
    "channels last": lambda: nn.Sequential(nn.Conv2d(1, 3, 1), partly_frozen(resnet(8, 3))),
    "inputs in rows": lambda: layers(nn.Linear(6, 4)),
    "grouped channels": lambda: layers(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=2)),
    "no running statistics": lambda: layers(nn.BatchNorm2d(1, track_running_stats=False)),
    "same padding": lambda: layers(nn.Conv2d(1, 2, 3, padding="same")),
}


def samples(count: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(count, 1, 6, 6, generator=generator), torch.randint(6, (count,), generator=generator)


def made(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        net = make()
        net(samples()[0])  # gives lazy layers their shape
    return net


def state(net: nn.Module) -> list[Any]:
    return [value.clone() for value in net.state_dict().values()]


@pytest.mark.parametrize("name", [*KNOWN, *OTHERS])
def test_products_and_squares_are_those_of_gradients_taken_one_by_one(name: str) -> None:
    net, (inputs, labels) = made((KNOWN | OTHERS)[name]), samples()
    counts = torch.tensor([1.0, 0.5, 2.0, 0.0, 1.5])
    assert (trace_layers(net, inputs, labels) is not None) == (name in KNOWN)
    single, before = one_by_one(net, inputs, labels), state(net)
    products = gradient_products(net, inputs, labels)
    squares = squared_gradients(net, inputs, labels, counts)
    assert torch.allclose(products, single @ single.T, rtol=1e-4, atol=1e-5)
    assert torch.allclose(squares, counts @ single.square(), rtol=1e-4, atol=1e-7)
    assert all(map(torch.equal, before, state(net)))  # running statistics included
    assert all(module.training for module in net.modules())


@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_the_formulas_agree_with_torch_func(name: str) -> None:
    net, (inputs, labels) = made(KNOWN[name]), samples(3)
    single = sample_gradients(net, inputs, labels)
    assert torch.allclose(single, one_by_one(net, inputs, labels), rtol=1e-4, atol=1e-6)
    assert torch.allclose(gradient_products(net, inputs, labels), single @ single.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["strides and holes", "another layer"])
def test_small_blocks_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, (inputs, labels) = made((KNOWN | OTHERS)[name]), samples()
    counts = torch.rand(5, generator=torch.Generator().manual_seed(0))
    products = gradient_products(net, inputs, labels)
    squares = squared_gradients(net, inputs, labels, counts)
    for size in (1, 2 * len(flat_weights(trainable(net)))):
        monkeypatch.setattr(gradients, "BLOCK_SIZE", size)
        assert torch.allclose(gradient_products(net, inputs, labels), products, rtol=1e-4, atol=1e-6)
        assert torch.allclose(squared_gradients(net, inputs, labels, counts), squares, rtol=1e-4, atol=1e-7)


def test_a_step_along_the_gradient_of_a_loss_is_a_step_down_that_loss() -> None:
    inputs, labels = samples()
    first, second = made(KNOWN["a layer left out"]), made(KNOWN["a layer left out"])
    second.load_state_dict(first.state_dict())
    descend(torch.optim.SGD(first.parameters(), lr=0.1), {"current": cross_entropy(first(inputs), labels)})
    flat = flat_gradient(cross_entropy(second(inputs), labels), trainable(second))
    assert len(flat) == len(flat_weights(trainable(second)))
    assert torch.equal(flat[-6:], torch.zeros(6))  # the layer that the answer leaves out
    descend_along(torch.optim.SGD(second.parameters(), lr=0.1), trainable(second), flat)
    assert torch.equal(weights(first), weights(second))


def test_a_quadratic_pull_and_its_gradient_by_autograd() -> None:
    net = nn.Linear(3, 2)
    anchor, importance = torch.randn(8), torch.rand(8)
    distance = torch.cat([parameter.flatten() for parameter in net.parameters()]) - anchor
    expected = 0.7 * (importance * distance.square()).sum()
    slope = flat_gradient(expected, trainable(net), retain_graph=True)
    value, pull = quadratic_pull(trainable(net), anchor, importance, 0.7)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.allclose(2 * 0.7 * pull, slope, atol=1e-6)
