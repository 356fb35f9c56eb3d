"""Files and installed packages that bring methods, nets and streams: what loads, what is refused, and how."""

import dataclasses
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from strongreplay.errors import ConfigError
from strongreplay.extensions import installed, is_path, load_object

FILE = """
from dataclasses import dataclass
from pydantic import BaseModel

class Config(BaseModel):
    size: "int" = 3

@dataclass
class Thing:
    number: "int" = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [("mine.py:A", True), ("a/b.py:A", True), ("C:\\x\\b.py:A", True), ("ser", False),
     ("folder:PHOTOS", False), ("mine.py", False), ("csv:table.py.csv", False)],
)  # fmt: skip
def test_a_name_that_points_into_a_file_is_told_from_others(text: str, expected: bool) -> None:
    assert is_path(text) is expected


def test_a_thing_of_a_file_is_loaded_once_and_works_with_dataclasses_pydantic_and_pickle(
    folder: Path,
) -> None:
    (folder / "mine.py").write_text(FILE)
    thing, name, source_hash = load_object("mine.py:Thing", "method")
    assert isinstance(thing, type)
    assert name == "Thing"
    assert source_hash
    assert len(source_hash) == 12
    assert load_object("mine.py:Thing", "method").value is thing
    assert load_object(f"{folder}/mine.py:Thing", "method").value is thing
    assert dataclasses.asdict(thing(number=2)) == {"number": 2}
    assert pickle.loads(pickle.dumps(thing(number=4))) == thing(number=4)
    config = load_object("mine.py:Config", "method").value
    assert isinstance(config, type)
    assert config(size=5).size == 5


def test_edited_source_has_another_hash_and_is_loaded_anew(folder: Path) -> None:
    (folder / "mine.py").write_text("VALUE = 1\n")
    first = load_object("mine.py:VALUE", "method")
    (folder / "mine.py").write_text("VALUE = 2\n")
    second = load_object("mine.py:VALUE", "method")
    assert (first.value, second.value) == (1, 2)
    assert first.source_hash != second.source_hash
    assert load_object("mine.py:VALUE", "method", first.source_hash).value == 1  # still loaded


def test_another_version_than_the_expected_one_is_refused(folder: Path) -> None:
    (folder / "mine.py").write_text("VALUE = 1\n")
    with pytest.raises(ConfigError, match=r"mine\.py was edited: this run is of version 0123"):
        load_object("mine.py:VALUE", "method", "0123456789ab")


def test_a_file_beside_it_may_be_imported_and_counts(folder: Path) -> None:
    (folder / "mine.py").write_text("from beside_it import VALUE\n")
    (folder / "beside_it.py").write_text("VALUE = 10\n")
    first = load_object("mine.py:VALUE", "method")
    (folder / "beside_it.py").write_text("VALUE = 2\n")
    second = load_object("mine.py:VALUE", "method")
    assert (first.value, second.value) == (10, 2)
    assert first.source_hash != second.source_hash


def test_files_of_one_name_in_two_folders_are_not_mixed_up(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "mine.py").write_text("from of_one_name import VALUE\n")
        (folder / name / "of_one_name.py").write_text(f"VALUE = '{name}'\n")
    found = [load_object(f"{name}/mine.py:VALUE", "method").value for name in ("one", "two")]
    assert found == ["one", "two"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:\n", r"mine\.py, line 1: SyntaxError"),
        ("x = 1\nraise ValueError('no such luck')\n", r"mine\.py, line 2: ValueError: no such luck"),
        ("import no_such_package\n", r"mine\.py, line 1: ModuleNotFoundError"),
        ("\n\nraise SystemExit(3)\n", r"mine\.py, line 3: SystemExit: 3"),
        ("class Thnig: pass\n", r"unknown method 'Thing'; did you mean 'Thnig'\? Looked in mine\.py"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_line(folder: Path, source: str, message: str) -> None:
    (folder / "mine.py").write_text(source)
    with pytest.raises(ConfigError, match=message):
        load_object("mine.py:Thing", "method")


def test_a_missing_file_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file mine\.py in .*give its path"):
        load_object("mine.py:Thing", "net")


def install(folder: Path, name: str, version: str, points: str, source: str) -> None:
    """A package as pip would leave it."""
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(points)


def test_installed_packages_join_by_entry_points(folder: Path) -> None:
    points = "[strongreplay.methods]\nquick = quick_cl:Quick\nbroken = quick_cl:Missing\n"
    install(folder, "quick_cl", "1.2", points, "class Quick: pass\n")
    sys.path.append(str(folder))
    assert set(installed("method")) >= {"quick", "broken"}
    assert "quick" not in installed("net")
    found = load_object("quick", "method")
    assert (found.name, found.source_hash) == ("quick", "quick_cl 1.2")
    with pytest.raises(ConfigError, match=r"broken of quick_cl 1\.2 cannot be loaded: AttributeError"):
        load_object("broken", "method")
    with pytest.raises(ConfigError, match="did you mean 'quick'"):
        load_object("quikc", "method")
    with pytest.raises(ConfigError, match=r"this run is of quick_cl 1\.1, installed is quick_cl 1\.2"):
        load_object("quick", "method", "quick_cl 1.1")


def test_loading_needs_no_torch(folder: Path) -> None:
    (folder / "mine.py").write_text("VALUE = 1\n")
    code = (
        "import sys; from strongreplay.extensions import load_object; load_object('mine.py:VALUE', 'net'); "
    )
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, env=os.environ)
