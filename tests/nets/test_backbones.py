"""Backbones: real weights, heads that are found, messages, and bodies that are built again."""

import warnings
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.graphs import write_graph
from torch import Tensor, nn

from strongreplay.data.images import read_image
from strongreplay.data.views import normalise
from strongreplay.errors import ConfigError, DataError
from strongreplay.nets import published
from strongreplay.nets.backbones import open_backbone, rebuild_backbone
from strongreplay.nets.classifier import Classifier
from strongreplay.nets.efficientnet import EfficientNetLite0, SameConv
from strongreplay.nets.heads import body_of
from strongreplay.nets.published import PUBLISHED, published_weights, read_package

LITE = "efficientnet-lite0"
UNIFORM = 652  # "military uniform" among the classes of ImageNet
HOPPER = Path(matplotlib.__file__).parent / "mpl-data" / "sample_data" / "grace_hopper.jpg"
needs_weights = pytest.mark.skipif(not published.is_installed(LITE), reason="needs strongreplay[photos]")


@needs_weights
@pytest.mark.slow
def test_the_published_weights_know_a_photo(monkeypatch: pytest.MonkeyPatch) -> None:
    row = PUBLISHED[LITE]
    monkeypatch.setitem(PUBLISHED, LITE, published.PublishedNet(
        row.build, row.package, row.file, row.sha256, row.side, row.mean, row.std, "none"
    ))  # fmt: skip
    net = EfficientNetLite0(1000).eval()
    net.load_state_dict(read_package(LITE))
    pixels = torch.from_numpy(np.array(read_image(HOPPER, 224, 3)))
    with torch.inference_mode():
        assert net(normalise(row.mean, row.std)(pixels[None])).argmax() == UNIFORM


@needs_weights
@pytest.mark.slow
def test_weights_are_kept_as_safetensors_and_a_damaged_copy_is_made_again(tmp_path: Path) -> None:
    first = published_weights(LITE, tmp_path)
    (kept,) = (tmp_path / "weights").iterdir()
    assert load_file(kept).keys() == first.keys()
    kept.write_bytes(b"cut off")
    again = published_weights(LITE, tmp_path)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not any(key.startswith("_fc") for key in first)


@needs_weights
def test_another_file_under_the_name_of_the_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    row = PUBLISHED[LITE]
    other = published.PublishedNet(
        row.build, row.package, "__init__.py", row.sha256, row.side, row.mean, row.std, row.head
    )
    monkeypatch.setitem(PUBLISHED, LITE, other)
    with pytest.raises(DataError, match="not the published file"):
        read_package(LITE)


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'strongreplay\[photos\]'"):
        read_package(LITE)


