"""Sweeps: a run for each combination of values, nothing dropped in silence, and files that lead back."""

from pathlib import Path

import pytest
from support.repository import in_repository

from strongreplay.errors import ConfigError
from strongreplay.runs.config import RunConfig
from strongreplay.runs.sweep import Sweep, add_options, collect_settings, differences, override
from strongreplay.runs.sweep_file import read_sweep, write_sweep
from strongreplay.storage.records import fingerprint, flatten, read_record

OPTIONS = ("stream", "method", "memory", "net", "tasks", "seeds", "jobs")


def sweep(*pairs: str, methods: str = "ser", seeds: int = 1, **options: str) -> Sweep:
    given = {name: [value] for name, value in options.items()}
    settings = add_options(collect_settings(list(pairs)), given)
    return Sweep("split-digits", methods.split(","), range(seeds), settings)


def values(configs: list[RunConfig], *keys: str) -> list[tuple[object, ...]]:
    return [tuple(flatten(config.to_dict()).get(key) for key in keys) for config in configs]


def faults(one: Sweep) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        one.configs()
    return str(caught.value).splitlines()


def test_every_combination_of_values_is_one_run() -> None:
    configs = sweep("train.lr=0.03,0.1", memory="200,500", seeds=2).configs()
    expected = [(lr, size, seed) for lr in (0.03, 0.1) for size in (200, 500) for seed in (0, 1)]
    assert values(configs, "train.lr", "method.memory_size", "seed") == expected


def test_a_method_without_memory_runs_once() -> None:
    configs = sweep(methods="sgd,ser", memory="200,500").configs()
    assert values(configs, "method.name", "method.memory_size") == [("sgd", None), ("ser", 200), ("ser", 500)]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (["train.milestones=1,2"], [[1, 2]]),
        (["train.milestones=[1,2]"], [[1, 2]]),
        (["train.milestones=[1,2],[3],[]"], [[1, 2], [3], []]),
        (["train.milestones=1,2", "train.milestones=3"], [[1, 2], [3]]),
        (["train.milestones="], [[]]),
    ],
)
def test_a_setting_that_is_a_list_takes_commas_for_one_list(pairs: list[str], expected: object) -> None:
    found = values(sweep("train.epochs=4", *pairs).configs(), "train.milestones")
    assert [list(one) for (one,) in found if isinstance(one, list | tuple)] == expected


def test_orders_of_classes_and_none_may_be_swept() -> None:
    orders = "data.order=[shuffled],[9,8,7,6,5,4,3,2,1,0]"
    found = values(sweep(orders, "method.replay_size=none,8").configs(), "data.order", "method.replay_size")
    assert [(list(order), size) for order, size in found if isinstance(order, list | tuple)] == [
        (order, size) for order in (["shuffled"], [*range(9, -1, -1)]) for size in (None, 8)
    ]


def test_a_repeated_key_keeps_all_values_and_equal_ones_are_one_run() -> None:
    configs = sweep("train.lr=0.03", "train.lr=0.1,0.03", "train.lr=0.10").configs()
    assert values(configs, "train.lr") == [(0.03,), (0.1,)]


