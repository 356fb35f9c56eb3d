"""Whole-batch augmentations against Pillow image by image, and the draws that choose among them."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from strongreplay.data.augment import ops, policy
from strongreplay.errors import DataError

one_or_three = pytest.mark.parametrize("channels", [1, 3])


def random_images(count: int = 24, channels: int = 3, height: int = 32, width: int = 32) -> Tensor:
    """Noise, smooth ramps, dark and flat ones: histograms of every kind."""
    generator = torch.Generator().manual_seed(channels)
    shape = (count, channels, height, width)
    images = torch.randint(0, 256, shape, generator=generator)
    images[::4] = images[::4] // 5 + 30
    ramp = torch.arange(height)[:, None] * 3 + torch.arange(width) * 4
    images[1::4] = (ramp + 40 * torch.arange(channels)[:, None, None]).clamp(max=255)
    images[2] = 77
    images[6] = torch.where(torch.rand(shape[1:], generator=generator) < 0.1, 200, 9)
    return images.to(torch.uint8)


def by_pillow(images: Tensor, change: Callable[[Image.Image, int], Image.Image]) -> Tensor:
    found = []
    for number, image in enumerate(images):
        pixels = image[0] if len(image) == 1 else image.permute(1, 2, 0)
        changed = torch.from_numpy(np.array(change(Image.fromarray(pixels.numpy()), number)))
        found.append(changed[None] if len(image) == 1 else changed.permute(2, 0, 1))
    return torch.stack(found)


def spread(low: float, high: float, count: int = 24) -> Tensor:
    """One amount an image, in shuffled order."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(5))
    return torch.linspace(low, high, count)[order]


def difference(first: Tensor, second: Tensor) -> Tensor:
    return (first.int() - second.int()).abs()


@one_or_three
def test_what_whole_numbers_can_do_is_pillow_to_the_byte(channels: int) -> None:
    images = random_images(channels=channels)
    thresholds, bits = spread(0, 256), spread(1, 8).round()
    pairs = [
        (ops.invert(images), lambda image, n: ImageOps.invert(image)),
        (images.flip(-1), lambda image, n: ImageOps.mirror(image)),
        (images.flip(-2), lambda image, n: ImageOps.flip(image)),
        (ops.equalise(images), lambda image, n: ImageOps.equalize(image)),
        (ops.solarise(images, thresholds), lambda image, n: ImageOps.solarize(image, thresholds[n].item())),  # type: ignore[arg-type]
        (ops.posterise(images, bits), lambda image, n: ImageOps.posterize(image, int(bits[n]))),
    ]
    for ours, change in pairs:
        assert ours.dtype == torch.uint8
        assert torch.equal(ours, by_pillow(images, change))


@one_or_three
def test_autocontrast_is_exact_division_and_pillow_but_for_its_rounding(channels: int) -> None:
    images = random_images(channels=channels)
    ours = ops.autocontrast(images)
    pixels = images.long()
    low, high = pixels.amin((2, 3), keepdim=True), pixels.amax((2, 3), keepdim=True)
    numerator, span = 255 * (pixels - low), (high - low).clamp(min=1)
    assert torch.equal(
        ours.long(), torch.where(high > low, numerator.div(span, rounding_mode="floor"), pixels)
    )
    off = difference(ours, by_pillow(images, lambda image, n: ImageOps.autocontrast(image)))
    # Pillow multiplies by a rounded 255 / span, which may end just below a whole number.
    assert off.max() <= 1
    assert ((numerator % span == 0) | (off == 0)).all()
    stretched = high.flatten() > low.flatten()
    assert (ours.amax((2, 3)).flatten()[stretched] == 255).all()
    assert (ours.amin((2, 3)).flatten()[stretched] == 0).all()


