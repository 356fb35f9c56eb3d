"""A user's own images: order, sizes, colours, and files that nobody should trust."""

import io
import os
import re
import struct
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile
from support.contents import mutate, write

from strongreplay.data import images, manifests
from strongreplay.data.folders import Images, read_images
from strongreplay.data.images import FILE_LIMIT
from strongreplay.errors import ConfigError, DataError

NOISE = np.random.default_rng(0).integers(0, 256, (6, 8, 4), np.uint8)  # 8 wide, 6 high
COLOUR, GREY = NOISE[..., :3], NOISE[..., 0]


def pack(image: Image.Image | np.ndarray[Any, Any], form: str = "PNG", **options: Any) -> bytes:
    packed = io.BytesIO()
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(packed, form, **options)
    return packed.getvalue()


def read_one(
    folder: Path, content: bytes, side: int | None = None, channels: int | None = None
) -> torch.Tensor:
    inputs = read_images(write(folder, {"class/one.png": content}), side, channels).inputs
    assert len(inputs) == 1
    return inputs[0]


def tensor(pixels: np.ndarray[Any, Any]) -> torch.Tensor:
    """(H, W, C) or (H, W) as (C, H, W)."""
    return torch.from_numpy(np.atleast_3d(pixels).transpose(2, 0, 1).copy())


def test_a_folder_is_read_in_order(tmp_path: Path) -> None:
    contents: dict[str, bytes | str] = {
        "dog/b.BMP": pack(COLOUR[::-1], "BMP"),
        "dog/a.png": pack(COLOUR),
        "dog/c.WebP": pack(COLOUR[:, ::-1], "WEBP", lossless=True),
        "cat/z.Jpeg": pack(np.full((6, 8, 3), 77, np.uint8), "JPEG"),
        "cat/y.jpg": pack(np.full((6, 8), 99, np.uint8), "JPEG"),
        "dog/deeper/d.png": b"not followed",
        "dog/.hidden.png": b"not looked at",
        "dog/notes.txt": b"not an image",
        ".hidden/a.png": b"not looked at",
        "loose.png": b"in no class",
    }
    write(tmp_path, contents)
    (tmp_path / "dog" / "folder.png").mkdir()
    reports: list[tuple[str, int, int]] = []
    images = read_images(tmp_path, None, None, lambda *report: reports.append(report))
    assert images.labels == ["cat", "cat", "dog", "dog", "dog"]
    assert images.paths == ["cat/y.jpg", "cat/z.Jpeg", "dog/a.png", "dog/b.BMP", "dog/c.WebP"]
    assert images.inputs.dtype == torch.uint8
    assert images.inputs.shape == (5, 3, 6, 8)
    assert images.inputs.is_contiguous()
    assert images.inputs[0].unique().tolist() == [99]
    assert images.inputs[1].unique().tolist() == [77]
    for row, pixels in ((2, COLOUR), (3, COLOUR[::-1]), (4, COLOUR[:, ::-1])):
        assert torch.equal(images.inputs[row], tensor(pixels))
    assert reports == [("reading images", 5, 5)]


def test_a_manifest_is_read_in_its_order(tmp_path: Path) -> None:
    write(tmp_path, {"data/b.png": pack(GREY), "data/a b.png": pack(GREY[::-1]), "data/x.dat": pack(GREY)})
    lines = ["path,label", "b.png,second", "", '"a b.png", "first, or so"', "b.png, second "]
    inside, extra = tmp_path / "data" / "x.dat", "../data/./b.png,second"
    text = "\ufeff" + "\r\n".join([*lines, f"{inside},third", extra])
    write(tmp_path, {"data/list.csv": text.replace(', "first', ',"first')})
    images = read_images(tmp_path / "data" / "list.csv", None, None)
    assert images.paths == ["b.png", "a b.png", "b.png", "x.dat", "b.png"]
    assert images.labels == ["second", "first, or so", "second", "third", "second"]
    assert images.inputs.shape == (5, 1, 6, 8)
    assert torch.equal(images.inputs[1], tensor(GREY[::-1]))
    assert torch.equal(images.inputs[2], tensor(GREY))


