"""The index of samples: packed and unpacked to the bit, encoded once, forgotten when they leave."""

import pytest
import torch

from strongreplay.data.codec import Codec
from strongreplay.data.user_data import Chunk
from strongreplay.models.samples import Origin, SampleIndex, origins_of

SHAPE = (3, 12, 12)


def make_images(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, *SHAPE), dtype=torch.uint8, generator=generator)


def make_index(store: Codec, count: int) -> SampleIndex:
    index = SampleIndex(store, SHAPE)
    index.origins = {number: Origin(number, f"photo-{number}.png", "a", 1) for number in range(1, count + 1)}
    return index


@pytest.mark.parametrize("store", ["raw", "png", "jpeg"])
def test_what_is_packed_is_unpacked_with_ids_and_origins(store: Codec) -> None:
    index, images, ids = make_index(store, 4), make_images(4), torch.tensor([2, 1, 4, 2])
    images[3] = images[0]  # the same sample in two rows
    index.apply_loss(images, ids)
    packed, other = index.pack(images, ids), SampleIndex(store, SHAPE)
    found, numbers = other.unpack(packed)
    assert torch.equal(found, images)
    assert numbers.tolist() == ids.tolist()
    assert other.origins == {number: index.origins[number] for number in (1, 2, 4)}
    again = other.pack(found, numbers)
    assert again.keys() == packed.keys()
    assert all(torch.equal(again[key], packed[key]) for key in packed if key != "origins")


def test_an_image_is_put_through_jpeg_once() -> None:
    index, images, ids = make_index("jpeg", 2), make_images(2), torch.tensor([1, 2])
    before = images.clone()
    index.apply_loss(images, ids)
    once = images.clone()
    assert not torch.equal(once, before)
    index.apply_loss(images, ids)
    assert torch.equal(images, once)


def test_only_what_is_kept_stays_known() -> None:
    index = make_index("png", 3)
    index.pack(make_images(3), torch.tensor([1, 2, 3]))
    index.keep_only([2])
    assert set(index.origins) == set(index.files) == {2}


def test_bytes_of_an_image_are_those_on_disk() -> None:
    flat = torch.zeros(5, *SHAPE, dtype=torch.uint8)
    assert make_index("raw", 0).image_bytes(flat) == 3 * 12 * 12
    index = make_index("png", 5)
    packed = index.pack(flat, torch.arange(1, 6))
    assert index.image_bytes(flat) == packed["lengths"].tolist()[0] < 200


def test_two_copies_of_a_picture_have_two_origins() -> None:
    chunk = Chunk(torch.zeros(2, *SHAPE, dtype=torch.uint8), ("a", "a"), ("x.png", "y.png"))
    origins = origins_of(chunk, [5, 6], 2)
    assert origins == {5: Origin(5, "x.png", "a", 2), 6: Origin(6, "y.png", "a", 2)}
