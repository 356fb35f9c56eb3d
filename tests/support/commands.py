"""`ser` in this process, and folders of digits to learn from."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from strongreplay.cli import main
from strongreplay.data import datasets

QUICK = ["--net", "mlp", "--epochs", "3", "--threads", "1", "--device", "cpu"]


NAMES = ["zero", "[bold]x", "zwei 二", "-three", "four", "five"]


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Ser = Callable[..., Said]


def write_digits(
    folder: Path, digits: Sequence[int], start: int = 0, count: int = 12, mode: str = "L"
) -> Path:
    """So many real digits of each class as PNG files in folders with the classes' names."""
    split = datasets.load("digits", Path())[0]
    for digit in digits:
        place = folder / NAMES[digit]
        place.mkdir(parents=True)
        rows = (split.labels == digit).nonzero().flatten()[start : start + count]
        for row in rows.tolist():
            Image.fromarray(split.inputs[row, 0].numpy()).convert(mode).save(place / f"{row}.png")
    return folder


@pytest.fixture
def ser(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ser:
    """The command in this process; anything but an exit would be a traceback."""

    def call(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["ser", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Said(int(caught.value.code or 0), said.out, said.err)

    return call


def contents(folder: Path, *but: str) -> dict[str, bytes]:
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith(but or "-")}
