"""Samples as files: what a spreadsheet would run is text."""

import csv
from pathlib import Path

import torch

from strongreplay.models.memory_view import Remembered
from strongreplay.models.write_samples import write_samples


def test_names_are_no_formulas(tmp_path: Path) -> None:
    sample = Remembered(1, "=1+cmd|' /C calc'!A0", "@SUM(A1)", 1, "replay", 9)
    write_samples(tmp_path / "out", [sample], torch.zeros(1, 1, 4, 4, dtype=torch.uint8))
    with (tmp_path / "out" / "manifest.csv").open(newline="", encoding="utf-8") as file:
        _, row = csv.reader(file)
    assert row[1:4] == ["'=1+cmd|' /C calc'!A0", "1", "'@SUM(A1)"]
    assert (tmp_path / "out" / row[0]).read_bytes().startswith(b"\x89PNG")
