"""The user's own data: any kind gives one chunk, equal pixels give equal bytes, bad data is named."""

import hashlib
import io
import os
import re
import struct
import tempfile
import time
import tracemalloc
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.contents import write
from torch.utils.data import Subset, TensorDataset

from strongreplay.data.convert import LARGEST_SIDE
from strongreplay.data.user_data import (
    Chunk,
    digests,
    find_images,
    read_chunk,
    read_inputs,
    stream_images,
)
from strongreplay.errors import ConfigError, DataError

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)
GREY = RNG.integers(0, 256, (4, 8, 8), np.uint8)
COLOUR = RNG.integers(0, 256, (4, 8, 8, 3), np.uint8)
NAMES = ["cat", "cat", "dog", "emu"]
FEATURES = RNG.normal(size=(4, 5)).astype(np.float32)


def pack(image: Image.Image | Array, form: str = "PNG", **options: Any) -> bytes:
    packed = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(packed, form, **options)
    return packed.getvalue()


def write_pngs(folder: Path, pixels: Array | list[Array], labels: list[str]) -> Path:
    pairs = enumerate(zip(pixels, labels, strict=True))
    return write(folder, {f"{label}/{row:03}.png": pack(image) for row, (image, label) in pairs})


class Pairs:
    """A map-style dataset of whatever it is given."""

    def __init__(self, images: Any, labels: Any, classes: Any = None) -> None:
        self.images, self.labels = images, labels
        if classes is not None:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        return self.images[row], self.labels[row]


def channels_first(pixels: Array) -> Array:
    return pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("pixels", [GREY, COLOUR], ids=["grey", "colour"])
def test_the_same_pixels_give_the_same_bytes_whatever_they_come_as(tmp_path: Path, pixels: Array) -> None:
    folder = write_pngs(tmp_path / "photos", pixels, NAMES)
    lines = [f"{label}/{row:03}.png,{label}" for row, label in enumerate(NAMES)]
    write(folder, {"list.csv": "\n".join(["path,label", *lines]).encode()})
    np.savez(tmp_path / "photos.npz", Images=pixels, Y=np.array(NAMES), other=np.zeros(3))
    np.savez_compressed(tmp_path / "packed.npz", x=channels_first(pixels), labels=np.array(NAMES))
    pictures = [Image.fromarray(image) for image in pixels]
    floats = pixels / 255
    chunks = {
        "folder": read_chunk(folder),
        "text": read_chunk(str(folder)),
        "manifest": read_chunk(folder / "list.csv"),
        "npz": read_chunk(tmp_path / "photos.npz"),
        "packed": read_chunk(tmp_path / "packed.npz"),
        "array": read_chunk(pixels, NAMES),
        "pair": read_chunk((pixels, np.array(NAMES))),
        "channels first": read_chunk(channels_first(pixels), tuple(NAMES)),
        "read-only": read_chunk(np.frombuffer(pixels.tobytes(), np.uint8).reshape(pixels.shape), NAMES),
        "tensor": read_chunk(torch.from_numpy(channels_first(pixels)), NAMES),
        "floats": read_chunk(floats, NAMES),
        "float tensor": read_chunk(torch.from_numpy(floats).float().requires_grad_(), NAMES),
        "nested lists": read_chunk(floats.tolist(), NAMES),
        "list of images": read_chunk(pictures, NAMES),
        "list of arrays": read_chunk(list(pixels), NAMES),
        "dataset": read_chunk(Pairs(pictures, NAMES)),
        "dataset of arrays": read_chunk(Pairs(floats, NAMES)),
        "dataset of tensors": read_chunk(Pairs(torch.from_numpy(channels_first(pixels)), NAMES)),
        "list of pairs": read_chunk(list(zip(pictures, NAMES, strict=True))),
    }
    expected = torch.from_numpy(channels_first(pixels).copy())
    for kind, chunk in chunks.items():
        assert chunk.inputs.dtype == torch.uint8, kind
        assert torch.equal(chunk.inputs, expected), kind
        assert chunk.inputs.is_contiguous(), kind
        assert chunk.labels == tuple(NAMES), kind
        assert len(chunk) == len(chunk.sources) == 4, kind
    assert len({chunk.fingerprint for chunk in chunks.values()}) == 1
    assert chunks["folder"].sources[2] == chunks["manifest"].sources[2] == "dog/002.png"
    assert chunks["npz"].sources[3] == "photos.npz#3"
    assert chunks["array"].sources == chunks["dataset"].sources == ("#0", "#1", "#2", "#3")