@one_or_three
@pytest.mark.parametrize("name", ["brightness", "contrast", "colour", "sharpness"])
def test_enhancements_are_pillows_within_one_level(name: str, channels: int) -> None:
    images, factors = random_images(channels=channels), spread(0, 2)
    ours = getattr(ops, name)(images, factors)
    pillow = {"colour": "Color"}.get(name, name.title())
    theirs = by_pillow(
        images, lambda image, n: getattr(ImageEnhance, pillow)(image).enhance(factors[n].item())
    )
    off = difference(ours, theirs)
    assert off.max() <= 1
    assert (off > 0).float().mean() < 1e-3
    assert torch.equal(getattr(ops, name)(images, torch.ones(24)), images)


def test_colour_leaves_one_channel_alone_and_makes_three_grey_at_zero() -> None:
    grey = random_images(channels=1)
    assert torch.equal(ops.colour(grey, spread(0, 2)), grey)
    flat = ops.colour(random_images(), torch.zeros(24))
    assert torch.equal(flat[:, 0], flat[:, 1])
    assert torch.equal(flat[:, 0], flat[:, 2])


def test_sharpness_leaves_an_image_that_is_all_edge_alone() -> None:
    images = random_images(height=2, width=9)
    assert torch.equal(ops.sharpness(images, spread(0, 2)), images)


Coefficients = Callable[[float], tuple[float, float, float, float, float, float]]


@one_or_three
@pytest.mark.parametrize(
    ("name", "amounts", "coefficients"),
    [
        ("translate_x", spread(-12, 12).trunc(), lambda a: (1, 0, a, 0, 1, 0)),
        ("translate_y", spread(-12, 12).trunc(), lambda a: (1, 0, 0, 0, 1, a)),
        ("shear_x", spread(-0.3, 0.3), lambda a: (1, a, 0, 0, 1, 0)),
        ("shear_y", spread(-0.3, 0.3), lambda a: (1, 0, 0, a, 1, 0)),
    ],
)
def test_shifts_and_shears_are_pillows(
    name: str, amounts: Tensor, coefficients: Coefficients, channels: int
) -> None:
    images = random_images(channels=channels, width=20)  # not square: rows and columns may not be confused
    ours = getattr(ops, name)(images, amounts)
    theirs = by_pillow(
        images,
        lambda image, n: image.transform(
            image.size, Image.Transform.AFFINE, coefficients(amounts[n].item()), Image.Resampling.NEAREST
        ),
    )
    # A source on the line between two pixels may fall to either side.
    assert (ours != theirs).float().mean() <= (0 if "translate" in name else 0.002)


@one_or_three
def test_rotations_are_pillows(channels: int) -> None:
    images, degrees = random_images(channels=channels, width=20), spread(-90, 90)
    theirs = by_pillow(images, lambda image, n: image.rotate(degrees[n].item(), Image.Resampling.NEAREST))
    assert (ops.rotate(images, degrees) != theirs).float().mean() < 0.005
    square = random_images(channels=channels)
    assert torch.equal(ops.rotate(square, torch.full((24,), 90.0)), square.rot90(1, (2, 3)))
    assert torch.equal(ops.rotate(square, torch.zeros(24)), square)


def test_pixels_from_outside_are_black() -> None:
    white = torch.full((2, 1, 4, 4), 255, dtype=torch.uint8)
    assert ops.translate_x(white, torch.tensor([1.9, -3.0]))[:, 0, 0].tolist() == [
        [255, 255, 255, 0], [0, 0, 0, 255],
    ]  # fmt: skip


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


RANDOM: dict[str, policy.Perturbation] = {
    "auto_augment": policy.auto_augment,
    "rand_augment": policy.rand_augment,
    **{f"vr {number}": change for number, change in enumerate(policy.VR)},
}


