"""Configuration: recipes by default, overrides on top, all faults at once in the house's words."""

import math

import pytest
from support.steps import auxiliary_for

from strongreplay.data.streams import STREAMS
from strongreplay.errors import ConfigError
from strongreplay.methods import METHODS
from strongreplay.methods.ser import SERConfig
from strongreplay.runs.config import config_of, parse_settings, resolve
from strongreplay.runs.recipes import all_recipes, find_recipe


def faults(*args: object, **kwargs: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve(*args, **kwargs)  # type: ignore[arg-type]
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("stream", "method", "size", "expected"),
    [
        ("p-mnist", "ser", 200, {"lr": 0.1, "batch_size": 128, "epochs": 1, "alpha": 0.2, "beta": 0.2}),
        ("r-mnist", "ser", 500, {"lr": 0.1, "batch_size": 128, "epochs": 1, "alpha": 0.2, "beta": 0.2}),
        (
            "seq-cifar10",
            "ser",
            200,
            {"lr": 0.03, "epochs": 20, "milestones": (15,), "alpha": 0.2, "beta": 0.2},
        ),
        ("seq-cifar100-20", "ser", 200, {"lr": 0.03, "epochs": 50, "milestones": (35, 45), "alpha": 0.5}),
        ("seq-tinyimagenet", "ser", 200, {"epochs": 100, "milestones": (70, 90), "alpha": 0.2, "beta": 1.0}),
        (
            "seq-cifar10",
            "derpp",
            200,
            {"lr": 0.03, "epochs": 50, "milestones": (), "alpha": 0.1, "beta": 0.5},
        ),
        ("seq-cifar10", "derpp", 500, {"alpha": 0.2, "beta": 0.5, "replay_size": 32}),
        ("seq-tinyimagenet", "er", 500, {"lr": 0.03}),
        ("p-mnist", "derpp", 200, {"lr": 0.1, "alpha": 1.0, "beta": 1.0}),
        ("p-mnist", "derpp", 500, {"lr": 0.2, "alpha": 1.0, "beta": 0.5}),
        ("r-mnist", "der", 500, {"lr": 0.2, "alpha": 0.5}),
        ("p-mnist", "sgd", None, {"lr": 0.2}),
        ("seq-cifar10", "joint", None, {"lr": 0.1, "epochs": 50}),
    ],
)
def test_published_settings_are_the_default(
    stream: str, method: str, size: int | None, expected: dict[str, object]
) -> None:
    config = resolve(stream, method, size)
    values = config.train.model_dump() | config.method.model_dump()
    assert {key: values[key] for key in expected} == expected


def test_every_recipe_resolves_and_names_its_source() -> None:
    recipes = all_recipes()
    assert len(recipes) >= 60
    for recipe in recipes:
        assert recipe.source, recipe
        assert recipe.method in METHODS
        assert recipe.stream in STREAMS
        settings = auxiliary_for(recipe.method)
        found = resolve(recipe.stream, recipe.method, recipe.memory_size, 0, settings, recipe.name)
        assert found.source == recipe.source


def test_an_unpublished_memory_size_takes_the_nearest_and_says_so() -> None:
    assert find_recipe("p-mnist", "derpp", 450).settings == find_recipe("p-mnist", "derpp", 500).settings
    assert find_recipe("p-mnist", "derpp", 450).source.endswith("published for memory 500")
    assert resolve("p-mnist", "derpp", 450).method.model_dump()["memory_size"] == 450


def test_what_has_no_recipe_gets_the_methods_defaults() -> None:
    recipe = find_recipe("p-mnist", "no-such-method")
    assert recipe.settings == {"train.batch_size": 128, "train.epochs": 1}
    assert "nothing published" in recipe.source


def test_overrides_win_over_the_recipe() -> None:
    settings = parse_settings(
        ["train.epochs=5", "method.alpha = 0.7", "method.terms=current,replay", "net.width=20"]
    )
    config = resolve("seq-cifar10", "ser", 100, 3, settings)
    assert (config.train.epochs, config.net.width, config.seed) == (5, 20, 3)
    assert isinstance(config.method, SERConfig)
    assert config.method.alpha == 0.7
    assert config.method.terms == ("current", "replay")
    assert config.method.memory_size == 100
    none = resolve("seq-cifar10", "er", 100, settings={"method.replay_size": "none", "train.milestones": ""})
    assert none.method.model_dump()["replay_size"] is None
    assert none.train.milestones == ()
    assert (
        resolve("p-mnist", "ser", settings={"method.memory_size": "70"}).method.model_dump()["memory_size"]
        == 70
    )


