"""Checkpoints: round trips, faults, malice, and random bytes in place of every file."""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.compare import assert_same
from support.contents import same_json
from torch import Tensor

from strongreplay.errors import DataError, RunError
from strongreplay.storage.checkpoints import MANIFEST, TENSORS, TREE, checkpoints
from strongreplay.storage.files import manifest_sum, sha256
from strongreplay.storage.state import read_checkpoint, read_newest, write_checkpoint

TREE_OF_ALL_KINDS = {
    "weights": torch.arange(12.0).view(3, 4),
    "layers": [torch.ones(2, dtype=torch.uint8), {"deep": (1, 2.5, None, True, "text")}],
    "by number": {0: {"momentum": torch.zeros(3, dtype=torch.int64)}, 1: {}},
    "scalar": torch.tensor(0.1, dtype=torch.float64),
    "empty": torch.empty(0, 5),
    "flag": torch.tensor([True, False]),
}
FILES = (TENSORS, TREE, MANIFEST)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two good checkpoints."""
    for number in (1.0, 2.0):
        write_checkpoint(tmp_path / "run.state", {"number": number, "x": torch.full((40,), number)}, {})
    return tmp_path / "run.state"


def test_a_tree_comes_back_as_it_was(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, TREE_OF_ALL_KINDS, {"step": 3})
    found = read_checkpoint(path)
    assert_same(found.tree, TREE_OF_ALL_KINDS)
    assert found.manifest["step"] == 3


def test_channels_last_weights_keep_their_values(tmp_path: Path) -> None:
    weights = torch.rand(8, 9, 3, 3).contiguous(memory_format=torch.channels_last)
    assert torch.equal(read_checkpoint(write_checkpoint(tmp_path, {"w": weights}, {})).tree["w"], weights)


def test_the_newest_two_are_kept_and_numbers_never_come_twice(folder: Path) -> None:
    assert [path.name for path in checkpoints(folder)] == ["state-000002", "state-000001"]
    write_checkpoint(folder, {"number": 3.0}, {})
    assert [path.name for path in checkpoints(folder)] == ["state-000003", "state-000002"]
    (folder / "state-000003" / TREE).write_text("damaged")
    write_checkpoint(folder, {"number": 4.0}, {})
    assert [path.name for path in checkpoints(folder)] == ["state-000004", "state-000003"]


def test_checkpoints_are_ordered_by_number_and_other_names_are_left_alone(folder: Path) -> None:
    for name in ("state-old", "state-0000009", "state-7", "state-000001x"):
        shutil.copytree(folder / "state-000001", folder / name)
    (folder / "state-000001").rename(folder / "state-999999")
    (folder / "state-000002").rename(folder / "state-1000000")
    assert [path.name for path in checkpoints(folder)] == ["state-1000000", "state-999999"]
    write_checkpoint(folder, {"number": 3.0}, {})
    assert [path.name for path in checkpoints(folder)] == ["state-1000001", "state-1000000"]
    assert (folder / "state-old" / MANIFEST).exists()
    found = read_newest(folder)
    assert found is not None
    assert found.tree == {"number": 3.0}


def test_what_cannot_be_kept_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"/a/0 is a set; only tensors and plain values are kept"):
        write_checkpoint(tmp_path, {"a": [{1, 2}]}, {})


def test_the_files_are_hardly_larger_than_their_tensors(tmp_path: Path) -> None:
    tree = {str(number): torch.rand(1000, 50) for number in range(20)}
    path = write_checkpoint(tmp_path, tree, {})
    assert sum(file.stat().st_size for file in path.iterdir()) < 1.05 * 20 * 1000 * 50 * 4


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("fault", ["flip", "cut", "empty", "missing", "longer"])
def test_a_fault_in_any_file_is_found_named_and_stepped_over(name: str, fault: str, folder: Path) -> None:
    newest, before = checkpoints(folder)
    file = newest / name
    data = file.read_bytes()
    middle = len(data) // 2
    faults = {
        "flip": data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :],
        "cut": data[:middle],
        "empty": b"",
        "longer": data + b" ",
    }
    if fault == "missing":
        file.unlink()
    else:
        file.write_bytes(faults[fault])
    if fault == "longer" and name == MANIFEST:
        return  # a blank at the end of JSON means nothing
    with pytest.raises(DataError, match=name):
        read_checkpoint(newest)
    told = list[str]()
    found = read_newest(folder, told.append)
    assert found is not None
    assert found.path == before
    assert found.tree["number"] == 1.0
    assert len(told) == 1


@pytest.mark.parametrize("name", FILES)
def test_every_single_flipped_bit_is_noticed(name: str, folder: Path) -> None:
    path = checkpoints(folder)[0]
    data = (path / name).read_bytes()
    for place in range(0, len(data), max(1, len(data) // 60)):
        for bit in (0, 5):
            flipped = data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]
            (path / name).write_bytes(flipped)
            if name == MANIFEST and same_json(flipped, data):
                continue  # blanks between the entries carry nothing
            with pytest.raises(DataError):
                read_checkpoint(path)


def test_nothing_good_is_nothing_found(folder: Path) -> None:
    for path in checkpoints(folder):
        (path / MANIFEST).unlink()
    assert read_newest(folder) is None
    assert read_newest(folder / "nowhere") is None


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_full_disk_leaves_the_last_good_one(
    after: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, count = os.write, 0

    def fail(handle: int, data: bytes) -> int:
        nonlocal count
        if count == after:
            write(handle, data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        count += 1
        return write(handle, data)

    monkeypatch.setattr(os, "write", fail)
    if after < 3:
        with pytest.raises(RunError, match=r"No space left on device.*The last good one is .*state-000002"):
            write_checkpoint(folder, {"number": 3.0}, {})
    else:
        write_checkpoint(folder, {"number": 3.0}, {})
    found = read_newest(folder)
    assert found is not None
    assert found.tree["number"] == (2.0 if after < 3 else 3.0)
    assert not list(folder.glob(".new-*"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_that_is_really_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def open_full(path: Path, flags: int, mode: int = 0o777, **more: Any) -> int:
        return real("/dev/full" if flags & os.O_CREAT else path, flags & ~os.O_EXCL, mode, **more)

    monkeypatch.setattr(os, "open", open_full)
    with pytest.raises(RunError, match="No space left on device"):
        write_checkpoint(folder, {"number": 3.0}, {})
    assert len(checkpoints(folder)) == 2


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A file stands where the folder should be: root may write into read-only ones."""
    (tmp_path / "blocked").write_text("")
    with pytest.raises(RunError, match=r"could not be written .*There is no earlier one"):
        write_checkpoint(tmp_path / "blocked" / "run.state", {}, {})