def palette() -> Image.Image:
    image = Image.fromarray(GREY % 3).convert("P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    return image


def over_black(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.rint(pixels[..., :-1] * (pixels[..., -1:] / 255)).astype(np.uint8)


PALETTE = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)
WIDE = GREY.astype(np.uint16) * 256 + 200
MODES: dict[str, tuple[bytes, np.ndarray[Any, Any]]] = {
    "grey": (pack(GREY), GREY),
    "two values": (pack(Image.fromarray(GREY > 99)), np.where(GREY > 99, 255, 0).astype(np.uint8)),
    "two values, BMP": (
        pack(Image.fromarray(GREY > 99), "BMP"),
        np.where(GREY > 99, 255, 0).astype(np.uint8),
    ),
    "grey, BMP": (pack(GREY, "BMP"), GREY),
    "16 bits": (pack(WIDE), GREY),
    "grey with alpha": (pack(Image.fromarray(NOISE[..., :2].copy(), "LA")), over_black(NOISE[..., :2])),
    "colour": (pack(COLOUR), COLOUR),
    "colour with alpha": (pack(NOISE), over_black(NOISE)),
    "colour with alpha, WebP": (pack(NOISE, "WEBP", lossless=True, exact=True), over_black(NOISE)),
    "palette": (pack(palette()), PALETTE[GREY % 3]),
    "palette with a clear colour": (pack(palette(), transparency=1), (PALETTE * [[1], [0], [1]])[GREY % 3]),
    "palette with alphas": (
        pack(palette(), transparency=b"\xff\x00\xff"),
        (PALETTE * [[1], [0], [1]])[GREY % 3],
    ),
}


@pytest.mark.parametrize("name", MODES)
def test_every_mode_becomes_eight_bits_over_black(tmp_path: Path, name: str) -> None:
    content, pixels = MODES[name]
    found, expected = read_one(tmp_path, content), tensor(pixels.astype(np.uint8))
    assert found.shape == expected.shape
    assert (found.int() - expected.int()).abs().max() <= ("alpha" in name)  # rounding of a product


def test_channels_as_asked_or_by_the_first_colour_met(tmp_path: Path) -> None:
    write(tmp_path, {"a/1.png": pack(GREY), "a/2.png": pack(COLOUR)})
    images = read_images(tmp_path, None, None).inputs
    assert images.shape == (2, 3, 6, 8)
    assert torch.equal(images[0], tensor(GREY).expand(3, -1, -1))
    grey = read_images(tmp_path, None, 1).inputs
    assert grey.shape == (2, 1, 6, 8)
    assert torch.equal(grey[0], tensor(GREY))
    weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    assert torch.allclose(grey[1, 0].float(), (tensor(COLOUR) * weights).sum(0), atol=0.6)
    (tmp_path / "a" / "2.png").unlink()
    assert read_images(tmp_path, None, 3).inputs.shape == (1, 3, 6, 8)


def test_cmyk_becomes_colour(tmp_path: Path) -> None:
    image = Image.new("CMYK", (4, 4), (255, 0, 0, 0))
    found = read_one(tmp_path, pack(image, "JPEG", quality=95)).float().mean((1, 2))
    assert torch.allclose(found, torch.tensor([0.0, 255, 255]), atol=5)


# What EXIF says of where the first row and the first column of the stored pixels belong.
UPRIGHT = {
    1: COLOUR,
    2: COLOUR[:, ::-1],
    3: COLOUR[::-1, ::-1],
    4: COLOUR[::-1],
    5: COLOUR.transpose(1, 0, 2),
    6: COLOUR.transpose(1, 0, 2)[:, ::-1],
    7: COLOUR.transpose(1, 0, 2)[::-1, ::-1],
    8: COLOUR.transpose(1, 0, 2)[::-1],
    9: COLOUR,
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_images_are_turned_upright(tmp_path: Path, orientation: int, form: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = pack(COLOUR, form, exif=exif, **({"lossless": True} if form == "WEBP" else {}))
    assert torch.equal(read_one(tmp_path, content), tensor(UPRIGHT[orientation]))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_broken_exif_data_is_passed_over(tmp_path: Path, form: str) -> None:
    flat = np.full((6, 8, 3), 50, np.uint8)
    found = read_one(tmp_path, pack(flat, form, exif=b"Exif\x00\x00 no directory at all"))
    assert found.shape == (3, 6, 8)
    assert torch.allclose(found.float(), torch.tensor(50.0), atol=1)


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_an_animation_gives_its_first_frame(tmp_path: Path, form: str) -> None:
    frames = [Image.fromarray(np.roll(COLOUR, shift, 0).copy()) for shift in range(3)]
    options = {"lossless": True} if form == "WEBP" else {}
    content = pack(frames[0], form, save_all=True, append_images=frames[1:], **options)
    with Image.open(io.BytesIO(content)) as image:
        assert getattr(image, "n_frames", 1) == 3
    assert torch.equal(read_one(tmp_path, content), tensor(COLOUR))


def test_sizes_must_be_one_without_a_side(tmp_path: Path) -> None:
    write(tmp_path, {"a/1.png": pack(GREY), "b/2.png": pack(GREY[:, :7])})
    message = "must have one size, got a/1.png of 8 x 6 pixels and b/2.png of 7 x 6; give a side"
    with pytest.raises(DataError, match=message):
        read_images(tmp_path, None, None)
    assert read_images(tmp_path, 5, None).inputs.shape == (2, 1, 5, 5)


def test_a_side_keeps_the_middle_and_averages(tmp_path: Path) -> None:
    # Stripes of 8 columns: 0, 100, 200, 50; the middle square of 16 columns holds the second and the third.
    pixels = np.repeat(np.array([0, 100, 200, 50], np.uint8), 8)[None].repeat(16, 0)
    assert read_one(tmp_path, pack(pixels), 16)[0, 0].tolist() == [100] * 8 + [200] * 8
    upright = read_one(tmp_path, pack(np.ascontiguousarray(pixels.T)), 16)[0]
    assert upright[:, 0].tolist() == [100] * 8 + [200] * 8
    checkers = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    small = read_one(tmp_path, pack(checkers), 8).float()
    assert 120 < small.min() <= small.max() < 135  # without antialiasing it would be black or white
    assert read_one(tmp_path, pack(GREY[:, :6]), 6).equal(tensor(GREY[:, :6]))  # nothing to do
    assert read_one(tmp_path, pack(np.full((3, 2), 9, np.uint8)), 7).unique().tolist() == [9]  # larger


@pytest.mark.parametrize(
    ("side", "channels"), [(0, None), (-3, None), (8193, None), (10**9, 1), (None, 2), (None, 0)]
)
def test_settings_that_cannot_be(tmp_path: Path, side: int | None, channels: int | None) -> None:
    with pytest.raises(ConfigError, match=r"(side|channels) must be 1 .*, got -?\d+"):
        read_images(tmp_path, side, channels)


def resized(content: bytes, place: int, form: str, *size: int | bytes) -> bytes:
    """The file with another size in its header."""
    return content[:place] + struct.pack(form, *size) + content[place + struct.calcsize(form) :]


def png_of(width: int, height: int) -> bytes:
    content = resized(pack(GREY), 16, ">2I", width, height)
    return resized(content, 29, ">I", zlib.crc32(content[12:29]))


JPEG = pack(COLOUR, "JPEG")
WEBP = pack(NOISE, "WEBP", lossless=True, save_all=True, append_images=[Image.fromarray(255 - NOISE)])
BMP = pack(GREY, "BMP")
TOO_LARGE = r"(has \d+ x \d+ pixels, expected 1 to|needs too much memory, expected at most) 67,108,864"
BAD_IMAGES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is not an image, expected JPEG, PNG, WebP, BMP, TIFF or GIF"),
    "text": (b"hello", "is not an image"),
    "foreign": (pack(GREY, "PPM"), "is not an image"),
    "cut PNG": (pack(COLOUR)[:100], "is damaged .*truncated"),
    "cut JPEG": (JPEG[:-30], "is damaged .*truncated"),
    "cut BMP": (BMP[:-9], "is damaged .*truncated"),
    "cut WebP": (WEBP[:-9], "is (damaged|not an image)"),
    "PNG with a wrong sum": (pack(GREY)[:-20] + bytes(8) + pack(GREY)[-12:], "is damaged"),
    "just too large PNG": (png_of(8193, 8192), TOO_LARGE),
    "large PNG": (png_of(12_000, 12_000), TOO_LARGE),  # where Pillow only warns
    "giant PNG": (png_of(2**31 - 1, 2**31 - 1), TOO_LARGE),
    "long PNG": (png_of(1 << 17, 1), r"has 131072 x 1 pixels, expected .* at most 65,536 a side"),
    "giant JPEG": (resized(JPEG, JPEG.index(b"\xff\xc0") + 5, ">2H", 65_535, 65_535), TOO_LARGE),
    "giant BMP": (resized(BMP, 18, "<2i", 2**31 - 1, 2**31 - 1), TOO_LARGE),
    "empty BMP": (resized(BMP, 18, "<2i", 0, 5), "has 0 x 5 pixels|is damaged|is not an image"),
    "giant WebP": (resized(WEBP, 24, "6s", b"\xff" * 6), f"{TOO_LARGE}|is damaged"),
    "large WebP": (resized(WEBP, 24, "6s", b"\xff\x2f\x00" * 2), TOO_LARGE),
}


@pytest.mark.parametrize("side", [None, 4])
@pytest.mark.parametrize("name", BAD_IMAGES)
def test_bad_images_are_named(tmp_path: Path, name: str, side: int | None) -> None:
    content, message = BAD_IMAGES[name]
    write(tmp_path, {"a/good.png": pack(GREY), "b/bad.png": content})
    with pytest.raises(DataError, match=rf"b/bad.png ({message}).*; replace the file or take it out$"):
        read_images(tmp_path, side, None)


@pytest.mark.parametrize("name", [name for name in BAD_IMAGES if re.match("just|large|giant|long", name)])
def test_a_header_is_judged_before_its_image_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def good_only(decode: Callable[..., Any]) -> Callable[..., Any]:
        def call(image: Image.Image, *rest: Any) -> Any:
            return decode(image, *rest) if max(image.size) < 100 else pytest.fail("decoded")

        return call

    monkeypatch.setattr(images, "decode", good_only(images.decode))
    monkeypatch.setattr(ImageFile.ImageFile, "load", good_only(ImageFile.ImageFile.load))
    write(tmp_path, {"a/good.png": pack(GREY), "b/bad.png": BAD_IMAGES[name][0]})
    with pytest.raises(DataError, match=r"67,108,864|is damaged"):
        read_images(tmp_path, None, 1)


def test_a_strip_does_not_grow_by_its_length(tmp_path: Path) -> None:
    strip = pack(np.full((1, 60_000), 7, np.uint8))
    assert read_one(tmp_path, strip, 256).unique().tolist() == [7]  # scaled as a whole: 4 GB


def test_a_file_of_too_many_bytes_is_not_opened(tmp_path: Path) -> None:
    write(tmp_path, {"a/big.png": pack(GREY)})
    os.truncate(tmp_path / "a" / "big.png", FILE_LIMIT + 1)  # holes take no room
    with pytest.raises(
        DataError, match=r"big.png has 536,870,913 bytes, expected at most 536,870,912; replace"
    ):
        read_images(tmp_path, None, None)


def test_a_lack_of_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    write(tmp_path, {"a/1.png": pack(GREY)})
    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "tobytes", fail)
        with pytest.raises(DataError, match=r"a/1.png needs too much memory, expected at most .*; replace"):
            read_images(tmp_path, None, None)
    monkeypatch.setattr(np, "empty", fail)
    with pytest.raises(
        DataError, match="1 images of 1 x 6 x 8 bytes do not fit into memory; give a smaller side"
    ):
        read_images(tmp_path, None, None)


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    write(tmp_path, {"a/1.png": pack(GREY)})
    monkeypatch.setattr(Path, "open", fail)  # file modes would not stop the superuser
    with pytest.raises(DataError, match=r"a/1.png cannot be read: Permission denied; make it readable"):
        read_images(tmp_path, None, None)


def test_folders_without_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must hold a folder for each class, got none; sort the images"):
        read_images(tmp_path, None, None)
    write(tmp_path, {"a/1.png": pack(GREY), "b/deep/2.png": pack(GREY), "b/3.txt": b""})
    with pytest.raises(
        DataError, match=r"/b must hold the images of a class, got none .*\.jpg.*; put images"
    ):
        read_images(tmp_path, None, None)
    with pytest.raises(DataError, match="none is missing; give a folder of class folders, or a CSV manifest"):
        read_images(tmp_path / "none", None, None)


def link_file(root: Path, outside: Path) -> None:
    (root / "a" / "link.png").symlink_to(outside / "a" / "1.png")


def link_class(root: Path, outside: Path) -> None:
    (root / "b").symlink_to(outside / "a")


def link_twin(root: Path, outside: Path) -> None:
    (root / "a" / "link.png").symlink_to(
        root.with_name("root-twin") / "a" / "1.png"
    )  # a name that begins alike


@pytest.mark.parametrize("link", [link_file, link_class, link_twin])
def test_links_out_of_the_folder_are_refused(tmp_path: Path, link: Any) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root, outside, tmp_path / "root-twin"):
        write(folder, {"a/1.png": pack(GREY)})
    link(root, outside)
    with pytest.raises(DataError, match=r"\.png must stay inside .*/root, got .*a/1.png; copy the file"):
        read_images(root, None, None)