@pytest.mark.parametrize("size", [(90, 70), (70, 90), (33, 40), (5, 5)])
@pytest.mark.parametrize("shape", [None, (1, 16, 16), (3, 16, 16), (3, 80, 80)])
@pytest.mark.parametrize("depth", [(), (3,)], ids=["grey", "colour"])
def test_files_and_arrays_are_resized_alike(
    tmp_path: Path, size: tuple[int, int], shape: tuple[int, ...] | None, depth: tuple[int, ...]
) -> None:
    pixels = RNG.integers(0, 256, (2, *size, *depth), np.uint8)
    folder = write_pngs(tmp_path, pixels, ["a", "b"])
    ways = [
        read_chunk(folder, shape=shape),
        read_chunk(pixels, ["a", "b"], shape=shape),
        read_chunk(Pairs([Image.fromarray(image) for image in pixels], ["a", "b"]), shape=shape),
    ]
    side = min(*size, LARGEST_SIDE)
    assert ways[0].inputs.shape[1:] == (shape or (3 if depth else 1, side, side))
    assert len({chunk.fingerprint for chunk in ways}) == 1
    assert torch.equal(read_inputs(pixels, shape=shape), ways[0].inputs)


def test_the_side_is_the_middle_one_of_the_shorter_sides(tmp_path: Path) -> None:
    sizes = [(9, 20), (12, 12), (300, 200), (13, 11), (8, 30)]  # shorter: 9, 12, 200, 11, 8
    pixels = [RNG.integers(0, 256, size, np.uint8) for size in sizes]
    folder = write_pngs(tmp_path, pixels, ["a"] * 5)
    assert read_chunk(folder).inputs.shape == (5, 1, 11, 11)
    pictures = [Image.fromarray(image) for image in pixels]
    assert read_chunk(Pairs(pictures, ["a"] * 5)).fingerprint == read_chunk(folder).fingerprint
    assert read_chunk(folder, side=7, channels=3).inputs.shape == (5, 3, 7, 7)
    assert read_chunk(pixels, ["a"] * 5, side=100).inputs.shape == (5, 1, 100, 100)
    assert read_chunk(GREY, NAMES, channels=3).inputs.shape == (4, 3, 8, 8)
    assert read_chunk(GREY, NAMES, side=7, channels=3, shape=(1, 6, 6)).inputs.shape == (4, 1, 6, 6)
    large = write_pngs(tmp_path / "large", [np.zeros((100, 100), np.uint8)], ["a"])
    assert read_chunk(large).inputs.shape == (1, 1, 64, 64)


def test_every_mode_of_an_image_is_taken(tmp_path: Path) -> None:
    flat = np.full((6, 8), 100, np.uint8)
    turned = Image.Exif()
    turned[0x0112] = 6  # the stored rows are columns, from the right
    stripes = np.repeat(np.array([[10], [250]], np.uint8), 4, 0).repeat(8, 1)
    contents = {
        "a/alpha.png": pack(np.dstack([flat, flat, flat, np.full_like(flat, 255)])),
        "a/grey.png": pack(flat),
        "a/palette.png": pack(Image.fromarray(flat).convert("P")),
        "a/wide.png": pack(flat.astype(np.uint16) * 256 + 9),
        "b/turned.png": pack(stripes, exif=turned),
    }
    chunk = read_chunk(write(tmp_path, contents))
    assert chunk.inputs.shape == (5, 3, 6, 6)
    assert chunk.inputs[:4].unique().tolist() == [100]
    assert chunk.inputs[4, 0, :, 0].unique().tolist() == [250]  # the lower row is the left column now
    pictures = [Image.open(io.BytesIO(content)) for content in contents.values()]
    assert read_chunk(Pairs(pictures, chunk.labels)).fingerprint == chunk.fingerprint


def test_an_image_of_floats_follows_the_rule_for_floats() -> None:
    picture = Image.fromarray(np.full((4, 4), 0.5, np.float32))
    assert read_chunk([picture], ["a"]).inputs.unique().tolist() == [128]
    with pytest.raises(DataError, match=r"data #0: float images must lie in 0 to 1, got 2\.0"):
        read_chunk([Image.fromarray(np.full((4, 4), 2, np.float32))], ["a"])


