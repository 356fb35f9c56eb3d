"""A new model: a net that suits its samples, and moments as set or as measured."""

from typing import Any

import pytest
import torch
from torch import nn

from strongreplay.data.user_data import Chunk
from strongreplay.errors import ConfigError, DataError
from strongreplay.models.build import first_model
from strongreplay.models.settings import make_settings
from strongreplay.nets.choice import choose_net

CPU = torch.device("cpu")


def chunk(*shape: int) -> Chunk:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (6, *shape), dtype=torch.uint8, generator=generator)
    inputs = inputs if len(shape) == 3 else inputs.float()
    return Chunk(inputs, ("a", "b") * 3, tuple(f"#{row}" for row in range(6)))


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((40,), "mlp"),
        ((1, 7, 7), "mlp"),
        ((3, 8, 8), "cnn"),
        ((1, 32, 32), "cnn"),
        ((1, 33, 33), "resnet18"),
        ((3, 32, 32), "resnet18"),
    ],
)
def test_the_net_suits_the_samples(shape: tuple[int, ...], name: str) -> None:
    assert choose_net(shape, None)["name"] == name
    assert choose_net((3, 32, 32), 7)["width"] == 7


def test_a_new_head_has_a_row_for_each_label_and_those_in_reserve() -> None:
    model = first_model(make_settings({"learner.reserve": 4}), chunk(1, 8, 8), CPU)
    assert model.head_size == 6
    fixed = first_model(make_settings({"learner.classes": ["a", "b", "c"]}), chunk(1, 8, 8), CPU)
    assert fixed.head_size == 3


@pytest.mark.parametrize(("shape", "what"), [((3, 8, 8), "channel"), ((5,), "feature")])
def test_moments_are_given_or_measured(shape: tuple[int, ...], what: str) -> None:
    count = shape[0]
    given: dict[str, Any] = {"learner.mean": [0.5] * count, "learner.std": [2.0] * count}
    model = first_model(make_settings(given), chunk(*shape), CPU)
    assert (model.mean, model.std) == ([0.5] * count, [2.0] * count)
    assert len(first_model(make_settings({}), chunk(*shape), CPU).mean) == count
    with pytest.raises(ConfigError, match=f"a value for each {what}, {count}"):
        first_model(make_settings({"learner.mean": [1.0], "learner.std": [1.0]}), chunk(*shape), CPU)


def test_images_must_be_square_unless_the_net_is_the_users() -> None:
    with pytest.raises(DataError, match="must be square, got 6 x 8 pixels"):
        first_model(make_settings({}), chunk(1, 8, 6), CPU)
    own = first_model(make_settings({"net.name": "own"}), chunk(1, 8, 6), CPU, nn.Flatten())
    assert own.head_size == 12
    with pytest.raises(ConfigError, match=r"must answer with \(B, D\) features"):
        first_model(make_settings({"net.name": "own"}), chunk(1, 8, 8), CPU, nn.Identity())
