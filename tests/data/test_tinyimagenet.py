"""TinyImageNet in small: tree, zip, cache, damage and interruption."""

import io
import json
import re
import tempfile
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.contents import mutate, write

from strongreplay.data import datasets, tinyimagenet
from strongreplay.data.tinyimagenet import CACHE, TREE, Counts
from strongreplay.errors import DataError

WNIDS = ["n03000000", "n01000000", "n02000000"]  # not sorted: the file's order counts
COUNTS = Counts(3, 6, 3)
ANNOTATIONS = f"{TREE}/val/val_annotations.txt"


def jpeg(colour: int | tuple[int, int, int], side: int = 64) -> bytes:
    packed = io.BytesIO()
    Image.new("L" if isinstance(colour, int) else "RGB", (side, side), colour).save(
        packed, "JPEG", quality=95
    )
    return packed.getvalue()


def make_files() -> dict[str, bytes]:
    contents = {f"{TREE}/wnids.txt": "\n".join(WNIDS).encode() + b"\n"}
    for place, wnid in enumerate(WNIDS):
        for k in range(2):
            colour = (80 * place, 100 * k, 30)
            contents[f"{TREE}/train/{wnid}/images/{wnid}_{k}.JPEG"] = jpeg(colour)
        contents[f"{TREE}/val/images/val_{place}.JPEG"] = jpeg(40 + 50 * place)
    lines = [f"val_{place}.JPEG\t{wnid}\t0\t0\t63\t63\n" for place, wnid in enumerate(reversed(WNIDS))]
    return contents | {ANNOTATIONS: "".join(lines).encode()}


FILES = make_files()


@pytest.fixture(autouse=True)
def _small_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(datasets.DATASETS["tinyimagenet"], num_classes=3, num_train=6, num_test=3)
    monkeypatch.setitem(datasets.DATASETS, "tinyimagenet", row)


