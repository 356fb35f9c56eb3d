"""Folders of small photos in three colours, which any backbone tells apart."""

from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}


def write_photos(folder: Path, names: list[str], count: int = 12, side: int = 40, seed: int = 0) -> Path:
    draws = np.random.default_rng(seed)
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.array(COLOURS[name]) + draws.integers(-35, 35, (side, side, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number:02d}.png")
    return folder
