"""Records and recipes from hostile files: what is accepted can be used, all else is one of our errors."""

import itertools
import json
import math
import re
import shutil
import tempfile
import threading
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.contents import mutate

from strongreplay.errors import ConfigError, DataError
from strongreplay.report.curves import curves_of
from strongreplay.report.tables import group_records
from strongreplay.runs import recipes
from strongreplay.runs.recipes import all_recipes, find_recipe, parse_recipe, read_recipes
from strongreplay.storage.checkpoints import folders_with_state
from strongreplay.storage.records import RunRecord, fingerprint, read_folder, read_record

SCORES = {"matrix": [[90.0, None], [70.0, 90.0]], "untrained": [50.0, 50.0], "average_accuracy": 80.0}
SCORES |= {"forgetting": 20.0, "backward_transfer": -20.0, "forward_transfer": None}
PHASES = {"train": {"seconds": 1.5, "peak_memory_bytes": 100, "peak_is_of_phase": True}}
RECORD: dict[str, Any] = asdict(
    RunRecord(
        {"stream": "s", "seed": 0, "method": {"name": "ser", "memory_size": 50}, "train": {"lr": 1}},
        {"accuracy": {"class-il": SCORES}, "terms": []},
        {"phases": PHASES, "versions": {"torch": "2"}, "hardware": {"cores": 2}},
    )
)
TEXT = json.dumps(RECORD).encode()
RECIPE = """
streams = ["one", "two"]
source = "somewhere"

[train]
lr = 0.1
milestones = [3, 4]

[sgd]

[er]
source = "elsewhere"
train.lr = 0.2
[er.200]
method = { alpha = 1.0, beta = 2 }
[er.500]
method.alpha = 3.0
"""

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
edits = st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=3)), min_size=1, max_size=4)