def test_links_inside_are_followed_and_broken_ones_named(tmp_path: Path) -> None:
    root = write(tmp_path / "root", {"a/1.png": pack(GREY)})
    (root / "a" / "2.png").symlink_to("1.png")
    (tmp_path / "alias").symlink_to(root)
    images = read_images(tmp_path / "alias", None, None)
    assert images.paths == ["a/1.png", "a/2.png"]
    assert torch.equal(images.inputs[0], images.inputs[1])
    (root / "a" / "3.png").symlink_to("none.png")
    with pytest.raises(DataError, match=r"a/3.png is missing or no regular file; replace"):
        read_images(root, None, None)
    (root / "a" / "3.png").unlink()
    (root / "a" / "3.png").symlink_to("3.png")  # to itself
    with pytest.raises(DataError, match=r"a/3.png is "):
        read_images(root, None, None)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    write(tmp_path, {"a/1.png": pack(GREY), "list.csv": "path,label\na/2.png,x\n"})
    os.mkfifo(tmp_path / "a" / "2.png")
    os.mkfifo(tmp_path / "pipe.csv")
    for source in (tmp_path, tmp_path / "list.csv"):
        with pytest.raises(DataError, match=r"a/2.png is missing or no regular file"):
            read_images(source, None, None)
    with pytest.raises(DataError, match=r"pipe.csv must be a regular file"):
        read_images(tmp_path / "pipe.csv", None, None)


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
@pytest.mark.parametrize("name", [b"a\xff/1.png", b"a/1\xff.png", b"a\n/1.png", b"a/\x1b[31m.png"])
def test_names_must_be_text(tmp_path: Path, name: bytes) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    path.parent.mkdir()
    path.write_bytes(pack(GREY))
    with pytest.raises(
        DataError, match=r"names must be text without control characters, got '.*'; rename it"
    ) as caught:
        read_images(tmp_path, None, None)
    str(caught.value).encode()  # can be shown