@pytest.mark.parametrize(("side", "stride"), [(7, 2), (8, 2), (9, 1)])
def test_same_padding_puts_the_odd_pixel_right_and_below(side: int, stride: int) -> None:
    layer = SameConv(1, 1, 3, stride)
    nn.init.ones_(layer.weight)
    counted = layer(torch.ones(1, 1, side, side))[0, 0]
    assert counted.shape == (-(-side // stride),) * 2
    # With an even side and stride 2 the first window is whole, the last one lacks a row and a column.
    assert (counted[0, 0], counted[-1, -1]) == ((9, 4) if (side, stride) == (8, 2) else (4, 4))


class Net(nn.Module):
    """A body of 4 features and a head under a given name."""

    def __init__(self, name: str, outputs: int, softmax: bool = False) -> None:
        super().__init__()
        self.body, self.name, self.softmax = (
            nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4)),
            name,
            softmax,
        )
        setattr(self, name, nn.Linear(4, outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = getattr(self, self.name)(self.body(inputs))
        return logits.softmax(1) if self.softmax else logits


@pytest.mark.parametrize(("name", "outputs", "found"), [("fc", 7, 4), ("last", 1000, 4), ("project", 7, 7)])
def test_a_head_is_found_by_its_name_or_width_and_taken_off(name: str, outputs: int, found: int) -> None:
    net = Net(name, outputs)
    body, num_features = body_of(net, (3, 8, 8), "net")
    assert num_features == found
    inputs = torch.rand(3, 3, 8, 8)
    assert torch.equal(body(inputs), net.body(inputs) if found == 4 else net(inputs))


class Tuple(nn.Module):
    def forward(self, inputs: Tensor) -> Any:
        return inputs.flatten(1), inputs


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (Net("fc", 1000, softmax=True), "without its head"),
        (Tuple(), "must answer with a float tensor, got a tuple"),
        (nn.Identity(), r"got shape \(2, 3, 8, 8\); flatten"),
        (nn.Sequential(nn.Flatten(), nn.Linear(5, 2)), "cannot take images of 3 x 8 x 8"),
    ],
)
def test_nets_that_give_no_features_are_told_apart(net: nn.Module, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        body_of(net, (3, 8, 8), "net")


MINE = """
from torch import nn

def factory(input_shape, num_classes):
    body = nn.Sequential(nn.Conv2d(3, 6, 3, 2), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    net = nn.Sequential(body, nn.Flatten(), nn.Linear(6, num_classes))
    net.input_side, net.mean, net.std = 20, (0.1, 0.2, 0.3), (0.5, 0.5, 0.5)
    return net
"""


def test_a_factory_gives_side_and_normalisation_and_is_built_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    backbone = open_backbone(f"{file}:factory")
    assert (backbone.shape, backbone.num_features, backbone.mean) == ((3, 20, 20), 6, (0.1, 0.2, 0.3))
    again = rebuild_backbone(backbone.about, backbone.body.state_dict())
    inputs = torch.rand(2, 3, 20, 20)
    assert torch.equal(again.body(inputs), backbone.body.eval()(inputs))
    assert again.key == backbone.key
    assert again.note is None
    file.write_text(MINE + "\n# edited\n")
    assert "was edited since the model was made" in str(rebuild_backbone(backbone.about).note)


@pytest.mark.slow
def test_an_onnx_graph_loses_its_head_and_answers_as_the_net(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    net, path = Net("fc", 1000).eval(), tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (torch.rand(1, 3, 8, 8),), path, dynamo=True, verbose=False)
    backbone = open_backbone(str(path))
    assert (backbone.shape, backbone.num_features) == ((3, 8, 8), 4)
    assert "for 1000 classes is left out" in str(backbone.note)
    again = rebuild_backbone(backbone.about, backbone.body.state_dict())
    inputs = torch.rand(3, 3, 8, 8)
    torch.testing.assert_close(again.body(inputs), net.body(inputs))
    with pytest.raises(ConfigError, match="takes images of side 8, got --side 16"):
        open_backbone(str(path), side=16)


def test_a_graph_must_answer_with_one_row_of_features(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    maps = write_graph(tmp_path / "maps.onnx", "y = Relu (x)", "3, 8, 8")
    with pytest.raises(ConfigError, match=r"must answer with \(B, D\) features, got \(1, 3, 8, 8\); export"):
        open_backbone(maps)
    pooled = write_graph(tmp_path / "pooled.onnx", "y = GlobalAveragePool (x)", "3, 1, 1")
    assert open_backbone(pooled).num_features == 3


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("timm:resnet18", None, "--weights FILE.safetensors"),
        ("missing.onnx", None, "no such file"),
        (LITE, "file.safetensors", "has its own; leave it out"),
    ],
)
def test_missing_files_are_told(name: str, weights: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_backbone(name, weights=weights)


def test_a_frozen_body_keeps_every_tensor(tmp_path: Path) -> None:
    body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = Classifier(body.requires_grad_(False), 6, 2).train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    net(torch.rand(8, 3, 9, 9)).square().sum().backward()
    optimizer.step()
    moved = [key for key, value in net.state_dict().items() if not torch.equal(value, before[key])]
    assert moved == ["head.weight", "head.bias"]
    body.requires_grad_(True)
    net.train()
    assert body[1].training
