"""Parameter counts of the published nets, their shapes, and seeded initial weights."""

from typing import Any

import pytest
import torch
from support.tiny_stream import weights

from strongreplay.errors import ConfigError
from strongreplay.nets import NETS, build_net
from strongreplay.protocol import derive_generator


def count(name: str, shape: tuple[int, ...], num_classes: int, **options: object) -> int:
    net = build_net(name, shape, num_classes, torch.Generator(), **options)
    return sum(parameter.numel() for parameter in net.parameters())


def test_published_parameter_counts() -> None:
    assert count("mlp", (1, 28, 28), 10) == 89_610
    assert count("resnet18", (3, 32, 32), 10) == 11_173_962
    assert count("resnet18", (3, 32, 32), 100) == 11_220_132
    assert count("resnet18", (3, 64, 64), 200) == 11_271_432


@pytest.mark.parametrize(
    ("name", "shape", "width"),
    [("mlp", (1, 8, 8), 10), ("resnet18", (3, 32, 32), 8), ("resnet18", (1, 8, 8), 4)],
)
def test_body_and_head(name: str, shape: tuple[int, ...], width: int) -> None:
    net = build_net(name, shape, 7, torch.Generator(), width=width)
    inputs = torch.rand(5, *shape)
    features = net.features(inputs)
    assert features.shape == (5, net.head.in_features)
    assert (features >= 0).all()  # after their ReLU
    assert torch.equal(net.head(net.eval().features(inputs)), net(inputs))
    net.train()(inputs).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_initial_weights_come_from_the_generator_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (
        weights(build_net("resnet18", (3, 8, 8), 3, torch.Generator().manual_seed(seed), width=8))
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


def test_mlp_weights_are_xavier_and_biases_zero_unless_asked_otherwise() -> None:
    net = build_net("mlp", (1, 28, 28), 10, torch.Generator())
    assert all(value.abs().max() == 0 for name, value in net.named_parameters() if name.endswith("bias"))
    limit = (6 / (784 + 100)) ** 0.5
    assert 0.98 * limit < next(net.parameters()).abs().max() <= limit
    net = build_net("mlp", (1, 28, 28), 10, torch.Generator(), bias="default")
    assert net.head.bias.abs().max() > 0


@pytest.mark.parametrize("width", [4, 5, 7, 8, 9, 20])
def test_narrow_resnets_survive_training(width: int) -> None:
    """Under 8 channels PyTorch's channels-last kernels crash; those widths use the plain layout."""
    net = build_net("resnet18", (3, 16, 16), 4, torch.Generator(), width=width)
    for _ in range(2):
        net(torch.rand(4, 3, 16, 16)).sum().backward()
    assert weights(net).isfinite().all()


def test_an_unknown_net_is_named() -> None:
    with pytest.raises(
        ConfigError, match="unknown net 'resnet'; did you mean 'resnet18'\\? See: ser list nets"
    ):
        build_net("resnet", (3, 8, 8), 2, torch.Generator())
    assert all(row.about for row in NETS.values())


def test_cnn_learns_from_any_image_size_and_has_the_stated_size() -> None:
    net = build_net("cnn", (1, 28, 28), 10, torch.Generator())
    assert sum(p.numel() for p in net.parameters()) == 24_058
    assert net(torch.rand(3, 1, 28, 28)).shape == (3, 10)
    odd = build_net("cnn", (3, 7, 7), 4, torch.Generator(), width=4)
    assert odd.features(torch.rand(2, 3, 7, 7)).shape == (2, 16)


def test_resnet_is_its_stem_its_stages_and_its_pooling_one_after_another() -> None:
    net: Any = build_net("resnet18", (3, 8, 8), 10, derive_generator(0, "net"), width=8)
    inputs = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    maps = net.eval().body.begin(inputs)
    shapes = []
    for stage in net.body.stages:
        maps = stage(maps)
        shapes.append(tuple(maps.shape[1:]))
    assert shapes == [(8, 8, 8), (16, 4, 4), (32, 2, 2), (64, 1, 1)]
    assert torch.equal(net.body.pool(maps), net.features(inputs))
