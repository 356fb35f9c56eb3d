"""Records: whole or not at all, read back equal, damage told in words."""

import contextlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import make_record

from strongreplay.errors import DataError
from strongreplay.storage.files import write_text
from strongreplay.storage.records import (
    RunRecord,
    fingerprint,
    flatten,
    read_folder,
    read_record,
    record_path,
    write_record,
)


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record = make_record(seed=3)
    path = write_record(tmp_path, record)
    assert path == record_path(tmp_path, record.config)
    assert path.name == "seed-3.json"
    assert path.parent.name.startswith("ser-m50-")
    assert asdict(read_record(path)) == asdict(record)
    assert (record.stream, record.method, record.memory_size, record.seed) == ("s", "ser", 50, 3)
    assert record.scenarios == ["class-il", "task-il"]
    assert [p.name for p in path.parent.iterdir()] == ["seed-3.json"]  # no temporary file stays


def test_the_fingerprint_ignores_the_seed_and_nothing_else() -> None:
    first, same, other = make_record(seed=0), make_record(seed=1), make_record(alpha=2)
    assert fingerprint(first.config) == fingerprint(same.config) != fingerprint(other.config)
    assert fingerprint(first.config) == fingerprint(make_record(new_option=None).config)


def test_a_failed_write_leaves_the_old_text(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not readable as JSON"),
        ('{"format": 1, "config"', "not readable as JSON"),
        ("[1, 2]", "not a run record"),
        ('{"name": "something else"}', "not a run record"),
        ('{"format": 1}', "not a whole run record"),
        ('{"format": 1, "config": [], "results": {}, "measured": {}}', "not a whole run record"),
        ('{"format": 99}', "format 99 is newer than 1; update strongreplay"),
    ],
)
def test_damaged_and_foreign_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_record(path)
    assert str(path) in str(caught.value)


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such record"):
        read_record(tmp_path / "none.json")


def test_a_folder_gives_its_records_and_its_problems(tmp_path: Path) -> None:
    for seed in range(3):
        write_record(tmp_path, make_record(seed=seed))
    (tmp_path / "foreign.json").write_text('{"a": 1}')
    (tmp_path / "notes.txt").write_text("not looked at")
    records, problems = read_folder([tmp_path])
    assert [record.seed for record in records] == [0, 1, 2]
    assert len(problems) == 1
    assert "foreign.json" in problems[0]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.sampled_from(["config", "results", "measured", "format"]), json_values)
def test_any_value_in_any_place_gives_a_record_or_a_data_error(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: object
) -> None:
    path = tmp_path_factory.mktemp("records") / "x.json"
    path.write_text(json.dumps(asdict(make_record()) | {key: value}))
    with contextlib.suppress(DataError):  # and no other error
        read_record(path)


@given(st.binary(max_size=60))
def test_any_bytes_give_a_data_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("records") / "x.json"
    path.write_bytes(data)
    with pytest.raises(DataError):
        read_record(path)


def test_flatten() -> None:
    assert flatten({"a": 1, "b": {"c": 2, "d": {"e": [3]}}}) == {"a": 1, "b.c": 2, "b.d.e": [3]}


def test_a_metric_newer_than_the_record_is_computed_from_its_matrix() -> None:
    old = {"matrix": [[90.0, 10.0], [50.0, 80.0]], "average_accuracy": 65.0}
    record = RunRecord({}, {"accuracy": {"class-il": old}}, {})
    assert record.score("class-il", "average_incremental_accuracy") == (90 + 65) / 2
    assert record.score("class-il", "no_such_metric") is None