@one_or_three
@pytest.mark.parametrize("name", RANDOM)
def test_random_changes_repeat_with_their_generator_and_leave_their_input_alone(
    name: str, channels: int
) -> None:
    images = random_images(64, channels)
    before, change, outside = images.clone(), RANDOM[name], torch.get_rng_state()
    first = change(images, seeded())
    assert first.shape == images.shape
    assert first.dtype == torch.uint8
    assert torch.equal(first, change(images, seeded()))
    assert not torch.equal(first, images)
    assert torch.equal(torch.get_rng_state(), outside)
    first.zero_()
    assert torch.equal(images, before)
    assert change(images[:1], seeded()).shape == (1, channels, 32, 32)


@pytest.mark.parametrize("name", ["auto_augment", "rand_augment", "vr 0", "vr 7"])
def test_every_image_has_its_own_draw(name: str) -> None:
    images = random_images()[3:4].expand(64, -1, -1, -1)
    assert len(RANDOM[name](images, seeded()).flatten(1).unique(dim=0)) > 10


def test_grouped_by_operation_each_image_gets_what_it_chose() -> None:
    images, choice = random_images(), torch.arange(24) % len(policy.NAMES)
    choice = choice[torch.randperm(24, generator=seeded())]
    strengths = spread(-1, 1)
    together = policy.apply(images, policy.NAMES, choice, strengths)
    for number in range(24):
        operation = policy.OPERATIONS[policy.NAMES[choice[number]]]
        alone = operation(images[number : number + 1], strengths[number : number + 1])
        assert torch.equal(together[number : number + 1], alone)


def test_one_call_an_operation_however_many_images(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def count(name: str, operation: policy.Operation) -> policy.Operation:
        def counted(images: Tensor, strength: Tensor) -> Tensor:
            calls.append(name)
            return operation(images, strength)

        return counted

    for name, operation in policy.OPERATIONS.items():
        monkeypatch.setitem(policy.OPERATIONS, name, count(name, operation))
    policy.rand_augment(random_images(500, 3, 8, 8), seeded())
    assert len(calls) == 2 * 14


def test_magnitudes_reach_the_ranges_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Tensor] = {}
    expected = {
        "shear_x": [-0.3, 0, 0.3],
        "translate_x": [-150, 0, 150],
        "translate_y": [-3000 / 331, 0, 3000 / 331],
        "rotate": [-30, 0, 30],
        "posterise": [4, 8, 4],
        "solarise": [0, 256, 0],
        "contrast": [0.1, 1, 1.9],
    }
    images, ends = torch.zeros(3, 3, 20, 331, dtype=torch.uint8), torch.tensor([-1.0, 0.0, 1.0])
    for name, values in expected.items():
        monkeypatch.setattr(
            ops, name, lambda images, amounts, name=name: seen.update({name: amounts}) or images
        )
        policy.OPERATIONS[name](images, ends)
        assert seen[name].tolist() == pytest.approx(values, rel=1e-6)


def drawn(
    monkeypatch: pytest.MonkeyPatch, augment: Callable[[Tensor], Tensor], images: Tensor
) -> list[tuple[list[str], Tensor]]:
    """The operation and the strength of every image, for each round."""
    rounds: list[tuple[list[str], Tensor]] = []

    def spy(images: Tensor, names: tuple[str, ...], choice: Tensor, strengths: Tensor) -> Tensor:
        rounds.append(([names[number] for number in choice], strengths))
        return images

    monkeypatch.setattr(policy, "apply", spy)
    augment(images)
    return rounds


def test_the_policy_is_the_published_table() -> None:
    """Sums that any slip of the pen in it would change."""
    first, second = ([pair[place] for pair in policy.CIFAR10_POLICY] for place in (0, 1))
    assert len(first) == 25
    assert [sum(round(10 * chance) for _, chance, _ in half) for half in (first, second)] == [134, 131]
    assert [sum(level for _, _, level in half) for half in (first, second)] == [139, 128]
    weighed = [sum(n * round(10 * p) * (m + 1) for n, (_, p, m) in enumerate(h)) for h in (first, second)]
    assert weighed == [12463, 8129]
    assert Counter(name for name, _, _ in first + second) == {
        "equalise": 9, "autocontrast": 7, "sharpness": 5, "colour": 5, "translate_y": 5, "brightness": 4,
        "solarise": 4, "invert": 3, "shear_y": 2, "contrast": 2, "translate_x": 2, "rotate": 1,
        "posterise": 1,
    }  # fmt: skip