def test_unknown_names_get_the_nearest_and_all_are_told_at_once() -> None:
    assert faults("p-mist", "sre") == [
        "unknown stream 'p-mist'; did you mean 'p-mnist'? See: ser list streams",
        "unknown method 'sre'; did you mean 'ser'? See: ser list methods",
    ]


def test_all_faults_of_a_config_at_once() -> None:
    settings = {
        "method.alpha": "-0.1",
        "method.betta": "1",
        "train.epochs": "many",
        "train.lr": "nan",
        "train.batch_size": "0",
        "method.consistency": "median",
        "method.terms": "",
        "net.name": "resnet",
        "eval.candidates": "some",
        "data.validation": "1",
        "colour": "red",
    }
    told = faults("p-mnist", "ser", 0, 0, settings)
    for expected in (
        "method.memory_size must be >= 1, got 0",
        "method.alpha must be >= 0.0, got '-0.1'",
        "unknown setting 'method.betta'; did you mean 'method.beta'?",
        "train.epochs must be a whole number, got 'many'",
        "train.lr must be a finite number, got 'nan'",
        "train.batch_size must be >= 1, got '0'",
        "method.consistency must be 'mean' or 'sum', got 'median'",
        "method.terms must not be empty, got []",
        "unknown net 'resnet'; did you mean 'resnet18'? See: ser list nets",
        "eval.candidates must be 'seen' or 'all', got 'some'",
        "data.validation must be < 1.0, got '1'",
    ):
        assert any(line == expected for line in told), (expected, told)
    assert any(line.startswith("unknown setting 'colour'; known: method.") for line in told)
    assert len(told) == 12


def test_an_option_of_another_net_and_a_negative_seed() -> None:
    told = faults("seq-cifar10", "ser", 200, -1, {"net.bias": "zero"})
    assert told == ["net.bias is not an option of resnet18; it has width", "seed must be >= 0, got -1"]


def test_a_setting_without_a_value_is_shown_the_form() -> None:
    with pytest.raises(
        ConfigError, match=r"--set takes KEY=VALUE, such as train.epochs=5; got 'train.epochs'"
    ):
        parse_settings(["train.epochs", "train.lr=1"])


@pytest.mark.parametrize("memory", ["lots", "-5"])
def test_a_bad_memory_size_given_as_a_setting(memory: str) -> None:
    told = faults("p-mnist", "ser", settings={"method.memory_size": memory})
    assert len(told) == 1
    assert told[0].startswith("method.memory_size must be")


def test_the_config_as_a_record_keeps_it_holds_every_setting() -> None:
    held = resolve("p-mnist", "ser", 200, 4).to_dict()
    assert held["stream"] == "p-mnist"
    assert held["seed"] == 4
    assert held["method"]["name"] == "ser"
    assert set(held["method"]) == {"name", *SERConfig.model_fields}
    assert set(held) == {"stream", "seed", "method", "net", "train", "eval", "data"}


def test_settings_that_exclude_each_other_are_named() -> None:
    told = faults("p-mnist", "ser", settings={"train.nesterov": "true"})
    assert told == ["train.nesterov needs train.momentum > 0"]
    told = faults("p-mnist", "ser", settings={"train.schedule": "cosine", "train.milestones": "3"})
    assert told == ["train.schedule and train.milestones exclude each other; set one of them"]


def test_a_course_of_the_rate_for_each_schedule() -> None:
    plain = resolve("p-mnist", "sgd").train
    assert plain.rate_of(0) is None
    waves = resolve("p-mnist", "sgd", settings={"train.schedule": "restarts", "train.lr": 0.05}).train
    rate = waves.rate_of(0)
    assert rate is not None
    assert [rate(epoch, 0.0) for epoch in (0, 3)] == pytest.approx([0.005, 0.02525])
    settings = {
        "train.schedule": "cosine",
        "train.epochs": 100,
        "train.first_epochs": 500,
        "train.lr": 0.5,
        "train.warmup": 10,
    }
    long = resolve("p-mnist", "sgd", settings=settings).train
    assert [long.epochs_of(index) for index in (0, 1)] == [500, 100]
    first, later = long.rate_of(0), long.rate_of(1)
    assert first is not None
    assert later is not None
    assert first(9, 1.0) == later(9, 1.0) == pytest.approx(0.48778, abs=5e-6)
    assert first(99, 0.0) > later(99, 0.0) == pytest.approx(0.0005)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("", "stream", True),
        ("method", "name", None),
        ("net", "name", 1.5),
        ("method", "memory_size", math.inf),
    ],
)
def test_a_configuration_from_a_file_may_hold_anything(section: str, key: str, value: object) -> None:
    held = resolve("split-digits", "ser", 50).to_dict()
    assert config_of(held, "").to_dict() == held
    (held[section] if section else held)[key] = value
    with pytest.raises(ConfigError):
        config_of(held, "")
