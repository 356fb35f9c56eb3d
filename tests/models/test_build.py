"""A new model: a net that suits its samples, and moments as set or as measured."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from strongreplay.data.streams import build_stream
from strongreplay.data.user_data import Chunk
from strongreplay.errors import ConfigError, DataError
from strongreplay.learner import Learner
from strongreplay.models.build import first_model
from strongreplay.models.settings import make_settings
from strongreplay.nets import build_net
from strongreplay.nets.choice import choose_net
from strongreplay.protocol import derive_generator

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


def test_an_unknown_net_may_be_meant_as_a_backbone() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'efficientnet-lite0'.* FILE\.onnx, mine\.py"):
        make_settings({"net.name": "efficientnet-lite1"})


def test_a_covariance_of_too_many_features_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"slda takes at most 8,192 features.* got 8,193; give --method ncm"
    ):
        first_model(make_settings({"learner.method": "slda", "net.name": "linear"}), chunk(8193), CPU)
    assert first_model(make_settings({"learner.method": "ncm", "net.name": "linear"}), chunk(8193), CPU)


@pytest.mark.parametrize("name", ["auto", "cnn"])
def test_a_head_that_is_computed_takes_no_features_of_a_random_net(name: str) -> None:
    settings = make_settings({"learner.method": "slda", "net.name": name})
    with pytest.raises(ConfigError, match="a new cnn is not trained; give --net efficientnet-lite0"):
        first_model(settings, chunk(1, 8, 8), CPU)
    assert first_model(settings, chunk(1, 8, 8), CPU, nn.Flatten()).head_size == 12


@pytest.mark.parametrize("shape", [(5,), (1, 8, 8)])
def test_a_head_is_computed_from_samples_as_they_are(shape: tuple[int, ...]) -> None:
    name = "auto" if len(shape) == 1 else "linear"
    model = first_model(make_settings({"learner.method": "ncm", "net.name": name}), chunk(*shape), CPU)
    assert model.settings.net.name == "linear"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["l2p", "dualprompt", "ser"])
def test_a_vit_with_weights_of_a_file_is_loaded_again_without_the_file(method: str, tmp_path: Path) -> None:
    body: Any = build_net("vit", (1, 8, 8), 2, derive_generator(0, "net"), width=16).body
    file, digits = tmp_path / "vit.safetensors", build_stream("split-digits")
    save_file(dict(body.state_dict()), file)
    settings = {"net.weights": str(file), "net.heads": 2}
    learner = Learner(method=method, net="vit", epochs=1, settings=settings)
    for task in (digits[0], digits[1]):
        learner.learn(task.train.inputs, task.train.labels)
    if method != "ser":  # it trains the body too
        net: Any = learner.model_.method.net
        assert torch.equal(net.body.pos_embed, body.pos_embed)
    learner.save(tmp_path / "kept")
    file.unlink()
    again, images = Learner.load(tmp_path / "kept"), digits.test(0).inputs[:20]
    assert (again.predict(images) == learner.predict(images)).all()
    again.learn(digits[2].train.inputs, digits[2].train.labels)
    with pytest.raises(ConfigError, match="--weights belongs to vit and timm:NAME, got --net cnn"):
        Learner(net="cnn", settings={"net.weights": "FILE"}).learn(
            digits[0].train.inputs, digits[0].train.labels
        )