def test_paths_of_a_manifest_stay_in_its_folder(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"out.png": pack(GREY), "data/in.png": pack(GREY), "data/deep/x": b"", "data-twin/1.png": pack(GREY)},
    )
    (tmp_path / "data" / "link.png").symlink_to(tmp_path / "out.png")
    (tmp_path / "data" / "up").symlink_to(tmp_path)
    names = (
        "../out.png",
        "deep/../../out.png",
        str(tmp_path / "out.png"),
        "link.png",
        "up/out.png",
        "../data-twin/1.png",
    )
    for name in (*names, "/etc/passwd", "../none.png"):
        write(tmp_path, {"data/list.csv": f"path,label\nin.png,a\n{name},b\n"})
        with pytest.raises(
            DataError, match=rf"{re.escape(name)} must stay inside .*/data, got /.*; copy the file"
        ):
            read_images(tmp_path / "data" / "list.csv", None, None)


BAD_MANIFESTS = [
    ("", r"must begin with the header path,label, got \[\]; write UTF-8 lines under the header path,label"),
    ("name,class\na.png,x\n", r"must begin with the header path,label, got \['name', 'class'\]"),
    ("file,colour\na.png,x\n", r"got \['file', 'colour'\]; its labels may also be called class, category"),
    (
        "path,label,path\na.png,x,b.png\n",
        r"must begin with the header path,label, got \['path', 'label', 'pa",
    ),
    ("path,label\n\n", "must name at least one image, got none; write"),
    ("path,label\na.png\n", "line 2 must have a path and a label, got 1 fields; fix the line"),
    ("path,label\na.png,x\na.png,x,y\n", "line 3 must have a path and a label, got 3 fields"),
    ("path,label\na.png, \n", "line 2: names must be text .*, got ''"),
    ("path,label\n,x\n", "line 2: names must be text"),
    ('path,label\n"a\0.png",x\n', "line 2: names must be text"),
    ('path,label\na.png,"x\ny"\n', "line 3: names must be text"),
    ('path,label\n"a.png,x\n', r"line 2 is not CSV \(unexpected end of data\); write"),
    (f"path,label\n{'a' * 200_000},x\n", r"line 2 is not CSV \(field larger than field limit"),
    (b"path,label\n\xff.png,x\n", r"is damaged \(UnicodeDecodeError.*; write UTF-8 lines"),
    ("path,label\nnone.png,x\n", "none.png is missing or no regular file; replace"),
    ("path,label\n.,x\n", "is missing or no regular file"),
    (f"path,label\n{'a' * 300},x\n", "cannot be read: File name too long|is missing"),
    (pack(GREY), "is damaged|must begin"),
]


