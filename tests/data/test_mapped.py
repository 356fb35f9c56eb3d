"""A tensor on disk acts like one in memory: choosing rows reads nothing, computing reads what it needs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from strongreplay.data import mapped
from strongreplay.data.mapped import MappedRows, concatenate, map_file
from strongreplay.data.tasks import accumulate, hold_out, split_by_class
from strongreplay.data.views import crop_flip, normalise
from strongreplay.protocol import Split

SHAPE = (60, 3, 8, 8)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(0, 256, SHAPE, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def on_disk(images: torch.Tensor, tmp_path: Path) -> MappedRows:
    np.save(tmp_path / "images.npy", images.numpy())
    return map_file(tmp_path / "images.npy")


def test_choosing_rows_reads_nothing(on_disk: MappedRows, images: torch.Tensor) -> None:
    rows = torch.tensor([5, 2, 40])
    mask = torch.zeros(60, dtype=torch.bool).index_fill(0, rows, True)
    choices: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: x[rows],
        lambda x: x[10:20],
        lambda x: x[:-1][rows],
        lambda x: x[mask],
        lambda x: x.split(25)[2],
        lambda x: x.detach(),
    ]
    for choose in choices:
        held = choose(on_disk)
        assert isinstance(held, MappedRows)
        assert held.shape == choose(images).shape
        assert on_disk.file.num_read == 0
    for choose in choices:
        assert torch.equal(choose(on_disk).clone(), choose(images))


def test_computing_gives_what_a_tensor_gives(on_disk: MappedRows, images: torch.Tensor) -> None:
    rows = torch.tensor([5, 2, 40])
    view = normalise([0.5] * 3, [0.2] * 3)
    assert torch.equal(on_disk.index_select(0, rows), images.index_select(0, rows))
    assert type(on_disk.index_select(0, rows)) is torch.Tensor
    assert torch.equal(on_disk[7], images[7])
    assert torch.equal(view(on_disk[:9]), view(images[:9]))
    draws = [torch.Generator().manual_seed(1) for _ in range(2)]
    assert torch.equal(crop_flip(on_disk[rows], 2, draws[0]), crop_flip(images[rows], 2, draws[1]))
    assert torch.equal(torch.cat([on_disk[:3], images[:3]]), torch.cat([images[:3], images[:3]]))
    assert torch.equal(concatenate([on_disk[:3], on_disk[9:]]).clone(), torch.cat([images[:3], images[9:]]))
    target = torch.zeros(3, *SHAPE[1:], dtype=torch.uint8)
    target.copy_(on_disk[rows])
    assert torch.equal(target, images[rows])


def test_the_file_is_never_written_to(on_disk: MappedRows) -> None:
    with pytest.raises(RuntimeError, match="data on disk cannot be changed in place; clone the rows first"):
        on_disk.zero_()


def test_pages_are_given_back(
    on_disk: MappedRows, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "RESIDENT_LIMIT", 1000)
    for _ in range(3):
        assert torch.equal(on_disk.clone(), images)
    assert on_disk.file.num_read == 0


def test_streams_of_data_on_disk_keep_row_numbers_alone(on_disk: MappedRows, images: torch.Tensor) -> None:
    labels = torch.arange(60) % 6
    kept, usual = (split_by_class(Split(x, labels), Split(x, labels), 6, 3) for x in (on_disk, images))
    for lazy, eager in (
        (kept, usual),
        (hold_out(kept, 0.2), hold_out(usual, 0.2)),
        (accumulate(kept), accumulate(usual)),
    ):
        for task, expected in zip(lazy, eager, strict=True):
            assert isinstance(task.train.inputs, MappedRows)
            assert isinstance(task.test.inputs, MappedRows)
            assert torch.equal(task.train.inputs.clone(), expected.train.inputs)
            assert torch.equal(task.test.labels, expected.test.labels)
