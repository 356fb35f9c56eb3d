"""One way to write a file: whole or not at all, synced, never through a link; checked when read."""

import ast
import csv
import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest

import strongreplay
from strongreplay.errors import DataError
from strongreplay.storage import files

ROOT = Path(strongreplay.__file__).parent
WRITERS = {"write_text", "write_bytes", "savez", "tofile", "touch", "symlink_to"}
OS_WRITERS = {"replace", "rename", "fsync", "truncate", "ftruncate", "mkdir", "makedirs", "link", "symlink"}
ALLOWED = {
    "storage/files.py",  # here they are
    "storage/lock.py",  # signs the file it holds open
    "runs/launch_ranks.py",  # processes of one run meet in a temporary folder that ends with them
    "training/resources.py",  # tells /proc to count anew
}


def writes_of(path: Path) -> list[str]:
    """Calls that write files past `storage.files`: by pathlib, by open, by os."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        mode = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        modes = [one for one in mode if isinstance(one, str) and len(one) < 4 and set(one) & set("wax+")]
        if name == "open" and modes:
            found.append(f"line {node.lineno}: {name}")
        if name in WRITERS and owner != "files" and isinstance(node.func, ast.Attribute):
            found.append(f"line {node.lineno}: {name}")
        if owner == "os" and name in OS_WRITERS:
            found.append(f"line {node.lineno}: os.{name}")
        if name in ("rmtree", "mkdir", "NamedTemporaryFile", "TemporaryDirectory") and owner != "files":
            found.append(f"line {node.lineno}: {name}")
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_storage_room_writes(path: Path) -> None:
    if path.relative_to(ROOT).as_posix() not in ALLOWED:
        assert [one for one in writes_of(path) if "savez" not in one] == []


def test_the_search_for_writes_finds_them(tmp_path: Path) -> None:
    texts = ['p.open("w")', 'open(p, "ab")', "p.write_text('')", "os.replace(a, b)", "shutil.rmtree(p)"]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.py").write_text(text)
        assert writes_of(tmp_path / f"{number}.py"), text


class Trace:
    """What reaches the system, in order."""

    def __init__(self, patch: pytest.MonkeyPatch, fail: str = "", error: int = errno.EIO) -> None:
        self.calls: list[str] = []
        for name in ("write", "fsync", "replace", "rename", "unlink", "mkdir"):
            patch.setattr(os, name, self.traced(name, getattr(os, name), name == fail, error))

    def traced(self, name: str, real: Any, fails: bool, error: int) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            is_folder = name == "fsync" and os.path.isdir(f"/proc/self/fd/{args[0]}")
            self.calls.append("sync folder" if is_folder else name)
            if fails:
                raise OSError(error, os.strerror(error))
            return real(*args, **more)

        return call


def test_a_file_is_synced_renamed_and_its_folder_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = Trace(monkeypatch)
    files.write_text(tmp_path / "a" / "b", "text")
    made = ["mkdir", "sync folder"]
    assert trace.calls == [*made, "write", "fsync", "replace", "sync folder"]
    assert (tmp_path / "a" / "b").read_text() == "text"


def test_a_folder_is_filled_synced_renamed_and_its_parent_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = Trace(monkeypatch)
    with files.new_folder(tmp_path / "a") as folder, files.new_file(folder / "b") as file:
        file.write(b"text")
    assert trace.calls == ["mkdir", "write", "fsync", "sync folder", "rename", "sync folder"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("fail", ["write", "fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    fail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_text(tmp_path / "a", "old")
    with monkeypatch.context() as patch:
        Trace(patch, fail)
        with pytest.raises(OSError, match="Input/output error"):
            files.write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_unlink_that_fails_does_not_hide_the_real_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trace(monkeypatch, "write", errno.ENOSPC)
    Trace(monkeypatch, "unlink", errno.EACCES)
    with pytest.raises(OSError, match="No space left on device"):
        files.write_text(tmp_path / "a", "new")


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (tmp_path / "link").symlink_to(outside)
    files.write_text(tmp_path / "link", "replaces the link")
    assert not (tmp_path / "link").is_symlink()
    (tmp_path / "log").symlink_to(outside)
    with pytest.raises(OSError, match="symbolic links"):
        files.append(tmp_path / "log", b"x")
    with pytest.raises(OSError, match="symbolic links"):
        files.truncate(tmp_path / "log", 0)
    files.remove(tmp_path / "log")
    (tmp_path / "folder").symlink_to(tmp_path)
    files.remove(tmp_path / "folder")
    assert outside.read_text() == "mine"


def test_what_stands_where_a_file_should_be_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    (tmp_path / "long").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "long")
    texts = {"pipe": "not a regular file", "long": "5 bytes, at most 4", "link": "a link", "none": "missing"}
    for name, text in texts.items():
        with pytest.raises(DataError, match=text):
            files.read_bytes(tmp_path / name, 4)
    assert files.read_bytes(tmp_path / "link", 5, follow=True) == b"12345"


def test_leftovers_are_removed_files_and_folders_alike(tmp_path: Path) -> None:
    (tmp_path / ".new-x" / "inside").mkdir(parents=True)
    (tmp_path / ".new-y").write_text("half")
    (tmp_path / "kept").write_text("whole")
    files.clear_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_json_is_bounded_in_depth() -> None:
    assert files.parse_json("[[[1]]]", 3) == [[[1]]]
    for text in ("[[[[1]]]]", '{"a": [[{}]]}', "[" * 100_000 + "]" * 100_000):
        with pytest.raises(ValueError, match="at most 3 levels"):
            files.parse_json(text, 3)


def test_no_cell_is_taken_for_a_formula_and_numbers_stay_numbers() -> None:
    cells = ["=1+1", "+x", "-x", "@x", "\tx", "\rx", "-1.5", -2, "+3e5", "plain", None, "a=b"]
    found = next(csv.reader(io.StringIO(files.csv_text([cells]), newline="")))
    assert found == ["'=1+1", "'+x", "'-x", "'@x", "'\tx", "'\rx", "-1.5", "-2", "+3e5", "plain", "", "a=b"]