@pytest.mark.parametrize(("content", "message"), BAD_MANIFESTS, ids=range(len(BAD_MANIFESTS)))
def test_bad_manifests_are_told(tmp_path: Path, content: bytes | str, message: str) -> None:
    write(tmp_path, {"a.png": pack(GREY), "list.csv": content})
    with pytest.raises(DataError, match=message) as caught:
        read_images(tmp_path / "list.csv", None, None)
    assert str(tmp_path) in str(caught.value)


def test_a_manifest_of_too_many_bytes_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, {"list.csv": "path,label\n"})
    os.truncate(tmp_path / "list.csv", manifests.MANIFEST_LIMIT + 1)
    with pytest.raises(DataError, match="must be a regular file of at most 67,108,864 bytes"):
        read_images(tmp_path / "list.csv", None, None)


def mend_sums(content: bytes) -> bytes:
    """A PNG whose chunks have right checksums again, so that changes get past them."""
    mended, place = content[:8], 8
    while place + 12 <= len(content):
        end = place + 8 + struct.unpack_from(">I", content, place)[0]
        mended += content[place:end] + struct.pack(">I", zlib.crc32(content[place + 4 : end]))
        place = end + 4
    return mended


def only_data_errors(source: Path, side: int | None, channels: int | None) -> Images | None:
    try:
        images = read_images(source, side, channels)
    except DataError:
        return None
    count, depth, *size = images.inputs.shape
    assert count == len(images.labels) == len(images.paths) > 0
    assert depth == channels or channels is None
    assert side is None or size == [side, side]
    return images