def write_zip(folder: Path, contents: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    with zipfile.ZipFile(folder / f"{TREE}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return folder


@pytest.mark.parametrize("lay", [write, write_zip])
def test_decodes_once_then_maps(tmp_path: Path, lay: Callable[[Path, dict[str, bytes]], Path]) -> None:
    reports: list[tuple[str, int, int]] = []
    train, test = datasets.load("tinyimagenet", lay(tmp_path, FILES), lambda *report: reports.append(report))
    assert train.inputs.shape == (6, 3, 64, 64)
    assert train.inputs.dtype == torch.uint8
    assert train.inputs.is_contiguous()
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert test.labels.tolist() == [2, 1, 0]
    assert torch.allclose(train.inputs[5].float().mean((1, 2)), torch.tensor([160.0, 100, 30]), atol=3)
    assert torch.allclose(
        test.inputs[1].float().mean((1, 2)), torch.tensor([90.0, 90, 90]), atol=3
    )  # from grey
    assert reports == [("decoding train images", 6, 6), ("decoding test images", 3, 3)]

    names = ["manifest.json", "test-labels.npy", "test.npy", "train-labels.npy", "train.npy"]
    assert sorted(path.name for path in (tmp_path / CACHE).iterdir()) == names
    manifest = json.loads((tmp_path / CACHE / "manifest.json").read_text())
    assert (manifest["format"], manifest["wnids"]) == (1, WNIDS)
    assert manifest["files"]["train.npy"]["shape"] == [6, 3, 64, 64]
    before = (tmp_path / CACHE / "train.npy").read_bytes()
    train.inputs.zero_()  # copy on write
    again, _ = datasets.load("tinyimagenet", tmp_path, lambda *report: reports.append(report))
    assert again.inputs[5, 0].float().mean() > 150
    assert (tmp_path / CACHE / "train.npy").read_bytes() == before
    assert len(reports) == 2
    assert {path.name for path in tmp_path.iterdir()} <= {CACHE, TREE, f"{TREE}.zip"}


def test_tree_wins_over_zip_and_cache_stands_alone(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    (tmp_path / f"{TREE}.zip").write_bytes(b"no zip")
    datasets.load("tinyimagenet", tmp_path)
    (tmp_path / TREE).rename(tmp_path / "elsewhere")
    (tmp_path / f"{TREE}.zip").unlink()
    datasets.load("tinyimagenet", tmp_path)
    location = datasets.locate("tinyimagenet", tmp_path)
    assert location.is_present
    assert location.paths == (tmp_path / CACHE,)
    assert location.size > 9 * 3 * 64 * 64


def test_an_interrupt_leaves_nothing_and_stale_folders_go(tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        assert list(tmp_path.glob(f".new-{CACHE}-*/train.npy"))
        raise KeyboardInterrupt

    write_zip(tmp_path, FILES)
    (tmp_path / f"{CACHE}.part-old").mkdir()
    (tmp_path / f"{CACHE}.part-old" / "train.npy").write_bytes(b"left by a killed process")
    (tmp_path / f".new-{CACHE}-7-0").mkdir()
    with pytest.raises(KeyboardInterrupt):
        datasets.load("tinyimagenet", tmp_path, interrupt)
    assert [path.name for path in tmp_path.iterdir()] == [f"{TREE}.zip"]
    datasets.load("tinyimagenet", tmp_path)


def test_two_at_once_decode_once(tmp_path: Path) -> None:
    write_zip(tmp_path, FILES)
    reports: list[str] = []
    threads = [
        threading.Thread(
            target=datasets.load, args=("tinyimagenet", tmp_path, lambda what, *_: reports.append(what))
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reports == ["decoding train images", "decoding test images"]


FIRST = f"{TREE}/train/{WNIDS[0]}/images/{WNIDS[0]}_0.JPEG"
BAD_FILES = [
    (FIRST, jpeg((1, 2, 3), 32), r"has \(32, 32\) pixels, expected \(64, 64\)"),
    (FIRST, FILES[FIRST][:300], r"is damaged \("),
    (FIRST, b"\x89PNG\r\n\x1a\n" + bytes(99), r"is not an image, expected JPEG"),
    (FIRST, bytes((1 << 20) + 1), r"has (more than )?1,048,57[67] bytes"),
    (FIRST, None, r"is missing"),
    (f"{TREE}/wnids.txt", b"n01000000\nn01000000\nn02000000\n", r"is not 3 different ids like n01443537"),
    (f"{TREE}/wnids.txt", b"../../etc\nn01000000\nn02000000\n", r"is not 3 different ids"),
    (f"{TREE}/wnids.txt", b"\xff\xfe", r"is damaged \(UnicodeDecodeError: "),
    (
        ANNOTATIONS,
        b"../../evil.JPEG\tn01000000\t0\n",
        r"has the line '../../evil.JPEG.*, expected file and id",
    ),
    (ANNOTATIONS, b"val_0.JPEG\tn09000000\t0\n", r"has the line 'val_0.JPEG\\tn09000000"),
    (ANNOTATIONS, b"val_0.JPEG\tn01000000\t0\n", r"names 1 images, \[1\] a class, expected 3, equally many"),
]


@pytest.mark.parametrize("lay", [write, write_zip])
@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_bad_files(
    tmp_path: Path,
    lay: Callable[[Path, dict[str, bytes]], Path],
    name: str,
    content: bytes | None,
    message: str,
) -> None:
    contents = {key: value for key, value in FILES.items() if key != name}
    lay(tmp_path, contents if content is None else contents | {name: content})
    source = "" if lay is write else ".zip"
    its = rf"\(its [\w/.-]*{re.escape(Path(name).name)}\)"
    pattern = rf"{TREE}{source} {its} {message}.*; delete it and run: ser data get tinyimagenet"
    with pytest.raises(DataError, match=pattern):
        datasets.load("tinyimagenet", tmp_path)
    assert not list(tmp_path.glob(f"{CACHE}*"))


def test_a_huge_header_is_refused_before_decoding(tmp_path: Path) -> None:
    content = bytearray(FILES[FIRST])
    place = content.index(b"\xff\xc0")
    content[place + 5 : place + 9] = b"\xff\xff\xff\xff"
    write(tmp_path, FILES | {FIRST: bytes(content)})
    with pytest.raises(
        DataError, match=r"_0.JPEG\) needs too much memory, expected at most 67,108,864 pixels"
    ):
        datasets.load("tinyimagenet", tmp_path)


def test_a_bad_zip(tmp_path: Path) -> None:
    (tmp_path / f"{TREE}.zip").write_bytes(b"PK, but no zip")
    with pytest.raises(DataError, match=r"200.zip is damaged \(BadZipFile: .*; delete it and run"):
        datasets.load("tinyimagenet", tmp_path)


def test_zip_with_outside_names_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    write_zip(folder, FILES | {"../evil": b"x", "../../evil": b"x", str(tmp_path / "evil"): b"x"})
    datasets.load("tinyimagenet", folder)
    assert not list(tmp_path.rglob("evil"))
    assert {path.name for path in folder.iterdir()} == {CACHE, f"{TREE}.zip"}


def test_an_unwritable_cache(tmp_path: Path) -> None:
    write_zip(tmp_path, FILES)
    (tmp_path / "lock").mkdir()
    with pytest.raises(DataError, match=r"cache cannot be written: .*Is a directory.*; free some space"):
        datasets.load("tinyimagenet", tmp_path)


def damage_manifest(cache: Path, key: str, value: object) -> None:
    manifest = json.loads((cache / "manifest.json").read_text())
    (cache / "manifest.json").write_text(json.dumps(manifest | {key: value}))


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda cache: (cache / "train.npy").unlink(), r"\(its manifest.json\) is missing"),
    (lambda cache: (cache / "manifest.json").unlink(), r"\(its manifest.json\) is missing"),
    (lambda cache: (cache / "manifest.json").write_text("[]"), r"\(its manifest.json\) is damaged"),
    (lambda cache: (cache / "test.npy").write_bytes(b"short"), r"test.npy is .* 5\), expected"),
    (lambda cache: damage_manifest(cache, "format", 2), r"format 2 with 3 classes, expected format 1 with 3"),
    (lambda cache: damage_manifest(cache, "wnids", WNIDS[:2]), r"format 1 with 2 classes"),
    (lambda cache: np.save(cache / "test-labels.npy", np.array([0, 1, 3])), r"has a label outside 0 to 2"),
    (
        lambda cache: np.save(cache / "test-labels.npy", np.zeros(3)),
        r"float64 of shape \(3,\), expected int64",
    ),
    (
        lambda cache: np.save(cache / "test-labels.npy", np.array([None] * 3), allow_pickle=True),
        r"\(its manifest.json\) is damaged|\(its test-labels.npy\) is damaged",
    ),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_a_damaged_cache(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    datasets.load("tinyimagenet", write_zip(tmp_path, FILES))
    damage(tmp_path / CACHE)
    with pytest.raises(
        DataError, match=rf"{CACHE} .*{message}.*; delete it and run: ser data get tinyimagenet"
    ):
        datasets.load("tinyimagenet", tmp_path)
    assert not datasets.check("tinyimagenet", tmp_path)[1].is_right


def test_check_reads_every_byte(tmp_path: Path) -> None:
    datasets.load("tinyimagenet", write(tmp_path, FILES))
    cache, tree = datasets.check("tinyimagenet", tmp_path)
    assert (cache.note, tree.note) == (
        "checksums and structure are right",
        "no published checksum; every image can be decoded",
    )
    with (tmp_path / CACHE / "train.npy").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x07")
    (tmp_path / FIRST).write_bytes(b"no image")
    datasets.load("tinyimagenet", tmp_path)  # only the check looks this closely
    cache, tree = datasets.check("tinyimagenet", tmp_path)
    assert "(its train.npy) has sha256" in cache.note
    assert "is not an image" in tree.note
    assert not cache.is_right
    assert not tree.is_right


def only_data_errors(folder: Path) -> None:
    try:
        train, _ = tinyimagenet.read(folder, COUNTS)
    except DataError:
        return
    assert len(train) == 6


edits = st.lists(st.tuples(st.integers(0, 20_000), st.binary(max_size=3)), min_size=1, max_size=4)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.sampled_from(sorted(FILES)), st.binary(max_size=900), edits)
def test_any_bytes_give_only_data_errors(name: str, content: bytes, edits: list[tuple[int, bytes]]) -> None:
    for bad in (content, mutate(FILES[name], edits)):
        with tempfile.TemporaryDirectory() as folder:
            only_data_errors(write(Path(folder), FILES | {name: bad}))
    with tempfile.TemporaryDirectory() as folder:
        path = write_zip(Path(folder), FILES) / f"{TREE}.zip"
        path.write_bytes(mutate(path.read_bytes(), edits))
        only_data_errors(Path(folder))


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.sampled_from(["manifest.json", "train.npy", "test-labels.npy"]), edits)
def test_any_cache_gives_only_data_errors(name: str, edits: list[tuple[int, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tinyimagenet.read(write_zip(Path(folder), FILES), COUNTS)
        path = Path(folder) / CACHE / name
        near = [(place % 300, patch) for place, patch in edits]  # where the header is
        path.write_bytes(mutate(path.read_bytes(), near))
        only_data_errors(Path(folder))