def test_leftovers_of_a_killed_writer_are_cleared(folder: Path) -> None:
    (folder / ".new-1").mkdir()
    (folder / ".new-1" / TENSORS).write_bytes(b"half")
    write_checkpoint(folder, {"number": 3.0}, {})
    assert not list(folder.glob(".new-*"))


def rewrite(path: Path, **changes: Any) -> None:
    """A manifest with other entries and a sum that fits again: an attacker can do that much."""
    manifest = json.loads((path / MANIFEST).read_text()) | changes
    manifest["sum"] = manifest_sum(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))


def replace_file(path: Path, name: str, data: bytes) -> None:
    (path / name).write_bytes(data)
    files = json.loads((path / MANIFEST).read_text())["files"]
    files[name] = {"bytes": len(data), "sha256": sha256(data)}
    rewrite(path, files=files)


def test_a_newer_format_is_refused(folder: Path) -> None:
    path = checkpoints(folder)[0]
    rewrite(path, format=2)
    with pytest.raises(DataError, match=r"format 2 is newer than 1; update strongreplay"):
        read_checkpoint(path)


class Bomb:
    def __reduce__(self) -> Any:
        return os.system, ("touch exploded",)


def test_malice_is_refused_without_harm(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = checkpoints(folder)[0]
    good = {name: (path / name).read_bytes() for name in FILES}
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 2**62]}}).encode()
    long_header = (2**63 - 1).to_bytes(8, "little") + b"{}"
    attacks: dict[str, tuple[str, bytes]] = {
        "pickle": (TENSORS, pickle.dumps(Bomb())),
        "absurd shape": (TENSORS, len(header).to_bytes(8, "little") + header),
        "giant header": (TENSORS, long_header),
        "deep tree": (TREE, b'{"list":[' * 100_000 + b"]}" * 100_000),
        "unknown tensor": (TREE, b'{"tensor": "../../etc/passwd"}'),
        "no tree": (TREE, b"[1, 2]"),
        "two kinds": (TREE, b'{"list": [], "dict": []}'),
    }
    for attack, (name, data) in attacks.items():
        replace_file(path, name, data)
        with pytest.raises(DataError):
            read_checkpoint(path)
        for file, content in good.items():
            (path / file).write_bytes(content)
        assert read_checkpoint(path), attack
    assert not (tmp_path / "exploded").exists()


