"""Readers, errors, location and check of the published datasets, on small files in the official layouts."""

import gzip
import hashlib
import io
import os
import re
import struct
import tarfile
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.contents import mutate, write

import strongreplay.data
from strongreplay.data import datasets
from strongreplay.data.archives import Archive
from strongreplay.data.datasets import DATASETS, Dataset
from strongreplay.data.formats import cifar_member, idx_archives
from strongreplay.errors import ConfigError, DataError

TRAIN, TEST, SIDE = 20, 10, 4
IMAGES, LABELS = "mnist/train-images-idx3-ubyte", "mnist/train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "mnist/t10k-images-idx3-ubyte", "mnist/t10k-labels-idx1-ubyte"
RNG = np.random.default_rng(0)


def idx_images(count: int) -> bytes:
    return struct.pack(">4I", 0x803, count, SIDE, SIDE) + RNG.bytes(count * SIDE * SIDE)


def idx_labels(count: int) -> bytes:
    return struct.pack(">2I", 0x801, count) + bytes(place % 10 for place in range(count))


def records(count: int, num_labels: int) -> bytes:
    return b"".join(bytes([place % 10] * num_labels) + RNG.bytes(3 * SIDE * SIDE) for place in range(count))


MNIST_FILES = {
    IMAGES: idx_images(TRAIN),
    LABELS: idx_labels(TRAIN),
    TEST_IMAGES: idx_images(TEST),
    TEST_LABELS: idx_labels(TEST),
}
CIFAR_FILES = {f"cifar/{name}.bin": records(10, 2) for name in ("one", "two", "test")}


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def pack_tar(contents: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


def small_mnist() -> Dataset:
    sums = {
        Path(name).name: (md5(gzip.compress(content, mtime=0)), md5(content))
        for name, content in MNIST_FILES.items()
    }
    archives = idx_archives("mnist", ("http://127.0.0.1:9",), sums, (TRAIN, TEST), SIDE)
    return replace(
        DATASETS["mnist"], shape=(1, SIDE, SIDE), num_train=TRAIN, num_test=TEST, archives=archives
    )


def small_cifar() -> Dataset:
    shape = (3, SIDE, SIDE)
    members = tuple(
        cifar_member(name, "test" if "test" in name else "train", 10, 2, shape=shape) for name in CIFAR_FILES
    )
    archive = Archive("cifar.tar.gz", f"md5:{md5(pack_tar(CIFAR_FILES))}", (), members)
    return replace(
        DATASETS["cifar100"], shape=shape, num_classes=10, num_train=20, num_test=10, archives=(archive,)
    )


@pytest.fixture(autouse=True)
def _small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "mnist", small_mnist())
    monkeypatch.setitem(DATASETS, "cifar100", small_cifar())


def pack_gz(contents: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in contents.items()}


def assert_mnist(folder: Path) -> None:
    train, test = datasets.load("mnist", folder)
    assert train.inputs.dtype == torch.uint8
    assert train.labels.dtype == torch.int64
    assert train.inputs.is_contiguous()
    for split, name, labels in ((train, IMAGES, LABELS), (test, TEST_IMAGES, TEST_LABELS)):
        assert split.inputs.shape == (len(split), 1, SIDE, SIDE)
        assert split.inputs.numpy().tobytes() == MNIST_FILES[name][16:]
        assert split.labels.tolist() == list(MNIST_FILES[labels][8:])


def test_mnist_unpacked_packed_and_mixed(tmp_path: Path) -> None:
    assert_mnist(write(tmp_path / "unpacked", MNIST_FILES))
    assert_mnist(write(tmp_path / "packed", pack_gz(MNIST_FILES)))
    mixed = {IMAGES: MNIST_FILES[IMAGES]} | pack_gz({k: v for k, v in MNIST_FILES.items() if k != IMAGES})
    assert_mnist(write(tmp_path / "mixed", mixed))


def test_unpacked_wins(tmp_path: Path) -> None:
    assert_mnist(write(tmp_path, MNIST_FILES | {f"{name}.gz": b"not a gz" for name in MNIST_FILES}))


@pytest.mark.parametrize("contents", [CIFAR_FILES, {"cifar.tar.gz": pack_tar(CIFAR_FILES)}])
def test_cifar_takes_the_last_label_and_the_planes(tmp_path: Path, contents: dict[str, bytes]) -> None:
    train, test = datasets.load("cifar100", write(tmp_path, contents))
    raw = b"".join(CIFAR_FILES.values())
    images = torch.cat((train.inputs, test.inputs)).numpy()
    size = 2 + 3 * SIDE * SIDE
    assert train.inputs.is_contiguous()
    assert test.inputs.is_contiguous()
    assert images.tobytes() == b"".join(raw[start + 2 : start + size] for start in range(0, len(raw), size))
    assert torch.cat((train.labels, test.labels)).tolist() == [
        raw[start + 1] for start in range(0, len(raw), size)
    ]