def test_settings_of_one_method_leave_the_others_alone() -> None:
    one = sweep("ser.alpha=0.3", "train.lr=0.1", "ser.train.lr=0.03", methods="er,ser")
    found = values(one.configs(), "method.name", "method.alpha", "train.lr")
    assert found == [("er", None, 0.1), ("ser", 0.3, 0.03)]


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (
            lambda: sweep("method.alpha=0.3", methods="er,derpp,ser"),
            "er has no setting 'alpha', derpp, ser has; use derpp.alpha",
        ),
        (lambda: sweep("method.memory_size=5", methods="sgd,er"), "use --memory"),
        (lambda: sweep("ser.alpha=1", methods="er"), "ser.alpha is for ser, which is not among the methods"),
        (lambda: sweep("ser.memory_size=50", memory="20"), "--memory is used by no run"),
        (lambda: sweep("ser.alpha=0.1", "method.alpha=0.2"), "method.alpha is used by no run"),
        (lambda: sweep("method.alpa=1", methods="er,ser"), "unknown setting 'method.alpa'"),
        (lambda: sweep("train.lr=0.1,-1"), "train.lr must be > 0.0, got '-1'"),
        (lambda: sweep(f"train.lr={','.join(map(str, range(1, 200)))}", seeds=100), "19,900 runs of ser"),
    ],
)
def test_what_no_run_can_use_is_told(one: object, told: str) -> None:
    assert callable(one)
    assert told in faults(one())[0]


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [
        ("memory", "method.memory_size", "20 50"),
        ("net", "net.name", "mlp cnn"),
        ("tasks", "data.num_tasks", "2 5"),
    ],
)
def test_an_option_and_its_setting_must_agree(name: str, key: str, values: str) -> None:
    first, second = values.split()
    with pytest.raises(ConfigError, match=f"--{name} {first} contradicts {key}={second}; leave one"):
        add_options({key: [second]}, {name: [first]})
    found = add_options({key: [first]}, {name: [first]})
    assert [[str(value) for value in values] for values in found.values()] == [[first]]


def test_a_file_has_the_same_keys_and_the_command_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "runs.toml"
    path.write_text(
        'stream = "split-digits"\nmethod = "ser"\nmemory = [20, 50]\nseeds = [3, 7]\njobs = 2\n'
        "[set]\ntrain.lr = [0.03, 0.1]\ntrain.milestones = [[1, 2], [3]]\nser.alpha = 0.3\n"
    )
    file = read_sweep(path, OPTIONS)
    assert file.options == {"stream": "split-digits", "method": ["ser"], "seeds": "3,7,", "jobs": 2}
    alone = Sweep("split-digits", ["ser"], [3], override(file.settings, {"train.epochs": ["4"]})).configs()
    assert len(alone) == 2 * 2 * 2
    above = add_options(collect_settings(["method.memory_size=70", "train.lr=0.5"]), {})
    keys = ("method.memory_size", "train.lr", "method.alpha")
    found = values(Sweep("split-digits", ["ser"], [3], override(file.settings, above)).configs(), *keys)
    assert found == [(70, 0.5, 0.3)] * 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("lr = ", "not readable as TOML"),
        ("sede = 5", "unknown option 'sede'; did you mean 'seeds'?"),
        ("[train]\nlr = 0.1", "settings are in the table set: set.train = ..."),
        ("set = 5", "set must be a table"),
        ("memory = 20\nset.method.memory_size = 50", "--memory 20 contradicts method.memory_size=50"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="^" + str(path)) as caught:
        read_sweep(path, OPTIONS)
    assert told in str(caught.value)


def test_the_file_of_a_record_leads_back_to_it(tmp_path: Path) -> None:
    path, folders = (
        tmp_path / "runs.toml",
        sorted(folder for folder in in_repository("results").glob("*/*") if folder.is_dir()),
    )
    assert len(folders) > 50
    for folder in folders[::3]:
        records = [read_record(file) for file in sorted(folder.glob("seed-*.json"))]
        path.write_text(write_sweep(records))
        file = read_sweep(path, (*OPTIONS, "recipe", "protocol"))
        first, recipe = records[0], file.options.get("recipe", file.options.get("protocol", "published"))
        config = Sweep(first.stream, [first.method], [first.seed], file.settings, recipe).configs()[0]
        assert fingerprint(config.to_dict()) == fingerprint(first.config), folder
        assert config.source == first.measured["recipe"] or recipe == "published", folder
        assert file.options["seeds"] == "".join(f"{record.seed}," for record in records)


def test_runs_of_a_sweep_are_told_apart() -> None:
    configs = sweep("train.lr=0.03,0.1", methods="er,ser", memory="20,50").configs()
    assert differences(configs)[:3] == ["train.lr=0.03", "train.lr=0.03", "train.lr=0.1"]
    assert differences(sweep(methods="er,ser", memory="20,50").configs()) == [""] * 4
