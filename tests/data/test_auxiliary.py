"""Auxiliary images: from a dataset or a folder, in the stream's shape, refused where of no use."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from strongreplay.data.auxiliary import fit, read_auxiliary
from strongreplay.errors import ConfigError
from strongreplay.runs.config import resolve


def test_a_folder_is_read_without_its_labels_in_the_shape_of_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRONGREPLAY_DATA", str(tmp_path / "cache"))
    for label in ("a", "b"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(5):
            pixels = np.full((12, 12, 3), 10 * number, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}.png")
    images = read_auxiliary(f"folder:{tmp_path / 'photos'}", (1, 8, 8), None)
    assert images.shape[1:] == (1, 8, 8)
    assert images.dtype == torch.uint8
    assert set(images.flatten().tolist()) <= {0, 10, 20, 30, 40}


def test_images_become_grey_or_coloured_and_as_large_as_the_streams() -> None:
    grey = torch.randint(0, 256, (4, 1, 6, 6), dtype=torch.uint8)
    assert fit(grey, (1, 6, 6)) is grey
    coloured = fit(grey, (3, 6, 6))
    assert torch.equal(coloured, grey.expand(-1, 3, -1, -1))
    assert torch.equal(fit(coloured, (1, 6, 6)), grey)
    assert fit(torch.full((2, 3, 5, 9), 7, dtype=torch.uint8), (1, 4, 4)).unique().tolist() == [7]


def test_what_makes_no_sense_is_refused_before_a_run() -> None:
    with pytest.raises(ConfigError, match=r"dmc needs unlabelled images beside the stream; give a dataset"):
        resolve("seq-mnist", "dmc")
    with pytest.raises(ConfigError, match=r"data.auxiliary is of no use to er; leave it out"):
        resolve("seq-mnist", "er", 200, settings={"data.auxiliary": "fashion-mnist"})
    with pytest.raises(ConfigError, match=r"unknown auxiliary data 'fashion-mnits'; did you mean"):
        resolve("seq-mnist", "dmc", settings={"data.auxiliary": "fashion-mnits"})
    config = resolve("seq-mnist", "dmc", settings={"data.auxiliary": "fashion-mnist"})
    assert config.to_dict()["data"]["auxiliary"] == "fashion-mnist"
    assert "auxiliary" not in resolve("seq-mnist", "er", 200).to_dict()["data"]