def test_loaded_images_may_be_written(tmp_path: Path) -> None:
    train, _ = datasets.load("mnist", write(tmp_path, MNIST_FILES))
    train.inputs.zero_()
    assert_mnist(tmp_path)


def test_digits_are_spread_over_a_byte(tmp_path: Path) -> None:
    train, test = datasets.load("digits", tmp_path)
    assert (train.inputs.shape, test.inputs.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert train.inputs.dtype == torch.uint8
    assert train.inputs.max() == 255
    assert test.labels[:3].tolist() == [0, 5, 0]
    assert np.unique(train.inputs.numpy()).tolist()[:3] == [0, 16, 32]


def test_rows_agree_with_the_published_sizes() -> None:
    sizes = {
        member.path: member.size for row in DATASETS.values() for a in row.archives for member in a.members
    }
    assert sizes["fashion-mnist/train-images-idx3-ubyte"] == 47_040_016
    assert sizes["fashion-mnist/t10k-labels-idx1-ubyte"] == 10_008
    assert sizes["cifar-10-batches-bin/data_batch_5.bin"] == 30_730_000
    assert list(DATASETS) == ["mnist", "fashion-mnist", "cifar10", "cifar100", "tinyimagenet", "digits"]
    for name, row in DATASETS.items():
        assert row.name == name
        assert all(archive.checksum.startswith(("md5:", "sha256:")) for archive in row.archives)


def test_missing_and_incomplete(tmp_path: Path) -> None:
    command = re.escape(f"run: ser data get cifar10 --data {tmp_path}")
    with pytest.raises(DataError, match=rf"^cifar10 not found in {re.escape(str(tmp_path))}; {command}$"):
        datasets.load("cifar10", tmp_path)
    write(tmp_path, {name: MNIST_FILES[name] for name in (IMAGES, LABELS, TEST_IMAGES)})
    with pytest.raises(
        DataError, match=rf"mnist incomplete \({TEST_LABELS} missing\) in .*; run: ser data get mnist"
    ):
        datasets.load("mnist", tmp_path)


def test_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"unknown dataset 'cifar-10'; did you mean 'cifar10'\? See: ser data list"
    ):
        datasets.load("cifar-10", tmp_path)