ORIENTED = Image.Exif()
ORIENTED[0x0112] = 6
VALID = [
    *(content for content, _ in MODES.values()),
    *(pack(COLOUR, form, exif=ORIENTED) for form in ("PNG", "JPEG", "WEBP")),
    *(
        JPEG,
        pack(COLOUR, "JPEG", progressive=True),
        pack(GREY, "JPEG"),
        WEBP,
        pack(NOISE, "BMP"),
        pack(palette(), "BMP"),
    ),
]
# Half of the changes fall where the headers are.
edits = st.lists(
    st.tuples(st.integers(0, 60) | st.integers(0, 2000), st.binary(max_size=3)), min_size=1, max_size=4
)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(
    st.binary(max_size=300),
    st.sampled_from(VALID),
    edits,
    st.sampled_from([None, 4]),
    st.sampled_from([None, 1, 3]),
)
def test_any_bytes_give_only_data_errors(
    content: bytes, valid: bytes, edits: list[tuple[int, bytes]], side: int | None, channels: int | None
) -> None:
    bad = mutate(valid, edits)
    with tempfile.TemporaryDirectory() as folder:
        for case in (content, valid[:12] + content, bad, mend_sums(bad) if bad[1:4] == b"PNG" else bad[:-1]):
            only_data_errors(write(Path(folder), {"a/x.png": case}), side, channels)
        assert only_data_errors(write(Path(folder), {"a/x.png": valid}), side, channels) is not None


MANIFEST = b'path,label\na.png,cat\n"deep/b.png","dog, or so"\na.png,dog\n'
cells = st.sampled_from(
    ["a.png", "deep/b.png", "../a.png", "/", "..", ".", "~", "", "\0", "deep", "CON", '"', "\\"]
)
rows = st.lists(st.lists(cells | st.text(max_size=8), max_size=3).map(",".join), max_size=4).map("\n".join)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=80), rows, edits)
def test_any_manifest_gives_only_data_errors(
    content: bytes, text: str, edits: list[tuple[int, bytes]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in" / "list.csv"
        write(path.parent, {"a.png": pack(GREY), "deep/b.png": pack(GREY), "../a.png": pack(COLOUR)})
        for case in (
            content,
            b"path,label\n" + content,
            b"path,label\n" + text.encode(),
            mutate(MANIFEST, edits),
        ):
            path.write_bytes(case)
            images = only_data_errors(path, None, None)
            assert images is None or images.inputs.shape[1] == 1  # the one outside has colours
            assert images is None or set(images.paths) <= {"a.png", "deep/b.png"}
        path.write_bytes(MANIFEST)
        assert only_data_errors(path, None, None) is not None