def places(tree: Any, so_far: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The way to every value of a tree, tables and lists included."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [so_far, *(place for key, value in inner for place in places(value, (*so_far, key)))]


def put(tree: Any, place: tuple[str | int, ...], value: object) -> Any:
    if not place:
        return value
    changed = deepcopy(tree)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


def use(record: RunRecord) -> None:
    """What reports do with a record."""
    json.loads(record.to_json())
    fingerprint(record.config)
    f"{record.stream}/{record.method}/{record.seed}/{record.memory_size}".encode()
    for setting in record.scenarios:
        (group,) = group_records([record])
        ((first, *_),) = curves_of(group, setting)
        assert math.isnan(first) or -101 < first < 101
        str(group.score(setting, "average_accuracy"))
    for phase in record.measured.get("phases", {}).values():
        f"{phase['seconds']:.1f} {phase['peak_memory_bytes'] / 2**20:,.0f}".encode()


def read_bytes(content: bytes) -> RunRecord | None:
    """The record in a file of these bytes, used; none where reading it is a DataError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.json"
        path.write_bytes(content)
        found, problems = read_folder([Path(folder)])
        assert len(found) + len(problems) == 1
        if found:
            use(found[0])
            assert read_record(path) == found[0]
            return found[0]
        with pytest.raises(DataError, match=re.escape(str(path))) as caught:
            read_record(path)
        assert problems == [str(caught.value)]
        return None


def test_the_record_that_is_mutated_below_is_whole() -> None:
    record = read_bytes(TEXT)
    assert record is not None
    assert asdict(record) == RECORD


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=200), edits)
def test_any_bytes_as_a_record(content: bytes, edits: list[tuple[int, bytes]]) -> None:
    assert read_bytes(content) is None
    read_bytes(mutate(TEXT, edits))


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.sampled_from(places(RECORD)), values)
def test_any_value_in_any_place_of_a_record(place: tuple[str | int, ...], value: object) -> None:
    read_bytes(json.dumps(put(RECORD, place, value)).encode())


SCORE = ("results", "accuracy", "class-il")
BAD_VALUES: list[tuple[tuple[str | int, ...], object]] = [
    (("format",), True),
    (("format",), "1"),
    (("config", "seed"), True),
    (("config", "seed"), "1"),
    (("config", "stream"), ["s"]),
    (("config", "stream"), "\ud800"),
    (("config", "method", "name"), None),
    (("config", "method", "memory_size"), "50"),
    (("config", "train", "lr"), math.nan),
    (("config", "train"), math.inf),
    ((*SCORE, "matrix"), []),
    ((*SCORE, "matrix"), [[]]),
    ((*SCORE, "matrix"), [[1.0], [2.0]]),
    ((*SCORE, "matrix"), "text"),
    ((*SCORE, "matrix", 1, 0), "70"),
    ((*SCORE, "matrix", 1, 0), True),
    ((*SCORE, "matrix", 1, 0), 10**400),
    ((*SCORE, "matrix", 1, 0), [70.0]),
    ((*SCORE, "average_accuracy"), "80"),
    ((*SCORE, "average_accuracy"), 1e300),
    ((*SCORE, "forgetting"), {}),
    ((*SCORE, "untrained"), None),
    (("measured",), []),
    (("measured", "phases"), [1]),
    (("measured", "phases", "train"), {"seconds": 1}),
    (("measured", "phases", "train", "seconds"), None),
    (("measured", "hardware"), "two cores"),
]


@pytest.mark.parametrize(("place", "value"), BAD_VALUES, ids=range(len(BAD_VALUES)))
def test_a_wrong_value_makes_no_record(place: tuple[str | int, ...], value: object) -> None:
    assert read_bytes(json.dumps(put(RECORD, place, value)).encode()) is None


NESTED = b"[" * 100_000 + b"]" * 100_000
BAD_TEXTS = {
    "deep": NESTED,
    "deep inside": TEXT.replace(b'"lr": 1', b'"lr": ' + b'{"a": ' * 60 + b"1" + b"}" * 60),
    "deeper inside": TEXT.replace(b'"lr": 1', b'"lr": ' + NESTED),
    "a long number": TEXT.replace(b'"lr": 1', b'"lr": ' + b"9" * 5000),
    "a number beyond floats": TEXT.replace(b'"lr": 1', b'"lr": 1e999'),
    "not UTF-8": TEXT.replace(b'"s"', b'"\xff"'),
    "UTF-16": TEXT.decode().encode("utf-16"),
    "cut off": TEXT[:-1],
}


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_a_bad_text_makes_no_record(name: str) -> None:
    assert BAD_TEXTS[name] != TEXT
    assert read_bytes(BAD_TEXTS[name]) is None


def test_a_run_that_stopped_early_has_no_accuracy_yet() -> None:
    assert read_bytes(json.dumps(put(RECORD, ("results", "accuracy"), {})).encode()) is not None


def test_a_folder_that_cannot_be_searched_is_named(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to("nowhere")
    paths = [tmp_path / ("x" * 300), tmp_path / "none", tmp_path]
    found, problems = read_folder(paths)
    assert (found, len(problems)) == ([], 3)
    for path, problem in zip((*paths[:2], tmp_path / "link.json"), problems, strict=True):
        assert problem.startswith(f"{path}: ")


def test_folders_that_come_and_go_while_they_are_searched_hide_no_record(tmp_path: Path) -> None:
    """As a run renames and removes its checkpoints all the time."""
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "folder.json" / "x.json").write_bytes(TEXT)
    done = threading.Event()

    def churn() -> None:
        for number in itertools.count():
            for place in (tmp_path, tmp_path / "seed-0.state"):
                for depth in ("a", "a/b", "a/b/c"):
                    (place / f"new-{number}" / depth).mkdir(parents=True)
                shutil.rmtree(place / f"new-{number}")
            if done.is_set():
                return

    other = threading.Thread(target=churn)
    other.start()
    try:
        for _ in range(300):
            assert [len(part) for part in read_folder([tmp_path])] == [1, 0]
            assert folders_with_state(tmp_path) == []
    finally:
        done.set()
        other.join()


def use_recipe(table: dict[str, Any]) -> None:
    """What lists and runs do with a recipe; every entry must be found and be flat."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            recipes, "read_recipes", lambda name="published": dict.fromkeys(table["streams"], table)
        )
        for recipe in all_recipes():
            for size in (None, 0, 300):
                found = find_recipe(recipe.stream, recipe.method, size, recipe.name)
                assert isinstance(found.source, str)
                assert not any(isinstance(value, dict) for value in found.settings.values())


def parse(text: str) -> dict[str, Any] | None:
    with suppress(ConfigError):
        table = parse_recipe(text, "mine.toml")
        use_recipe(table)
        return table
    return None


