"""Whole-batch views equal the per-image operations they stand for."""

import pytest
import torch
from torch.nn.functional import pad as pad_image

from strongreplay.data.streams import make_train_view
from strongreplay.data.views import crop_flip, normalise, scale


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("channels", "size", "pad"), [(3, 32, 4), (1, 5, 2), (3, 7, 0)])
def test_crop_flip_equals_per_image_crop_and_flip(channels: int, size: int, pad: int) -> None:
    images = torch.randint(0, 256, (40, channels, size, size + 1), dtype=torch.uint8, generator=generator(1))
    got = crop_flip(images, pad, generator(2))
    draws = generator(2)
    offsets = torch.randint(2 * pad + 1, (2, 40, 1), generator=draws)
    mirrored = torch.randint(2, (40, 1), generator=draws)
    for number, image in enumerate(images):
        top, left = int(offsets[0, number]), int(offsets[1, number])
        expected = pad_image(image, (pad, pad, pad, pad))[:, top : top + size, left : left + size + 1]
        if mirrored[number]:
            expected = expected.flip(-1)
        assert torch.equal(got[number], expected)
    assert got.dtype == torch.uint8


def test_every_offset_and_both_mirrors_occur_for_each_image_on_its_own() -> None:
    image = torch.zeros(1, 1, 9, 9, dtype=torch.uint8)
    image[0, 0, 4, 3] = 255  # off the middle column, so that a mirror shows
    seen = crop_flip(image.expand(4000, -1, -1, -1), 1, generator(3)).flatten(1).argmax(1)
    assert len(seen.unique()) == 3 * 5  # rows 3..5; columns 2..4 and their mirrors 4..6


def test_scale_maps_all_grey_levels_and_leaves_features_alone() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(scale(levels), torch.arange(256).float() / 255)
    features = torch.randn(3, 2)
    assert scale(features) is features


def test_normalise_by_hand_and_a_black_border() -> None:
    view = normalise((0.5, 0.25), (0.5, 0.125))
    images = torch.tensor([255, 0], dtype=torch.uint8).view(1, 2, 1, 1)
    assert view(images).flatten().tolist() == [1.0, -2.0]
    white = torch.full((50, 2, 4, 4), 255, dtype=torch.uint8)
    out = make_train_view(view, 2, generator(4))(white)
    assert set(out[:, 0].unique().tolist()) == {-1.0, 1.0}  # padding is black, not the mean colour
    assert white.min() == 255  # the stored images were not written to


def test_without_padding_the_train_view_is_the_plain_one() -> None:
    assert make_train_view(scale, 0, generator()) is scale
