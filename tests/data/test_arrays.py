"""Headers of .npy and .npz files are judged before anything is allocated."""

import io
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from strongreplay.data.arrays import open_array, open_npy, read_npz, read_npz_parts
from strongreplay.errors import DataError


def npy_bytes(descr: str, shape: str, content: bytes = b"") -> bytes:
    """An .npy file of format 1.0 whose header says what it likes."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


def write_npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def good(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    return file.getvalue()


ZERO_SIZE = ["'|S0'", "'|V0'", "'<U0'", "[]"]
OTHER = ["'|V8'", "[('a', '<f4')]", "'<c8'", "'<M8[s]'", "('<f4', (2,))"]


@pytest.mark.parametrize("descr", [*ZERO_SIZE, *OTHER])
@pytest.mark.parametrize("shape", ["(4,)", "(1000000000,)"])
def test_types_without_size_and_of_other_kinds_are_refused(tmp_path: Path, descr: str, shape: str) -> None:
    """A type of no size once ended the process by SIGFPE, or took gigabytes for a row each."""
    content = npy_bytes(descr, shape, bytes(64))
    (tmp_path / "bad.npy").write_bytes(content)
    message = r"(must hold numbers and text alone, got the type|larger than it is|is damaged)"
    with pytest.raises(DataError, match=message):
        open_array(tmp_path / "bad.npy")
    write_npz(tmp_path / "bad.npz", inputs=content, labels=content)
    with pytest.raises(DataError, match=message):
        read_npz(tmp_path / "bad.npz")


@pytest.mark.slow
def test_two_small_files_that_killed_and_filled_are_refused_within_little_memory(tmp_path: Path) -> None:
    (tmp_path / "zero.npy").write_bytes(npy_bytes("'|S0'", "(4,)", bytes(64)))
    write_npz(tmp_path / "rows.npz", inputs=good([[1.0]]), labels=npy_bytes("[]", "(1000000000,)"))
    assert max((tmp_path / name).stat().st_size for name in ("zero.npy", "rows.npz")) < 1000
    code = (
        "import sys; from pathlib import Path; from strongreplay.errors import DataError\n"
        "from strongreplay.data.user_data import open_array, read_chunk\n"
        "for read, name in ((open_array, 'zero.npy'), (read_chunk, 'rows.npz')):\n"
        "    try: read(Path(sys.argv[1]) / name)\n"
        "    except DataError as error: print(error)\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("must hold numbers and text alone") == 2
    assert max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) < 2**20  # KiB


@pytest.mark.parametrize(
    "shape", ["(-1, 4)", "(5, 4)", "(1, 1, 1, 1, 1, 1, 1, 1, 1)", "(2305843009213693952, 8)"]
)
def test_shapes_that_do_not_fit_the_file_are_refused(tmp_path: Path, shape: str) -> None:
    (tmp_path / "bad.npy").write_bytes(npy_bytes("'|u1'", shape, bytes(16)))
    with pytest.raises(DataError, match=r"bad.npy .*; write it with np.save"):
        open_npy(tmp_path / "bad.npy")


def test_an_npy_file_is_mapped_and_never_written_to(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6.0))
    array = open_npy(tmp_path / "x.npy")
    assert isinstance(array, np.memmap)
    array[0] = 9
    assert np.load(tmp_path / "x.npy")[0] == 0


def test_an_npz_file_may_bring_a_test_part(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", inputs=np.ones((3, 2)), labels=[0, 1, 1])
    np.savez(
        tmp_path / "two.npz", x_train=np.ones((3, 2)), y_train=[0, 1, 1], x_test=np.ones((1, 2)), y_test=[0]
    )
    assert [len(labels) for _, labels in read_npz_parts(tmp_path / "one.npz")] == [3]
    assert [len(labels) for _, labels in read_npz_parts(tmp_path / "two.npz")] == [3, 1]
    np.savez(tmp_path / "half.npz", x=np.ones((3, 2)), y=[0, 1, 1], x_test=np.ones((1, 2)))
    with pytest.raises(DataError, match="must hold one array named test_labels or y_test"):
        read_npz_parts(tmp_path / "half.npz")


@pytest.mark.parametrize("order", ["<", ">"])
def test_text_with_numbers_that_are_no_characters_is_refused(order: str, tmp_path: Path) -> None:
    """Python raises a SystemError on it."""
    bad = npy_bytes(f"'{order}U1'", "(2,)", b"\xff" * 8)
    path = write_npz(tmp_path / "x.npz", inputs=good(np.zeros((2, 4, 4), np.uint8)), labels=bad)
    with pytest.raises(DataError, match="no characters"):
        read_npz(path)
    (tmp_path / "x.npy").write_bytes(bad)
    with pytest.raises(DataError, match="no characters"):
        open_npy(tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(good(np.array(["é", "\U0010ffff"], f"{order}U1")))
    assert open_npy(tmp_path / "x.npy").tolist() == ["é", "\U0010ffff"]
