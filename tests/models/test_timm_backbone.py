"""A backbone of timm, whose interface is imitated here: timm itself is not needed, nor installed."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file
from support.kept_models import ser
from support.photos import write_photos
from torch import nn

from strongreplay.errors import ConfigError
from strongreplay.nets.backbones import open_backbone


def create_model(name: str, pretrained: bool, num_classes: int) -> nn.Module:
    """As timm's: with `num_classes` 0 the head is nn.Identity; `default_cfg` has side, moments and head."""
    assert (name, pretrained) == ("tiny", False)
    net = nn.Sequential(nn.Conv2d(3, 6, 5, 4), nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net.fc = nn.Linear(6, num_classes) if num_classes else nn.Identity()
    net.default_cfg = {  # type: ignore[assignment]
        "input_size": (3, 24, 24), "mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2), "classifier": "fc",
    }  # fmt: skip
    return net


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The weights of a whole net, its head included, as timm's files have them."""
    timm = ModuleType("timm")
    timm.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_file(create_model("tiny", False, 1000).state_dict(), tmp_path / "tiny.safetensors")
    return tmp_path / "tiny.safetensors"


@pytest.mark.slow
@pytest.mark.parametrize("tune", ["head", "all"])
def test_every_command_works_on_it(tune: str, weights: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    state, photos = tmp_path / "state", write_photos(tmp_path / "a", ["red", "green"])
    first = ["--net", "timm:tiny", "--weights", weights, "--tune", tune, "--epochs", "3"]
    more = write_photos(tmp_path / "b", ["blue"], seed=1)
    for words in [
        ["learn", state, "--data", photos, *first],
        ["predict", state, photos],
        ["evaluate", state, "--data", photos],
        ["learn", state, "--data", more, "--accept"],
        ["export", state, tmp_path / "model.onnx"],
    ]:
        said = ser(*words)
        assert said.code == 0, said.err
    assert "timm:tiny" in ser("status", state).out
    assert (open_backbone("timm:tiny", weights=str(weights)).mean) == (0.5, 0.5, 0.5)


def test_weights_that_do_not_fit_are_told(weights: Path) -> None:
    def fails_with(message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            open_backbone("timm:tiny", weights=str(weights))

    save_file({"0.weight": torch.zeros(6, 3, 4, 4)}, weights)
    fails_with(r"1 tensors do not fit timm:tiny, such as 0\.weight; give its own weights")
    save_file({"0.weight": torch.zeros(6, 3, 5, 5)}, weights)
    fails_with(r"tensors do not fit timm:tiny, such as 0\.bias")
    weights.write_bytes(b"no tensors")
    fails_with("not a whole safetensors file")