def test_the_recipe_that_is_mutated_below_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    table = parse(RECIPE)
    assert table is not None
    assert table["streams"] == ["one", "two"]
    tuned = {"er": {"source": "a search", "method": {"beta": 9}}}
    tables: dict[str, dict[str, Any]] = {"published": {"one": table}, "tuned": {"one": tuned}, "cpu": {}}
    monkeypatch.setattr(recipes, "read_recipes", lambda name="published": tables[name])
    recipe = find_recipe("one", "er", 500)
    assert recipe.settings == {"train.lr": 0.2, "train.milestones": [3, 4], "method.alpha": 3.0}
    assert recipe.source == "elsewhere"
    own = find_recipe("one", "er", 500, "tuned")
    assert own.settings == recipe.settings | {"method.beta": 9}
    assert (own.source, own.name) == ("a search", "tuned")
    with pytest.raises(ConfigError, match="no recipe 'tuned' for two er; there is one for one er"):
        find_recipe("two", "er", 500, "tuned")


def test_packaged_recipes_go_through_the_same_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def note(text: str, where: str) -> dict[str, Any]:
        seen.append(where)
        return parse_recipe(text, where)

    known = read_recipes()
    monkeypatch.setattr(recipes, "parse_recipe", note)
    assert read_recipes.__wrapped__() == known
    assert seen == sorted(f.name for f in files(recipes).iterdir() if f.name.endswith(".toml"))


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=60), edits)
def test_any_text_as_a_recipe(text: str, edits: list[tuple[int, bytes]]) -> None:
    parse(text)
    parse('streams = ["a"]\n' + text)
    parse(mutate(RECIPE.encode(), edits).decode(errors="replace"))


def toml(value: Any) -> str:
    """A value as TOML, tables inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return str(value).lower() if isinstance(value, bool | int | float) else json.dumps(value)


keys = st.sampled_from(["source", "streams", "train", "er", "200", "007", "²", "٣", "a.b", "9" * 5000, ""])
plain = st.booleans() | st.integers() | st.floats() | st.text("ab", max_size=3)
toml_values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.text("ab", max_size=2), max_size=2) | toml_values,
    st.dictionaries(keys, st.dictionaries(keys, toml_values, max_size=3) | toml_values, max_size=3),
)
def test_any_values_in_a_recipe(streams: object, sections: dict[str, Any]) -> None:
    parse(
        "\n".join(
            f"{json.dumps(key)} = {toml(value)}" for key, value in ({"streams": streams} | sections).items()
        )
    )


STREAMS = 'streams = ["a"]\n'
BAD_RECIPES = [
    ("streams = ", "not readable as TOML"),
    ("", "streams must be a list of names"),
    ('streams = "p-mnist"', "streams must be .*, got 'p-mnist'"),
    ("streams = []", "streams must be"),
    ("streams = [1]", "streams must be .*, got a value of type list"),
    (STREAMS + "source = 1", "source must be a text, got a value of type int"),
    (STREAMS + "er = 1", r"\[er\]: must be a table"),
    (STREAMS + "[er]\nsource = []", r"\[er\]: source must be a text"),
    (STREAMS + "[er]\nlr = 0.1", r"\[er\] lr: must be a table of settings such as train.lr = 0.1"),
    (STREAMS + "[er]\n200 = 1", r"\[er\] 200: must be a table"),
    (STREAMS + "[er.007]", "a memory size must be a number .*, got '007'"),
    (STREAMS + '[er."²"]', "a memory size must be a number"),
    (STREAMS + '[er."٣"]', "a memory size must be a number"),
    (STREAMS + f"[er.{'9' * 5000}]", "a memory size must be a number"),
    (STREAMS + "[er.200.200]", "directly below the method"),
    (STREAMS + "[train]\nlr.a = 1", r"\[train\]: lr must be a value"),
    (STREAMS + "[er]\ntrain.lr.a = 1", r"\[er\] train: lr must be a value"),
    (STREAMS + f"[er]\ntrain{'.a' * 2_000} = 1", r"\[er\] train: a must be a value"),
    (f"streams = {'[' * 50_000}{']' * 50_000}", "not readable as TOML"),
    (STREAMS + f"source = 0x{'f' * 20_000}", "got a value of type int"),
    (STREAMS + f"[train]\nlr = {'9' * 5000}", "not readable as TOML"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD_RECIPES, ids=range(len(BAD_RECIPES)))
def test_what_is_wrong_with_a_recipe_is_told(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^mine.toml: .*{message}.*; correct the file$"):
        parse_recipe(text, "mine.toml")
