"""Contrastive views: whole-batch products equal the per-image operations they stand for."""

from math import cos, pi, sin

import pytest
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, conv2d, grid_sample

from strongreplay.data.augment import contrast
from strongreplay.data.augment.contrast import (
    blurring,
    contrast_view,
    draw_colours,
    draw_crops,
    draw_sigmas,
    recolour,
    resampling,
)
from strongreplay.data.views import normalise


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_images(count: int, channels: int = 3, size: int = 32, seed: int = 1) -> Tensor:
    return torch.randint(
        0, 256, (count, channels, size, size + 1), dtype=torch.uint8, generator=generator(seed)
    )


def luma(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


@pytest.mark.parametrize(("channels", "size", "flip"), [(3, 32, True), (1, 7, False)])
def test_crop_and_flip_equal_bilinear_sampling_of_a_grid(channels: int, size: int, flip: bool) -> None:
    images = make_images(30, channels, size)
    got = contrast_view(images, generator(2), 0.2, flip, jitter=False)
    draws = generator(2)
    starts, extents = draw_crops(30, 0.2, draws)
    mirrored = torch.rand(30, generator=draws) < (0.5 if flip else 0)
    assert not flip or 5 < mirrored.sum() < 25
    theta = torch.zeros(30, 2, 3)
    theta[:, 0, 0] = torch.where(mirrored, -extents[:, 1], extents[:, 1])
    theta[:, 1, 1] = extents[:, 0]
    theta[:, :, 2] = (2 * starts + extents - 1).flip(1)
    grid = affine_grid(theta, list(images.shape), align_corners=False)
    expected = grid_sample(images.float() / 255, grid, padding_mode="border", align_corners=False)
    assert torch.allclose(got, expected, atol=1e-4)


def test_the_whole_image_unchanged_is_itself_and_nothing_is_written_to() -> None:
    images = make_images(4, size=40)
    kept = images.clone()
    whole = resampling(torch.zeros(4), torch.ones(4), 40)
    assert torch.equal(whole, torch.eye(40).expand(4, -1, -1))
    first = contrast_view(images, generator(3), 0.2, flip=True, jitter=True)
    assert torch.equal(images, kept)
    assert first.dtype == torch.float32
    assert first.shape == images.shape
    assert 0 <= first.min() < first.max() <= 1
    normalise((0.5,) * 3, (0.5,) * 3)(first)  # writes into what it is given
    assert torch.equal(images, kept)
    floats = images.float() / 255
    contrast_view(floats, generator(3), 1.0, flip=False, jitter=False).zero_()
    assert floats.max() > 0.9


def test_crops_have_the_asked_areas_and_ratios_and_lie_inside_everywhere() -> None:
    starts, extents = draw_crops(20000, 0.2, generator(4))
    area, ratio = extents.prod(1), extents[:, 1] / extents[:, 0]
    assert 0.2 <= area.min() < 0.21
    assert area.max() > 0.97
    assert 0.75 - 1e-4 <= ratio.min() < 0.76
    assert 1.32 < ratio.max() <= 4 / 3 + 1e-4
    assert starts.min() >= 0
    assert (starts + extents).max() <= 1 + 1e-6
    room = (1 - extents) > 0.1
    assert (starts / (1 - extents))[room].mean().item() == pytest.approx(0.5, abs=0.02)
    # A crop that does not fit is drawn again, not cut: no heap of crops as wide as the image.
    assert (extents == 1).any(1).float().mean() < 0.001
    assert area.mean() < 0.6 - 0.01  # large areas with an extreme ratio never fit
    starts, extents = draw_crops(100, 1.0, generator(4))  # no ratio but 1 ever fits
    assert (extents == 1).all()
    assert (starts == 0).all()


def test_each_image_has_its_own_draws_and_the_generator_decides_all() -> None:
    images = make_images(1).expand(64, -1, -1, -1)
    first = contrast_view(images, generator(5), 0.2, flip=True, jitter=True)
    assert len(first.flatten(1).unique(dim=0)) == 64
    before = torch.get_rng_state()
    assert torch.equal(first, contrast_view(images, generator(5), 0.2, flip=True, jitter=True))
    assert not torch.equal(first, contrast_view(images, generator(6), 0.2, flip=True, jitter=True))
    assert torch.equal(before, torch.get_rng_state())


def test_colours_equal_brightness_contrast_saturation_and_hue_one_after_another() -> None:
    pixels = 0.3 + 0.2 * torch.rand(50, 3, 4, 5, generator=generator(6))  # far from the clamps
    got = recolour(pixels, *draw_colours(50, 3, generator(7)))
    draws = generator(7)
    chances = torch.rand(2, 50, generator=draws)
    changes = 2 * torch.rand(50, 4, generator=draws) - 1
    for number, image in enumerate(pixels.double()):
        bright, contrasted, saturated, hue = (changes[number].double() * contrast.STRENGTHS).tolist()
        if chances[0, number] < 0.8:
            image = image * (1 + bright)
            mean = luma(image[None]).mean()
            image = mean + (1 + contrasted) * (image - mean)
            grey = luma(image[None])
            image = grey + (1 + saturated) * (image - grey)
            yiq = torch.einsum("dc,chw->dhw", contrast.TO_YIQ.double(), image)
            angle = 2 * pi * hue
            turned = [
                yiq[0],
                cos(angle) * yiq[1] - sin(angle) * yiq[2],
                sin(angle) * yiq[1] + cos(angle) * yiq[2],
            ]
            image = torch.einsum("cd,dhw->chw", contrast.TO_YIQ.double().inverse(), torch.stack(turned))
        if chances[1, number] < 0.2:
            image = luma(image[None]).expand(3, -1, -1)
        assert torch.allclose(got[number].double(), image.clamp(0, 1), atol=1e-5)


def test_hue_turns_colours_and_keeps_greys_and_brightness() -> None:
    turn = contrast.QUARTER_TURN
    assert torch.allclose(turn @ torch.ones(3), torch.zeros(3), atol=1e-5)
    assert torch.allclose(contrast.LUMA @ turn, torch.zeros(3), atol=1e-5)
    assert torch.allclose(turn @ turn, contrast.TO_GREY - torch.eye(3), atol=1e-4)  # two are minus one


def test_a_fifth_is_grey_and_a_fifth_of_all_keeps_its_colours() -> None:
    matrices, lift = draw_colours(20000, 3, generator(8))
    grey = (matrices[:, 0] - matrices[:, 1]).abs().amax(1) < 1e-6
    same = (matrices - torch.eye(3)).abs().amax((1, 2)) < 1e-6
    assert grey.float().mean().item() == pytest.approx(0.2, abs=0.01)
    assert same.float().mean().item() == pytest.approx(0.2 * 0.8, abs=0.01)
    assert (lift == 0).float().mean().item() == pytest.approx(0.2, abs=0.01)
    gain = matrices.sum(2)[:, 0]
    assert 0.6 * 0.6 - 1e-4 <= gain.min() < 0.45
    assert 1.85 < gain.max() <= 1.4 * 1.4 + 1e-4


def test_one_channel_changes_in_brightness_and_contrast_alone() -> None:
    pixels = 0.4 + 0.1 * torch.rand(40, 1, 5, 5, generator=generator(9))
    matrices, lift = draw_colours(40, 1, generator(10))
    assert matrices.shape == (40, 1, 1)
    colour, _ = draw_colours(40, 3, generator(10))
    assert torch.allclose(matrices[:, 0, 0], colour.sum(2)[:, 0], atol=1e-5)
    got = recolour(pixels, matrices, lift)
    means = pixels.mean((1, 2, 3), keepdim=True)
    expected = matrices[:, :, None] * pixels + lift[:, None, None, None] * means
    assert torch.allclose(got, expected, atol=1e-6)
    flat = torch.full((40, 1, 5, 5), 0.5)  # contrast has nothing to work on
    assert recolour(flat, matrices, lift).std((1, 2, 3)).max() < 1e-6


def test_blur_equals_a_convolution_inside_and_keeps_a_flat_image_up_to_the_border() -> None:
    sigmas = torch.tensor([0.5, 1.9, 1e-3])
    matrices = blurring(sigmas, 64)
    assert torch.allclose(matrices.sum(2), torch.ones(3, 64))
    assert torch.equal(matrices[2], torch.eye(64))
    image = torch.rand(64, 64, generator=generator(11))
    taps = torch.exp(-0.5 * (torch.arange(-3, 4) / 1.9) ** 2)
    kernel = torch.outer(taps, taps) / taps.sum() ** 2
    expected = conv2d(image[None, None], kernel[None, None])[0, 0]
    assert torch.allclose((matrices[1] @ image @ matrices[1].t())[3:-3, 3:-3], expected, atol=1e-6)


def test_only_images_above_32_pixels_are_blurred_and_half_of_them() -> None:
    sigmas = draw_sigmas(10000, generator(12))
    blurred = sigmas > 1e-2
    assert blurred.float().mean().item() == pytest.approx(0.5, abs=0.02)
    assert 0.1 <= sigmas[blurred].min() < 0.11
    assert 1.99 < sigmas[blurred].max() <= 2.0

    def sharpness(size: int) -> Tensor:
        board = (255 * (torch.arange(size)[:, None] + torch.arange(size)).remainder(2)).to(torch.uint8)
        shown = contrast_view(board.expand(200, 1, -1, -1), generator(13), 1.0, flip=False, jitter=False)
        return shown.std((1, 2, 3))

    assert (sharpness(32) > 0.49).all()
    assert 0.3 < (sharpness(34) < 0.3).float().mean() < 0.6
