"""Exported folders: what is in them, that they predict like the model, and that damage is named."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support.kept_models import CPU, make_model, ser

from strongreplay.errors import ConfigError, DataError
from strongreplay.models.hand_over import read_hub_folder, write_hub_folder
from strongreplay.models.load import load_model
from strongreplay.models.model_card import cell
from strongreplay.models.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("kept"))


@pytest.fixture(scope="module")
def hub(kept: Path) -> Path:
    assert ser("export", kept, kept.parent / "hub", "--format", "hub").code == 0
    return kept.parent / "hub"


def some_images(kept: Path) -> torch.Tensor:
    _, model = load_model(Store(kept), None, CPU)
    draws = np.random.default_rng(0).integers(0, 256, (6, *model.shape), dtype=np.uint8)
    return torch.from_numpy(draws)


def test_a_hub_folder_predicts_to_the_bit_like_the_model(kept: Path, hub: Path) -> None:
    assert {path.name for path in hub.iterdir()} == {
        "model.safetensors",
        "config.json",
        "labels.json",
        "README.md",
    }
    _, model = load_model(Store(kept), None, CPU)
    images = some_images(kept)
    assert torch.equal(read_hub_folder(hub, CPU).scores(images), model.scores(images))
    config = json.loads((hub / "config.json").read_text())
    assert list(config["id2label"].values()) == json.loads((hub / "labels.json").read_text()) == model.labels


def test_the_card_has_the_gates_table_and_the_account_of_data(hub: Path) -> None:
    card = (hub / "README.md").read_text()
    assert "| zero | " in card
    assert "| two | new | " in card
    assert "## Limits" in card


def test_an_mlflow_folder_predicts_through_pyfunc(kept: Path, tmp_path: Path) -> None:
    pandas, pyfunc = pytest.importorskip("pandas"), pytest.importorskip("mlflow.pyfunc")
    assert ser("export", kept, tmp_path / "flow", "--format", "mlflow").code == 0
    assert not list((tmp_path / "flow").rglob("*.pkl"))
    model = pyfunc.load_model(str(tmp_path / "flow"))
    photos = sorted(kept.parent.glob("january/*/*.png"))[::7]
    found = model.predict(pandas.DataFrame({"image": [path.read_bytes() for path in photos]}))
    lines = [line.split("\t") for line in ser("predict", kept, *photos).out.splitlines()]
    assert [answer["label"] for answer in found] == [line[1] for line in lines]
    for answer, line in zip(found, lines, strict=True):
        assert math.isclose(answer["probability"], float(line[2]), abs_tol=1e-4)
    with pytest.raises(DataError, match="image #0"):
        model.predict(pandas.DataFrame({"image": [b"nothing"]}))


def test_an_existing_folder_is_left_alone(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        write_hub_folder(Store(kept), None, tmp_path / "mine")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_damage_is_named(hub: Path, tmp_path: Path, name: str) -> None:
    for path in hub.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(DataError, match="export the model again"):
        read_hub_folder(tmp_path, CPU)


def test_labels_cannot_break_the_card() -> None:
    assert cell("a|b <script>\n") == r"a\|b \<script\>\\n"
