"""What an ONNX file does before its net: the same as our decoder, by the example that stands beside it."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from PIL import Image
from support.kept_models import ser, teach

from strongreplay.data.images import decode
from strongreplay.models.export_input import preparation

SIZES = ((20, 20), (33, 20), (101, 100), (333, 500), (500, 374), (32, 32), (1, 1), (31, 64), (1200, 801))
COLOURS = {
    "red": (1.0, 0.9, 0.8),
    "green": (0.9, 1.0, 0.85),
    "blue": (0.8, 0.9, 1.0),
    "grey": (0.9, 0.9, 0.9),
}


def draw_photo(draws: np.random.Generator, width: int, height: int, tint: Any) -> NDArray[np.uint8]:
    """Noise of every scale, with a tint."""
    layers = []
    for scale in (1, 5, 25):
        small = draws.integers(0, 256, (height // scale + 1, width // scale + 1, 3), np.uint8)
        layers.append(np.asarray(Image.fromarray(small).resize((width, height)), float))
    photo: NDArray[np.uint8] = (np.mean(layers, 0) * np.array(tint)).clip(0, 255).astype(np.uint8)
    return photo


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [8, 64])
def test_pixels_are_those_of_the_decoder(channels: int, side: int) -> None:
    session = onnxruntime.InferenceSession(preparation(channels, side).SerializeToString())
    draws = np.random.default_rng(side)
    for width, height in SIZES:
        image = draws.integers(0, 256, (height, width, 3), np.uint8)
        (found,) = session.run(None, {"images": image[None]})
        expected = decode(Image.fromarray(image), side, channels).astype(int)
        assert found.dtype == np.uint8
        assert abs(found[0] - expected).max() <= 1, (width, height)
        if width >= height:  # Pillow begins with the columns of some tall images and rounds otherwise
            assert (found[0] != expected).mean() < 0.02, (width, height)


def test_a_batch_of_one_size_is_each_image_by_itself() -> None:
    session = onnxruntime.InferenceSession(preparation(3, 16).SerializeToString())
    images = np.random.default_rng(0).integers(0, 256, (3, 40, 50, 3), np.uint8)
    (together,) = session.run(None, {"images": images})
    for row, image in enumerate(images):
        np.testing.assert_array_equal(together[row], session.run(None, {"images": image[None]})[0][0])


def test_channels_first_and_floats_are_refused() -> None:
    session = onnxruntime.InferenceSession(preparation(3, 16).SerializeToString())
    for wrong in (np.zeros((1, 3, 40, 50), np.uint8), np.zeros((1, 40, 50, 3), np.float32)):
        with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument):
            session.run(None, {"images": wrong})


@pytest.mark.slow
def test_the_example_beside_the_file_answers_as_ser_predict(tmp_path: Path) -> None:
    draws, state, out = np.random.default_rng(0), tmp_path / "state", tmp_path / "model.onnx"
    photos: list[Path] = []
    for number in range(280):
        name = list(COLOURS)[number % 4]
        width, height = (int(size) for size in draws.integers(20, 300, 2))
        folder = tmp_path / ("learn" if number < 80 else "asked") / name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{number}.{('jpg', 'png')[number % 3 == 0]}"
        exif = Image.Exif()
        exif[0x0112] = (1, 6, 3)[number % 3]
        Image.fromarray(draw_photo(draws, width, height, COLOURS[name])).save(path, exif=exif)
        photos += [path] if number >= 80 else []
    settings = {"train.epochs": 10, "learner.method": "er", "learner.val": 0.0, "learner.augment": "none"}
    teach(state, tmp_path / "learn", side=16, settings=settings)
    assert ser("export", state, out).code == 0
    said = ser("predict", state, *photos)
    expected = [line.split("\t")[:2] for line in said.out.splitlines()]
    assert [path for path, _ in expected] == [str(path) for path in photos]
    assert len({label for _, label in expected}) == 4

    (example,) = re.findall(r"```python\n(.*?)```", Path(f"{out}.md").read_text(), re.DOTALL)
    assert len(example.strip().splitlines()) <= 11
    (tmp_path / "example.py").write_text(
        f"{example}assert not {{'torch', 'strongreplay'}} & {{*sys.modules}}\n"
    )
    made = subprocess.run(
        [sys.executable, "example.py", *map(str, photos)], cwd=tmp_path, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    found = [line.split("\t")[:2] for line in made.stdout.splitlines()]
    equal = sum(one == other for one, other in zip(found, expected, strict=True))
    assert equal >= 0.99 * len(photos)

    # The same file, misused: these answers differ, so the ones above could have.
    session, bgr = onnxruntime.InferenceSession(out), 0
    for path, right in zip(photos, found, strict=True):
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))[None, :, :, ::-1]
        (logits,) = session.run(["logits"], {"images": np.ascontiguousarray(pixels)})
        bgr += sorted(COLOURS)[logits[0].argmax()] != right[1]
    assert bgr > 0.1 * len(photos)