ABSURD: dict[str, Any] = {
    "files a list": {"files": [TENSORS, TREE]},
    "files a text": {"files": "tree"},
    "an entry a list": {"files": {TENSORS: [], TREE: []}},
    "bytes a text": {"files": {name: {"bytes": "8", "sha256": "0" * 64} for name in (TENSORS, TREE)}},
    "bytes below nothing": {"files": {name: {"bytes": -1, "sha256": "0" * 64} for name in (TENSORS, TREE)}},
    "sum a number": {"files": {name: {"bytes": 8, "sha256": 7} for name in (TENSORS, TREE)}},
    "format a text": {"format": "1"},
    "format a list": {"format": [1]},
    "format nothing": {"format": None},
    "format true": {"format": True},
    "written a number": {"written": 7},
}


@pytest.mark.parametrize("name", ABSURD)
def test_an_absurd_manifest_with_a_sum_that_fits_is_refused(name: str, folder: Path) -> None:
    path = checkpoints(folder)[0]
    rewrite(path, **ABSURD[name])
    with pytest.raises(DataError, match=r"manifest.json: "):
        read_checkpoint(path)


def test_names_that_lead_elsewhere_are_not_followed(folder: Path, tmp_path: Path) -> None:
    path = checkpoints(folder)[0]
    files = json.loads((path / MANIFEST).read_text())["files"]
    rewrite(path, files=files | {"../../secret": {"bytes": 1, "sha256": ""}})
    with pytest.raises(DataError, match="damaged"):
        read_checkpoint(path)
    rewrite(path, files=files | {TREE: {"bytes": 2**60, "sha256": "0" * 64}})
    with pytest.raises(DataError, match="cut off"):
        read_checkpoint(path)
    rewrite(path, files=files)
    outside = tmp_path / "outside"
    shutil.move(path / TREE, outside)
    (path / TREE).symlink_to(outside)
    with pytest.raises(DataError, match="a link where a file should be"):
        read_checkpoint(path)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(FILES), data=st.binary(max_size=400), signed=st.booleans())
def test_random_bytes_raise_nothing_but_our_own_error(
    name: str, data: bytes, signed: bool, tmp_path: Path
) -> None:
    path = write_checkpoint(tmp_path, {"x": torch.ones(3), "y": [1, {"z": 2}]}, {})
    if signed and name != MANIFEST:
        replace_file(path, name, data)
    else:
        (path / name).write_bytes(data)
    with pytest.raises(DataError):
        read_checkpoint(path)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from([TENSORS, TREE]),
    edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_mutated_files_with_sums_that_fit_give_a_tree_or_our_own_error(
    name: str, edits: list[tuple[float, int]], tmp_path: Path
) -> None:
    path = write_checkpoint(tmp_path, {"x": torch.ones(3), "y": [1, {"z": 2.5, "t": (None, "a")}]}, {})
    data = bytearray((path / name).read_bytes())
    for place, value in edits:
        data[int(place * len(data))] = value
    replace_file(path, name, bytes(data))
    try:
        tree = read_checkpoint(path).tree
    except DataError:
        return
    assert tree is None or isinstance(tree, dict | list | tuple | str | int | float | Tensor)