BAD_FILES = [
    (IMAGES, MNIST_FILES[IMAGES][:100], r"has 100 bytes, expected 336"),
    (IMAGES, MNIST_FILES[IMAGES] + b"x", r"has more than 336 bytes, expected 336"),
    (IMAGES, b"", r"has 0 bytes, expected 336"),
    (
        IMAGES,
        MNIST_FILES[LABELS],
        r"starts with 0x00000801 \(IDX labels\), expected 0x00000803 \(IDX images\)",
    ),
    (IMAGES, b"\x1f\x8b" + MNIST_FILES[IMAGES][2:], r"starts with 0x1f8b0803, expected 0x00000803"),
    (LABELS, idx_labels(19), r"has \[19\] labels by its header, expected \[20\]"),
    (LABELS, MNIST_FILES[LABELS][:-1] + b"\x0a", r"has the label 10, expected 0 to 9"),
    (f"{IMAGES}.gz", b"not a gz", r"is damaged \(BadGzipFile: "),
    (f"{IMAGES}.gz", gzip.compress(MNIST_FILES[IMAGES], mtime=0)[:-9], r"is damaged \(EOFError: "),
    (
        f"{IMAGES}.gz",
        gzip.compress(MNIST_FILES[IMAGES], mtime=0)[:-8] + bytes(8),
        r"is damaged \(BadGzipFile: CRC check",
    ),
    (
        f"{IMAGES}.gz",
        gzip.compress(MNIST_FILES[IMAGES] + bytes(10**7), mtime=0),
        r"has more than 336 bytes, expected 336",
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_bad_mnist(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    good = {k: v for k, v in MNIST_FILES.items() if k != name.removesuffix(".gz")}
    write(tmp_path, good | {name: content})
    path = re.escape(str(tmp_path / name))
    its = r"( \(its train-images-idx3-ubyte\))?"
    with pytest.raises(
        DataError, match=rf"^{path}{its} {message}.*; delete it and run: ser data get mnist --data "
    ):
        datasets.load("mnist", tmp_path)


def test_real_row_names_the_published_size(tmp_path: Path) -> None:
    names = [member.path for archive in DATASETS["fashion-mnist"].archives for member in archive.members]
    write(tmp_path, dict.fromkeys(names, struct.pack(">4I", 0x803, 60_000, 28, 28) + bytes(984)))
    with pytest.raises(
        DataError, match=r"train-images-idx3-ubyte has 1,000 bytes, expected 47,040,016; delete it"
    ):
        datasets.load("fashion-mnist", tmp_path)


NAMES = list(CIFAR_FILES)
BAD_TARS = [
    (pack_tar({k: v for k, v in CIFAR_FILES.items() if k != NAMES[1]}), r"does not hold cifar/two.bin"),
    (pack_tar(CIFAR_FILES | {NAMES[0]: b"short"}), r"holds cifar/one.bin of 5 bytes, expected 500"),
    (
        pack_tar(CIFAR_FILES | {NAMES[0]: b"\xff" * 500}),
        r"\(its one.bin\) has the label 255, expected 0 to 9",
    ),
    (pack_tar({"bomb": bytes(1 << 22)} | CIFAR_FILES), r"unpacks to more than 1,050,076 bytes"),
    (pack_tar(CIFAR_FILES | {"bomb": bytes(1 << 22)}), r"unpacks to more than 1,050,076 bytes"),
    (pack_tar(CIFAR_FILES)[:-20], r"is damaged \("),
    (gzip.compress(b"no tar at all" * 99, mtime=0), r"is damaged \(ReadError: "),
    (b"", r"is damaged \("),
]


@pytest.mark.parametrize(("content", "message"), BAD_TARS)
def test_bad_tar(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path, {"cifar.tar.gz": content})
    with pytest.raises(
        DataError, match=rf"cifar.tar.gz {message}.*; delete it and run: ser data get cifar100"
    ):
        datasets.load("cifar100", tmp_path)


def test_link_in_place_of_a_member_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo(NAMES[0])
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry)
    with pytest.raises(DataError, match=r"holds cifar/one.bin of 0 bytes, expected 500"):
        datasets.load("cifar100", tmp_path)


def test_tar_with_outside_names_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    evil = {"../evil": b"x", "../../evil": b"x", str(tmp_path / "evil"): b"x"}
    write(folder, {"cifar.tar.gz": pack_tar(evil | CIFAR_FILES)})
    datasets.load("cifar100", folder)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [folder / "cifar.tar.gz"]


def test_folder_in_place_of_a_file(tmp_path: Path) -> None:
    write(tmp_path, {name: content for name, content in MNIST_FILES.items() if name != IMAGES})
    (tmp_path / IMAGES).mkdir()
    with pytest.raises(
        DataError, match=r"train-images-idx3-ubyte is a folder, expected a file; delete it and run"
    ):
        datasets.load("mnist", tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    write(tmp_path, MNIST_FILES)
    (tmp_path / IMAGES).chmod(0)
    with pytest.raises(DataError, match=r"cannot be read: Permission denied; make it readable"):
        datasets.load("mnist", tmp_path)


def test_failing_system_call_is_no_reason_to_delete(tmp_path: Path) -> None:
    write(tmp_path, MNIST_FILES)
    (tmp_path / IMAGES).unlink()
    (tmp_path / IMAGES).symlink_to(IMAGES.rpartition("/")[2])  # to itself
    with pytest.raises(DataError, match=r"mnist incomplete \(mnist/train-images-idx3-ubyte missing\)"):
        datasets.load("mnist", tmp_path)
    with pytest.raises(
        DataError, match=r"cannot be read: File name too long; make it readable and try again$"
    ):
        datasets.load("mnist", tmp_path / ("x" * 300))


def test_locate(tmp_path: Path) -> None:
    assert datasets.locate("mnist", tmp_path) == datasets.Location(False, (), 0)
    assert datasets.locate("digits", tmp_path) == datasets.Location(True, (), 0)
    write(tmp_path, {IMAGES: MNIST_FILES[IMAGES]})
    assert datasets.locate("mnist", tmp_path) == datasets.Location(False, (tmp_path / IMAGES,), 336)
    write(tmp_path, MNIST_FILES)
    location = datasets.locate("mnist", tmp_path)
    assert location.is_present
    assert location.size == sum(len(content) for content in MNIST_FILES.values())


def test_check_says_what_is_right(tmp_path: Path) -> None:
    write(
        tmp_path, MNIST_FILES | pack_gz(MNIST_FILES) | CIFAR_FILES | {"cifar.tar.gz": pack_tar(CIFAR_FILES)}
    )
    notes = [finding.note for finding in datasets.check("mnist", tmp_path)]
    assert notes == ["checksum is right", "checksum and structure are right"] * 4 + [
        "20 train and 10 test images in 10 classes"
    ]
    findings = datasets.check("cifar100", tmp_path)
    assert all(finding.is_right for finding in findings)
    assert [finding.note for finding in findings][-2] == "no published checksum; structure is right"
    assert datasets.check("digits", tmp_path)[0].is_right


def test_check_says_what_is_wrong(tmp_path: Path) -> None:
    assert re.match(r"mnist not found; run: ser data get mnist", datasets.check("mnist", tmp_path)[0].note)
    flipped = MNIST_FILES[IMAGES][:-1] + bytes([MNIST_FILES[IMAGES][-1] ^ 1])
    write(
        tmp_path, MNIST_FILES | {IMAGES: flipped, f"{LABELS}.gz": b"x", TEST_LABELS: b"y", TEST_IMAGES: b"z"}
    )
    wrong = {
        finding.path.name: finding.note
        for finding in datasets.check("mnist", tmp_path)
        if not finding.is_right
    }
    assert re.match(r"has md5 [0-9a-f]{32}, expected [0-9a-f]{32}$", wrong["train-images-idx3-ubyte"])
    assert re.match(r"has md5 ", wrong["train-labels-idx1-ubyte.gz"])
    assert "has 1 bytes, expected 18" in wrong["t10k-labels-idx1-ubyte"]
    assert set(wrong) == {
        Path(IMAGES).name,
        f"{Path(LABELS).name}.gz",
        Path(TEST_IMAGES).name,
        Path(TEST_LABELS).name,
    }


def test_check_counts_the_classes(tmp_path: Path) -> None:
    content = CIFAR_FILES["cifar/two.bin"]
    write(tmp_path, CIFAR_FILES | {"cifar/two.bin": b"\x00\x00" + content[2:50] + b"\x00\x00" + content[52:]})
    (finding,) = [finding for finding in datasets.check("cifar100", tmp_path) if not finding.is_right]
    assert re.match(r"cifar100 has \[3, 1, .*\] train images a class, expected equally many", finding.note)


def only_data_errors(dataset: Dataset, contents: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            train, _ = dataset.read(dataset, write(Path(folder), contents), None)
        except DataError:
            return
        assert len(train) == TRAIN


edits = st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=3)), min_size=1, max_size=4)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(list(MNIST_FILES)), st.binary(max_size=400), edits, st.booleans())
def test_any_idx_bytes_give_only_data_errors(
    name: str, content: bytes, edits: list[tuple[int, bytes]], gz: bool
) -> None:
    dataset = small_mnist()
    ending = ".gz" if gz else ""
    rest = {key: value for key, value in MNIST_FILES.items() if key != name}
    only_data_errors(dataset, rest | {name + ending: content})
    valid = gzip.compress(MNIST_FILES[name]) if gz else MNIST_FILES[name]
    only_data_errors(dataset, rest | {name + ending: mutate(valid, edits)})


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=1600), edits)
def test_any_cifar_bytes_give_only_data_errors(content: bytes, edits: list[tuple[int, bytes]]) -> None:
    dataset = small_cifar()
    plain = gzip.decompress(pack_tar(CIFAR_FILES))
    only_data_errors(dataset, {"cifar.tar.gz": content})
    only_data_errors(dataset, {"cifar.tar.gz": gzip.compress(content)})
    only_data_errors(dataset, {"cifar.tar.gz": mutate(pack_tar(CIFAR_FILES), edits)})
    only_data_errors(dataset, {"cifar.tar.gz": gzip.compress(mutate(plain, edits), 1)})
    only_data_errors(dataset, CIFAR_FILES | {"cifar/two.bin": mutate(CIFAR_FILES["cifar/two.bin"], edits)})


def test_full_size_mnist_loads_at_once(tmp_path: Path) -> None:
    row = DATASETS["fashion-mnist"]
    for archive in row.archives:
        (member,) = archive.members
        sizes = (member.num_images, 28, 28) if member.holds == "images" else (member.num_images,)
        header = struct.pack(f">{1 + len(sizes)}I", 0x800 + len(sizes), *sizes)
        write(tmp_path, {member.path: header + bytes(member.size - len(header))})
    start = time.perf_counter()
    train, test = datasets.load("fashion-mnist", tmp_path)
    assert time.perf_counter() - start < 2  # measured: 0.03
    assert (train.inputs.shape, test.inputs.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))


def test_nothing_is_unpickled_and_nothing_prints() -> None:
    for path in Path(strongreplay.data.__path__[0]).glob("*.py"):
        text = path.read_text()
        assert not re.search(r"pickle(?!=False)|allow_pickle=True|torch\.load|\bprint\(|os\.environ", text), (
            path
        )