def test_a_chunk_is_a_copy_of_the_users_array() -> None:
    pixels, features = GREY.copy(), FEATURES.copy()
    images, rows = read_chunk(pixels, NAMES), read_chunk(features, NAMES)
    pixels[:], features[:] = 0, 0
    assert torch.equal(images.inputs[:, 0], torch.from_numpy(GREY))
    assert torch.equal(rows.inputs, torch.from_numpy(FEATURES))


def test_features_become_floats(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", FEATURES=FEATURES.astype(np.float64), y=[3, 1, 3, 2])
    chunks = [
        read_chunk(tmp_path / "rows.npz"),
        read_chunk(FEATURES, np.array([3.0, 1, 3, 2])),
        read_chunk(FEATURES.tolist(), torch.tensor([3, 1, 3, 2])),
        read_chunk(TensorDataset(torch.from_numpy(FEATURES), torch.tensor([3, 1, 3, 2]))),
        read_chunk(list(FEATURES), [3, 1, 3, 2], shape=(5,)),
    ]
    for chunk in chunks:
        assert chunk.inputs.dtype == torch.float32
        assert torch.equal(chunk.inputs, torch.from_numpy(FEATURES))
        assert chunk.labels == (3, 1, 3, 2)
        assert {type(label) for label in chunk.labels} == {int}
    assert read_chunk([[1, 2], [3, 4]], ["a", "b"]).inputs.tolist() == [[1, 2], [3, 4]]
    assert read_inputs(FEATURES, shape=(5,)).tolist() == FEATURES.tolist()
    assert read_inputs(torch.ones(2, 3, dtype=torch.bfloat16)).tolist() == [[1.0] * 3] * 2


class Series:
    """Like a column of a data frame."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.array(self.values, dtype=object)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["b", "a", "b", "a"], ("b", "a", "b", "a")),
        (np.array(["b", "ä", "b", "日本"]), ("b", "ä", "b", "日本")),
        ([1, "1", 2, "two"], (1, "1", 2, "two")),
        ([np.int64(1), np.str_("x"), torch.tensor(3), np.array(4)], (1, "x", 3, 4)),
        (np.array([1, 2, 3, -4], np.int8), (1, 2, 3, -4)),
        ([1.0, 2, np.float32(3), -0.0], (1, 2, 3, 0)),
        (Series(["x", 1, 2.0, "x"]), ("x", 1, 2, "x")),
        ([2**70, 0, 0, 0], (2**70, 0, 0, 0)),
    ],
)
def test_labels_are_strings_and_integers(labels: object, expected: tuple[object, ...]) -> None:
    found = read_chunk(FEATURES, labels).labels
    assert found == expected
    assert [type(label) for label in found] == [type(label) for label in expected]


@pytest.mark.parametrize(
    "odd",
    [
        True,
        np.True_,
        None,
        float("nan"),
        float("inf"),
        1.5,
        b"x",
        "",
        "  ",
        "a\nb",
        "\x1b[31m",
        "\udc80",
        [1],
        {},
    ],
)
def test_a_label_that_is_no_label_is_named(odd: object) -> None:
    for data, labels in ((FEATURES, ["a", 1, odd, "b"]), (Pairs(FEATURES, ["a", 1, odd, "b"]), None)):
        with pytest.raises(DataError, match=r"labels #2: (a label|names) must be .*, got .*; ") as caught:
            read_chunk(data, labels)
        str(caught.value).encode()  # can be shown


@pytest.mark.parametrize("labels", [np.zeros((4, 1), int), "abcd", np.eye(4), 7, {"a": 1}])
def test_labels_are_one_a_sample(labels: object) -> None:
    with pytest.raises(DataError, match=r"labels: must be one a sample, got shape \(.*\); give a list"):
        read_chunk(FEATURES, labels)


def test_lengths_must_agree(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=FEATURES, y=[1, 2])
    with pytest.raises(DataError, match=r"rows.npz: got 4 samples but 2 labels; label each sample"):
        read_chunk(tmp_path / "rows.npz")
    for data in (FEATURES, GREY, list(GREY), FEATURES.tolist(), (FEATURES)):
        with pytest.raises(DataError, match="data: got 4 samples but 3 labels; label each sample"):
            read_chunk(data, NAMES[:3])
    with pytest.raises(DataError, match="Chunk: must have as many of each, got 4 inputs, 1 labels and 0"):
        Chunk(torch.zeros(4, 2), ("a",), ())


@pytest.mark.parametrize("data", [np.zeros((0, 5)), np.zeros((0, 1, 8, 8), np.uint8), [], Pairs([], [])])
def test_no_samples_are_refused(data: object) -> None:
    with pytest.raises(DataError, match="data: must hold at least one sample, got none; give more data"):
        read_chunk(data, None if isinstance(data, Pairs) else [])


def test_names_of_classes_are_taken_from_a_dataset() -> None:
    data = Pairs(GREY, np.array([2, 0, 2, 1]), ["x", "y", "z"])
    assert read_chunk(data).labels == ("z", "x", "z", "y")
    assert read_chunk(Subset(Subset(data, [1, 2, 3]), [0, 2])).labels == ("x", "y")  # type: ignore[arg-type]
    assert read_chunk(Pairs(GREY, NAMES, ["x", "y", "z"])).labels == tuple(NAMES)
    assert read_chunk(Pairs(GREY, [2, 0, 2, 1], 3)).labels == (2, 0, 2, 1)
    for odd in (3, -1):
        with pytest.raises(DataError, match=rf"labels must be 0 to 2, .* names, got {odd}; fix the labels"):
            read_chunk(Pairs(GREY, [2, 0, odd, 1], ["x", "y", "z"]))


def test_a_dataset_is_read_once_if_the_shape_is_known() -> None:
    class Counting(Pairs):
        asked: list[int] = []  # noqa: RUF012

        def __getitem__(self, row: int) -> tuple[Any, Any]:
            self.asked.append(row)
            return super().__getitem__(row)

    reports: list[tuple[str, int, int]] = []
    data = Counting(GREY, NAMES)
    read_chunk(data, shape=(1, 8, 8), progress=lambda *report: reports.append(report))
    assert data.asked[1:] == [0, 1, 2, 3]  # after one look at what kind it is
    assert reports == [("reading images", 4, 4)]


def test_a_sample_of_a_dataset_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    class Files(Pairs):
        def __getitem__(self, row: int) -> tuple[Any, Any]:
            return Image.open(io.BytesIO(self.images[row].read_bytes())), self.labels[row]

    write(tmp_path, {"good.png": pack(GREY[0]), "cut.png": pack(RNG.integers(0, 256, (9, 9), np.uint8))[:70]})
    cut = Files([tmp_path / "good.png", tmp_path / "cut.png"], ["a", "b"])
    none = Files([tmp_path / "good.png", tmp_path / "none.png"], ["a", "b"])
    for data in (cut, none):
        for shape in (None, (1, 8, 8)):
            with pytest.raises(DataError, match=r"data #1: cannot be read \(.*Error: .*\); fix the sample"):
                read_chunk(data, shape=shape)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (GREY, "arrays must come with labels, got none"),
        (torch.zeros(3, 3), "arrays must come with labels, got none"),
        ([[1.0, 2, 3]], r"data #0: must be \(image, label\), got list; give a folder"),
        ([{"image": 1}], r"data #0: must be \(image, label\), got dict"),
        ([(GREY[0], 1), (FEATURES[0], 1)], r"data #1: an image must be a PIL image or an array .* \(5,\)"),
        (
            [(FEATURES[0], 1), (FEATURES[0, :3], 1)],
            r"data #1: must have the first sample's shape \(5,\), got \(3,\)",
        ),
        ([(np.zeros(0), 1)], r"not empty, got shape \(1, 0\)"),
        ([(GREY[0], 1), (GREY[0].astype(int), 1)], "data #1: images must be uint8, .* got int64"),
        ([(Image.new("L", (0, 5)), 1)], "data #0: an image must have pixels, got none; take it out"),
        ([(3, 1)], r"data #0: an image must be .* got int of shape \(\)"),
        (iter([]), "data: cannot be read, got list_iterator; give a folder of class folders"),
        ({"a": 1}, "data: cannot be read, got dict"),
        (None, "data: cannot be read, got NoneType"),
        (7, "data: cannot be read, got int"),
    ],
)
def test_data_of_no_known_kind(data: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_chunk(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (GREY.astype(int), r"images must be uint8, or floats in 0 to 1, got int64; .* astype\('uint8'\)"),
        (GREY > 9, "images must be uint8, or floats in 0 to 1, got bool"),
        (GREY.astype(float), r"data #0: float images must lie in 0 to 1, got \d+.0; scale them"),
        (np.where(np.arange(4)[:, None, None] == 2, np.nan, GREY / 255), "data #2: float .* got nan"),
        (np.where(np.arange(4)[:, None, None] == 3, -0.1, GREY / 255), "data #3: float .* got -0.1"),
        (
            np.zeros((4, 2, 8, 8), np.uint8),
            r"must have 1 or 3 channels, second or last, got shape \(4, 2, 8, 8\)",
        ),
        (
            np.zeros((4, 8, 8, 4), np.uint8),
            r"must have 1 or 3 channels, second or last, got shape \(4, 8, 8, 4\)",
        ),
        (np.zeros((4, 1, 0, 8), np.uint8), r"not empty, got shape \(4, 1, 0, 8\)"),
        (np.zeros((4, 0)), r"not empty, got shape \(4, 0\)"),
        (np.zeros(4), r"must be \(N, D\) features .* got shape \(4,\); reshape"),
        (np.zeros((4, 1, 1, 1, 1)), r"must be \(N, D\) features .* got shape"),
        ([[1, 2], [3], [4], [5]], "data: is no array .*; give all rows the same shape"),
        (["a", "b", "c", "d"], r"must be \(N, D\) features .* got shape \(4,\)"),
        (np.full((4, 2), "a"), "features must be numbers, got <U1; convert them to float32"),
        (FEATURES.astype(object), "features must be numbers, got object"),
        (FEATURES.astype(complex), "features must be numbers, got complex128"),
        (
            np.where(np.arange(4)[:, None] == 1, np.nan, FEATURES),
            "data #1: features must be finite .* got nan in",
        ),
        (
            np.where(np.arange(4)[:, None] == 2, -np.inf, FEATURES),
            "data #2: features must be finite .* got -inf",
        ),
        (
            np.where(np.arange(4)[:, None] == 3, 1e300, 1.0),
            r"data #3: features must be finite .* got 1e\+300",
        ),
    ],
)
def test_arrays_that_are_neither_images_nor_features(data: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_chunk(data, NAMES)


def test_images_and_features_are_not_mixed_up(tmp_path: Path) -> None:
    write_pngs(tmp_path, GREY, NAMES)
    for data, labels in ((tmp_path, None), (GREY, NAMES), (Pairs(GREY, NAMES), None)):
        with pytest.raises(DataError, match="must be features of 5 columns, got images; give an array"):
            read_chunk(data, labels, shape=(5,))
    for data, labels in ((FEATURES, NAMES), (Pairs(FEATURES, NAMES), None)):
        with pytest.raises(
            DataError, match="data: must be images, got features; give image files, or arrays"
        ):
            read_chunk(data, labels, shape=(1, 8, 8))
        with pytest.raises(DataError, match="data: must be images, got features"):
            read_chunk(data, labels, side=8)
        with pytest.raises(
            DataError, match="features must have 6 columns, got 5; give the columns that the model was"
        ):
            read_chunk(data, labels, shape=(6,))
    with pytest.raises(DataError, match="image files: must be features of 5 columns, got images"):
        stream_images([tmp_path], (5,))


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    for shape in ((), (0,), (3, 8), (1, 8, 9), (1, 1, 8, 8)):
        with pytest.raises(ConfigError, match=r"shape must be \(channels, side, side\) or \(columns,\), got"):
            read_chunk(GREY, NAMES, shape=shape)
    for wrong in ({"shape": (2, 8, 8)}, {"shape": (1, 0, 0)}, {"side": 0}, {"side": 10**5}, {"channels": 4}):
        with pytest.raises(ConfigError, match=r"(side|channels) must be 1 .*, got"):
            read_chunk(GREY, NAMES, **wrong)
    with pytest.raises(ConfigError, match=r"labels: .* has its own; give the path alone"):
        read_chunk(tmp_path, NAMES)
    with pytest.raises(ConfigError, match="batch_size must be at least 1, got 0"):
        stream_images([], (1, 8, 8), 0)


def test_rows_are_taken_by_place_or_by_mask() -> None:
    chunk = read_chunk(GREY, NAMES)
    some = chunk.take(torch.tensor([3, 0]))
    assert (some.labels, some.sources) == (("emu", "cat"), ("#3", "#0"))
    assert torch.equal(some.inputs, chunk.inputs[[3, 0]])
    masked = chunk.take(torch.tensor([False, True, False, True]))
    assert masked.labels == ("cat", "emu")
    assert torch.equal(masked.inputs, chunk.inputs[[1, 3]])
    assert len(chunk.take(torch.tensor([], dtype=torch.long))) == 0


def test_a_fingerprint_covers_samples_labels_and_order() -> None:
    chunk = read_chunk(GREY, [1, 2, 3, 4])
    changed = GREY.copy()
    changed[3, 7, 7] ^= 1
    others = [
        read_chunk(changed, [1, 2, 3, 4]),
        read_chunk(GREY, ["1", "2", "3", "4"]),
        read_chunk(GREY, [1, 2, 4, 3]),
        read_chunk(GREY[::-1], [1, 2, 3, 4]),
        chunk.take(torch.tensor([1, 0, 2, 3])),
        read_chunk(GREY, [1, 2, 3, 4], channels=3),
        Chunk(chunk.inputs.reshape(4, 1, 4, 16), chunk.labels, chunk.sources),
    ]
    assert len({chunk.fingerprint, *(other.fingerprint for other in others)}) == 8
    assert re.fullmatch("[0-9a-f]{64}", chunk.fingerprint)
    assert Chunk(chunk.inputs, chunk.labels, ("x",) * 4).fingerprint == chunk.fingerprint
    turned = chunk.inputs.transpose(2, 3).contiguous().transpose(2, 3)  # other strides, equal pixels
    assert Chunk(turned, chunk.labels, chunk.sources).fingerprint == chunk.fingerprint


def test_equal_samples_have_equal_digests() -> None:
    images = torch.from_numpy(GREY[[0, 1, 0]])[:, None]
    first, second, third = digests(images)
    assert first == third != second
    assert first == hashlib.sha256(GREY[0].tobytes()).hexdigest()
    assert digests(images.transpose(2, 3).contiguous().transpose(2, 3)) == [first, second, third]
    rows = torch.from_numpy(FEATURES)
    assert digests(rows)[2] == hashlib.sha256(FEATURES[2].tobytes()).hexdigest()
    assert digests(rows.T.contiguous().T) == digests(rows)
    assert digests(torch.zeros(0, 1, 8, 8)) == []


def header(array: Array, shape: str) -> bytes:
    """An array in NumPy's form that says it has another shape."""
    packed = io.BytesIO()
    np.save(packed, array)
    old = re.search(rb"'shape': [^}]*", packed.getvalue())
    assert old is not None
    return packed.getvalue().replace(old[0] + b"}", f"'shape': {shape}, ".encode().ljust(len(old[0])) + b"}")


def save_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_an_npz_file_that_is_not_right(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    objects = np.array(["a", None], dtype=object)
    numbers = np.array([1, 2, 3, 4])
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"x": FEATURES, "y": objects},
            "must hold numbers and text alone, got Python objects in 'y.npy'; write",
        ),
        ({"x": objects, "y": numbers}, "must hold numbers and text alone, got Python objects in 'x.npy'"),
        ({"x": FEATURES}, "must hold one array named labels or y, got 'x'; write it with np.savez"),
        ({"data": FEATURES, "y": numbers}, "must hold one array named inputs, .* or x, got 'data, y'"),
        (
            {"x": FEATURES, "images": GREY, "y": numbers},
            "must hold one array named inputs, .* got 'x, images, y'",
        ),
        (
            {"x": FEATURES, "y": numbers > 2},
            "bad.npz labels #0: a label must be text or a whole number, got False",
        ),
        ({"x": FEATURES, "y": np.array([b"a"] * 4)}, "labels #0: a label must be text .* got b'a'"),
        ({"x": FEATURES * np.nan, "y": numbers}, "bad.npz #0: features must be finite"),
        ({"x": np.array(1.0), "y": numbers}, "got 0 samples but 4 labels"),
    ]
    for arrays, message in cases:
        with pytest.raises(DataError, match=message):
            read_chunk(save_npz(path, **arrays))
    whole = save_npz(path, x=FEATURES, y=numbers).read_bytes()
    at = whole.index(FEATURES.tobytes())
    flipped = whole[:at] + b"\xff" + whole[at + 1 :]
    for content in (b"", b"text", whole[:100], whole[:-30], flipped, pack(GREY[0])):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"bad.npz is damaged .*; write it with np.savez"):
            read_chunk(path)
    with pytest.raises(DataError, match=r"none.npz is missing; write it with"):
        read_chunk(tmp_path / "none.npz")