@pytest.mark.slow
def test_the_policy_is_drawn_with_its_odds_and_magnitudes(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 50_000
    images = torch.zeros(count, 3, 1, 1, dtype=torch.uint8)
    (first, strengths), (second, _) = drawn(
        monkeypatch, lambda images: policy.auto_augment(images, seeded()), images
    )
    for names, place in ((first, 0), (second, 1)):
        for name in policy.NAMES[1:]:
            expected = sum(pair[place][1] for pair in policy.CIFAR10_POLICY if pair[place][0] == name) / 25
            assert names.count(name) / count == pytest.approx(expected, abs=0.006)
    # Sub-policy 1 is the only one that begins with a rotation: magnitude 2 of 9, either way.
    rotated = strengths[[name == "rotate" for name in first]]
    assert rotated.unique().tolist() == pytest.approx([-2 / 9, 2 / 9])
    assert (rotated > 0).float().mean().item() == pytest.approx(0.5, abs=0.05)
    # Sub-policies 6, 10 and 17 begin with colour at 3, 7 and 9: factors run from 0.1 to 1.9, unsigned.
    coloured = strengths[[name == "colour" for name in first]]
    factors = (1 + 0.9 * coloured).unique().tolist()
    assert factors == pytest.approx([0.1 + 1.8 * 3 / 9, 0.1 + 1.8 * 7 / 9, 1.9])


def test_both_operations_of_a_pair_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.zeros(20_000, 3, 1, 1, dtype=torch.uint8)
    (first, _), (second, _) = drawn(monkeypatch, lambda images: policy.auto_augment(images, seeded()), images)
    listed = {(a[0], b[0]) for a, b in policy.CIFAR10_POLICY if a[1] and b[1]}
    met = {pair for pair in zip(first, second, strict=True) if "identity" not in pair}
    assert met == listed


@one_or_three
def test_rand_augment_draws_evenly_at_nine_of_thirty(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.zeros(14_000, channels, 1, 1, dtype=torch.uint8)
    rounds = drawn(monkeypatch, lambda images: policy.rand_augment(images, seeded()), images)
    geometric = {"shear_x", "shear_y", "translate_x", "translate_y", "rotate"}
    names = geometric | {"identity", "invert"}
    if channels == 3:
        names = set(policy.NAMES) - {"invert"}
        assert len(names) == 14
    assert len(rounds) == 2
    for chosen, strengths in rounds:
        assert set(chosen) == names
        for name in names:
            assert chosen.count(name) / 14_000 == pytest.approx(1 / len(names), abs=0.012)
        assert strengths.unique().tolist() == pytest.approx([-0.3, 0.3])


def test_what_is_no_raw_image_is_refused() -> None:
    for inputs in (torch.zeros(2, 64), torch.zeros(2, 3, 8, 8), torch.zeros(2, 4, 8, 8, dtype=torch.uint8)):
        with pytest.raises(DataError, match=r"needs \(B, C, H, W\) uint8 images"):
            policy.auto_augment(inputs, seeded())


def test_the_fixed_set_has_twelve_and_one_channel_goes_without_solarisation() -> None:
    assert len(policy.perturbations("rand", 3)) == len(policy.perturbations("rand", 1)) == 12
    assert len(policy.perturbations("vr", 3)) == 12
    assert policy.perturbations("vr", 1) == policy.VR[:9]
    images = random_images()
    changed = [change(images, seeded()) for change in policy.VR]
    assert torch.equal(changed[4], images.flip(-1))
    assert torch.equal(changed[5], images.flip(-2))
    assert torch.equal(changed[8], 255 - images)
    for place, threshold in ((9, 128), (10, 64), (11, 32)):
        assert torch.equal(changed[place], torch.where(images < threshold, images, 255 - images))


@pytest.mark.parametrize(("place", "size"), [(0, 8), (1, 16), (2, 24), (3, 32)])
def test_cutout_blackens_a_square_that_the_edge_may_cut(place: int, size: int) -> None:
    white = torch.full((2000, 3, 32, 32), 255, dtype=torch.uint8)
    black = (policy.VR[place](white, seeded()) == 0).all(1)
    heights, widths = black.any(2).sum(1), black.any(1).sum(1)
    assert torch.equal(black.sum((1, 2)), heights * widths)  # a rectangle
    assert heights.max() == widths.max() == size
    assert heights.min() == widths.min() == size // 2
    middles = torch.stack([centre_of(black.any(2)), centre_of(black.any(1))])
    assert torch.corrcoef(middles)[0, 1].abs() < 0.1  # rows and columns are drawn apart


def centre_of(marked: Tensor) -> Tensor:
    return (marked * torch.arange(marked.shape[1])).sum(1) / marked.sum(1)


@pytest.mark.parametrize(("place", "limit"), [(6, 45), (7, 90)])
def test_rotations_stay_within_their_limit_and_fill_it(
    place: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Tensor] = []

    def spy(images: Tensor, degrees: Tensor) -> Tensor:
        asked.append(degrees)
        return images

    monkeypatch.setattr(ops, "rotate", spy)
    policy.VR[place](torch.zeros(5000, 1, 2, 2, dtype=torch.uint8), seeded())
    assert asked[0].abs().max().item() == pytest.approx(limit, rel=0.01)
    assert asked[0].mean().abs() < 0.03 * limit


def test_cutmix_by_hand() -> None:
    images = torch.stack([torch.zeros(1, 4, 4), torch.ones(1, 4, 4)])
    box = policy.box_around(1, 4, 0.75), policy.box_around(1, 4, 0.75)
    assert box == (slice(0, 2), slice(0, 2))
    assert policy.share_outside(box, 4, 4) == 0.75
    mixed = policy.paste(images, torch.tensor([1, 0]), box)
    assert mixed[0, 0].tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert torch.equal(mixed[1], 1 - mixed[0])
    assert images[0].sum() == 0  # not written into


def test_the_weight_is_that_of_the_box_after_the_edge_has_cut_it() -> None:
    box = policy.box_around(0, 8, 0.75), policy.box_around(7, 8, 0.75)  # side 4 around a corner
    assert box == (slice(0, 2), slice(5, 8))
    assert policy.share_outside(box, 8, 8) == 1 - 6 / 64
    whole = policy.box_around(4, 8, 0.0)
    assert whole == slice(0, 8)
    assert policy.share_outside((whole, whole), 8, 8) == 0
    none = policy.box_around(3, 8, 1.0)
    assert policy.share_outside((none, whole), 8, 8) == 1


def test_cutmix_pastes_the_share_it_says_from_the_partners_it_names() -> None:
    count = 12
    images = torch.arange(count, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 3, 8, 10).contiguous()
    before, shares = images.clone(), []
    for seed in range(200):
        mixed, partners, share = policy.cutmix(images, seeded(seed))
        shares.append(share)
        assert sorted(partners.tolist()) == list(range(count))
        own = mixed == images
        other = mixed == partners.view(-1, 1, 1, 1)
        assert (own | other).all()
        changed = partners != torch.arange(count)
        assert torch.allclose(own[changed].float().mean((1, 2, 3)), torch.tensor(share), atol=1e-6)
        assert torch.equal(mixed, policy.cutmix(images, seeded(seed))[0])
    assert torch.equal(images, before)
    assert len(set(shares)) > 20
    assert min(shares) < 0.3
    assert max(shares) > 0.95
