"""Held-out samples: a share of each class is chosen, and all classes lose alike where room ends."""

import pytest
import torch

from strongreplay.models.held_out import HeldOut, choose_held_out, no_samples, ranks


def held(columns: list[int], keys: list[float], first_id: int = 1) -> HeldOut:
    count = len(columns)
    images = torch.arange(count, dtype=torch.float32)[:, None]
    ids = torch.arange(first_id, first_id + count)
    return HeldOut(images, torch.tensor(columns), torch.tensor(keys, dtype=torch.float64), ids)


@pytest.mark.parametrize(
    ("size", "share", "expected"),
    [(100, 0.1, 10), (5, 0.1, 1), (4, 0.1, 0), (2, 0.9, 1), (1, 0.9, 0), (9, 0, 0)],
)
def test_a_share_of_each_class_is_held_out_and_one_sample_stays(
    size: int, share: float, expected: int
) -> None:
    columns = torch.tensor([0, 1]).repeat(size)
    chosen, keys = choose_held_out(columns, share, torch.Generator().manual_seed(0))
    assert columns[chosen].bincount(minlength=2).tolist() == [expected, expected]
    assert len(keys) == len(columns)
    if expected:
        assert keys[chosen & (columns == 0)].max() < keys[~chosen & (columns == 0)].min()


def test_ranks_count_within_a_class_by_key() -> None:
    assert ranks(torch.tensor([1, 0, 1, 1]), torch.tensor([0.5, 0.9, 0.1, 0.7])).tolist() == [1, 0, 0, 2]
    assert ranks(torch.empty(0, dtype=torch.int64), torch.empty(0)).tolist() == []


def test_where_room_ends_every_class_keeps_as_many() -> None:
    both = held([0, 0, 0], [0.3, 0.1, 0.2]).joined(held([1, 1], [0.5, 0.4], first_id=10))
    assert both.ids.tolist() == [1, 2, 3, 10, 11]
    assert both.cut_to(9).ids.tolist() == [1, 2, 3, 10, 11]
    assert both.cut_to(2).ids.tolist() == [2, 11]
    assert both.cut_to(4).ids.tolist() == [2, 3, 10, 11]
    assert both.cut_to(4).images.flatten().tolist() == [1, 2, 0, 1]
    assert len(both.cut_to(0)) == 0


def test_no_samples_join_with_images_and_with_features() -> None:
    assert no_samples((3, 4, 4)).images.dtype == torch.uint8
    assert no_samples((1,)).joined(held([0], [0.5])).images.tolist() == [[0.0]]