def test_an_npz_file_cannot_ask_for_more_memory_than_it_has(tmp_path: Path) -> None:
    for shape in ("(4, 5000000000)", "(4, -5)", "(4, 'a')"):
        with zipfile.ZipFile(tmp_path / "bad.npz", "w") as archive:
            archive.writestr("x.npy", header(FEATURES, shape))
            archive.writestr("y.npy", header(np.arange(4), "(4,)"))
        with pytest.raises(
            DataError,
            match=r"bad.npz (says of 'x.npy' that it is larger than it is|has an array of shape|is damaged)",
        ):
            read_chunk(tmp_path / "bad.npz")


def test_an_npz_file_is_packed_as_numpy_packs(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bad.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", header(FEATURES, "(4, 5)"))
    with pytest.raises(
        DataError, match=r"bad.npz is packed in a way that NumPy does not write; write it with"
    ):
        read_chunk(tmp_path / "bad.npz")


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=2)), min_size=1, max_size=3), st.booleans()
)
def test_any_npz_file_gives_only_data_errors(edits: list[tuple[int, bytes]], is_packed: bool) -> None:
    packed = io.BytesIO()
    (np.savez_compressed if is_packed else np.savez)(packed, x=FEATURES, y=np.array(NAMES))
    content = packed.getvalue()
    for place, patch in edits:
        start = place % len(content)
        content = content[:start] + patch + content[start + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.npz"
        path.write_bytes(content)
        with suppress(DataError):
            assert len(read_chunk(path)) == 4


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("a.npz", "a.png"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=r"a.npz is no regular file; write"):
        read_chunk(tmp_path / "a.npz")
    [(read, images, faults)] = stream_images([tmp_path / "a.png"], (1, 4, 4))
    assert (read, len(images)) == ([], 0)
    assert "a.png is no regular file; replace" in faults[0][1]


def bomb() -> bytes:
    """A small PNG whose header promises 12,000 x 12,000 pixels."""
    content = bytearray(pack(GREY[0]))
    content[16:24] = struct.pack(">2I", 12_000, 12_000)
    content[29:33] = struct.pack(">I", zlib.crc32(bytes(content[12:29])))
    return bytes(content)


HOSTILE = {
    "corrupt": (pack(COLOUR[0])[:90], "bad.png is damaged"),
    "zero bytes": (b"", "bad.png is not an image, expected JPEG, PNG, WebP, BMP, TIFF or GIF"),
    "bomb": (bomb(), r"bad.png (has 12000 x 12000 pixels|needs too much memory), expected .*67,108,864"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_image_is_named(tmp_path: Path, name: str) -> None:
    content, message = HOSTILE[name]
    write(tmp_path, {"a/good.png": pack(GREY[0]), "b/bad.png": content})
    with pytest.raises(DataError, match=rf"{message}.*; replace the file or take it out$"):
        read_chunk(tmp_path)


def test_folders_and_manifests_without_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must hold a folder for each class, got none; sort the images"):
        read_chunk(tmp_path)
    with pytest.raises(
        DataError, match=r"none is missing; give a folder of class folders, or a CSV manifest"
    ):
        read_chunk(tmp_path / "none")
    write(tmp_path, {"a.png": pack(GREY[0]), "list.csv": b"path\na.png\n"})
    with pytest.raises(DataError, match=r"list.csv must begin with the header path,label, got \['path'\]"):
        read_chunk(tmp_path / "list.csv")


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is closed to the superuser"
)
def test_an_unreadable_folder_is_named(tmp_path: Path) -> None:
    write_pngs(tmp_path, GREY, NAMES)
    (tmp_path / "dog").chmod(0)
    try:
        with pytest.raises(DataError, match="dog cannot be read: Permission denied; make it readable"):
            read_chunk(tmp_path)
        with pytest.raises(DataError, match="dog cannot be read: Permission denied; make it readable"):
            find_images([tmp_path])
    finally:
        (tmp_path / "dog").chmod(0o755)


def test_one_class_with_one_sample_and_any_name(tmp_path: Path) -> None:
    label, file = "猫" * 85, "é" * 125 + "a.png"  # 255 bytes each
    chunk = read_chunk(write(tmp_path, {f"{label}/{file}": pack(GREY[0])}))
    assert (chunk.labels, chunk.sources) == ((label,), (f"{label}/{file}",))
    assert find_images([tmp_path]) == [tmp_path / label / file]
    assert torch.equal(chunk.inputs[0, 0], torch.from_numpy(GREY[0]))


@pytest.mark.slow
def test_ten_thousand_classes_are_read_quickly(tmp_path: Path) -> None:
    content = pack(GREY[0, :2, :2])
    for number in range(10_000):
        place = tmp_path / f"class {number:05}"
        place.mkdir()
        (place / "1.png").write_bytes(content)
    start = time.process_time()  # what other processes take does not count
    chunk = read_chunk(tmp_path)
    assert time.process_time() - start < 10
    assert len(set(chunk.labels)) == len(chunk) == 10_000
    assert chunk.inputs.shape == (10_000, 1, 2, 2)


def test_images_are_found_at_any_depth(tmp_path: Path) -> None:
    names = ["b.png", "a/2.JPG", "a/1.webp", "a/deep/er/x.bmp", ".hidden/1.png", "a/.2.png", "notes.txt"]
    write(tmp_path, dict.fromkeys(names, b""))
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    found = find_images([tmp_path / "notes.txt", tmp_path, tmp_path / "none.png", tmp_path / ".hidden"])
    given = [name.relative_to(tmp_path).as_posix() for name in found]
    walked = ["a/1.webp", "a/2.JPG", "a/deep/er/x.bmp", "b.png"]
    assert given == ["notes.txt", *walked, "none.png", ".hidden/1.png"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty must hold images, got none with the ending \.jpg, "):
        find_images([tmp_path / "empty"])


def test_a_file_that_cannot_be_read_does_not_stop_the_rest(tmp_path: Path) -> None:
    write_pngs(tmp_path / "photos", GREY, NAMES)
    write(tmp_path, {f"photos/x/{name}.png": content for name, (content, _) in HOSTILE.items()})
    bad = [
        tmp_path / "none.png",
        tmp_path,
        tmp_path / ("n" * 300),
        Path("a\0b"),
        Path(os.fsdecode(b"\xff.png")),
    ]
    paths = find_images([*bad, tmp_path / "photos"][2:]) + bad[:2]
    assert len(paths) == 3 + 7 + 2
    batches = list(stream_images(paths, (1, 8, 8), batch_size=3))
    assert [len(read) + len(faults) for read, _, faults in batches] == [3, 3, 3, 3]
    for read, images, _ in batches:
        assert (len(read), *images.shape[1:]) == (len(images), 1, 8, 8)
    assert torch.equal(torch.cat([images for _, images, _ in batches]), torch.from_numpy(GREY)[:, None])
    faults = {path.name: text for _, _, batch in batches for path, text in batch}
    assert [path for read, _, _ in batches for path in read] == sorted(
        (tmp_path / "photos").glob("[!x]*/*.png")
    )
    assert len(faults) == 8
    assert "none.png is missing; replace" in faults["none.png"]
    assert "is not an image" in faults["zero bytes.png"]
    assert "cannot be read: File name too long" in faults["n" * 300]
    for text in faults.values():
        text.encode()  # can be shown


def test_a_stream_resizes_as_a_chunk_does(tmp_path: Path) -> None:
    pixels = [RNG.integers(0, 256, (20 + row, 30, 3), np.uint8) for row in range(4)]
    write_pngs(tmp_path, pixels, NAMES)
    [(read, images, faults)] = stream_images(find_images([tmp_path]), (1, 9, 9))
    chunk = read_chunk(tmp_path, shape=(1, 9, 9))
    assert torch.equal(images, chunk.inputs)
    assert [path.relative_to(tmp_path).as_posix() for path in read] == list(chunk.sources)
    assert faults == []
    assert list(stream_images([], (1, 9, 9))) == []


def test_a_stream_needs_room_for_one_batch(tmp_path: Path) -> None:
    path = write(tmp_path, {"a.png": pack(GREY[0])}) / "a.png"
    room = []
    for count in (16, 128):
        tracemalloc.start()
        assert sum(len(read) for read, _, _ in stream_images([path] * count, (3, 64, 64), 8)) == count
        room.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert room[1] < room[0] + 2 * 8 * 3 * 64 * 64
