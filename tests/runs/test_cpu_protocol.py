"""The cpu protocol: small settings on top of the published ones, apart from the printed numbers."""

from dataclasses import replace

import pytest
from support.steps import auxiliary_for
from typer.testing import CliRunner

from strongreplay.cli import app
from strongreplay.cli.reproduce import config_for, fingerprints_now
from strongreplay.errors import ConfigError
from strongreplay.methods import METHODS
from strongreplay.report.verdicts import judge_all
from strongreplay.runs.config import config_of, resolve
from strongreplay.runs.paper import fingerprints, items
from strongreplay.runs.recipes import CPU, TUNED, all_recipes, find_recipe, recipe_of
from strongreplay.storage.records import RunRecord

CIFAR = ("seq-cifar10", "seq-cifar100-5", "seq-cifar100-10", "seq-cifar100-20")


@pytest.mark.parametrize("stream", CIFAR)
def test_every_method_of_a_stream_has_the_small_net_and_few_epochs(stream: str) -> None:
    methods = {recipe.method for recipe in all_recipes() if recipe.name == CPU and recipe.stream == stream}
    assert methods == {recipe.method for recipe in all_recipes() if recipe.stream == stream}
    for method in methods - {"rm", "ert", "co2l"}:  # these have schedules of their own
        settings = auxiliary_for(method)
        config = resolve(stream, method, 200, 0, settings, CPU)
        width = None if METHODS[method].needs_weights else 20  # that of a file
        assert (config.net.width, config.train.epochs, config.train.milestones) == (width, 5, (4,))
        assert config.train.precision == "bf16"
        assert config.train.lr == resolve(stream, method, 200, 0, settings).train.lr
        assert config.source.startswith("cpu protocol, version 2; else: ")


def test_what_is_counted_in_epochs_or_steps_shrinks_with_them() -> None:
    full, cpu = (
        {
            method: find_recipe("seq-cifar100-10", method, 200, name).settings
            for method in ("lwf", "ert", "clser")
        }
        for name in ("published", CPU)
    )
    assert full["lwf"]["method.warmup_epochs"] == 10 * cpu["lwf"]["method.warmup_epochs"]
    assert full["ert"]["method.bic_epochs"] == 10 * cpu["ert"]["method.bic_epochs"]
    assert 1 - cpu["clser"]["method.stable_decay"] == pytest.approx(
        10 * (1 - full["clser"]["method.stable_decay"])
    )
    for stream in CIFAR:
        decay, slower = (resolve(stream, "ert", 200, recipe_name=name) for name in (CPU, "published"))
        assert decay.to_dict()["method"]["elrd"] == pytest.approx(
            slower.to_dict()["method"]["elrd"] ** 10, abs=1e-9
        )
        assert decay.train.milestones == ()


def test_a_protocol_is_a_recipe_and_full_is_the_published_one() -> None:
    assert [recipe_of("full"), recipe_of("full", TUNED), recipe_of("cpu")] == ["published", "tuned", "cpu"]
    with pytest.raises(ConfigError, match="unknown protocol 'cpus'; did you mean 'cpu'"):
        recipe_of("cpus")
    with pytest.raises(ConfigError, match="--recipe tuned; leave one of them out"):
        recipe_of("cpu", TUNED)
    with pytest.raises(
        ConfigError, match="no recipe 'cpu' for p-mnist ser; there is one for seq-cifar10, seq-"
    ):
        find_recipe("p-mnist", "ser", 200, CPU)


def test_fingerprints_of_the_protocols_are_those_of_the_configurations_and_disjoint() -> None:
    assert fingerprints("cpu") == fingerprints_now("cpu"), "run: ser reproduce refresh"
    assert not set(fingerprints("cpu").values()) & set(fingerprints().values())
    assert {item.stream for item in items("cpu")} == set(CIFAR)


def test_a_record_of_the_cpu_protocol_counts_for_no_printed_number() -> None:
    name = "table1/seq-cifar100-10/m200/ser/class-il"
    item = next(item for item in items("cpu") if item.name == name)
    config = config_for(item, 0)
    scores = {"class-il": {"matrix": [[90.0]], "average_accuracy": 90.0}}
    record = RunRecord(config.to_dict(), {"accuracy": scores}, {"recipe": config.source})
    assert record.protocol == "cpu"
    (own,) = judge_all([item], [record])
    (printed,) = judge_all([replace(item, protocol="full")], [record])
    assert (own.verdict, own.difference, own.records) == ("not comparable", None, (record,))
    assert (printed.verdict, printed.records) == ("not run", ())
    stopped = config_of(config.to_dict(), config.source)  # as a resumed run and a process of a grid make it
    assert stopped == config
    assert replace(record, measured={"recipe": resolve("p-mnist", "ser", 200).source}).protocol == "full"
    assert replace(record, measured={}).protocol == "full"


def test_the_commands_take_a_protocol() -> None:
    listed = CliRunner().invoke(
        app,
        ["reproduce", "list", "table1", "--protocol", "cpu", "--quick", "--only", "seq-cifar100-10,m200,ser"],
    )
    assert listed.exit_code == 0
    assert "train.milestones=4" in listed.stdout
    assert "cpu protocol, version 2" in listed.stdout
    for words in (["run", "seq-cifar10"], ["reproduce", "table1"]):
        refused = CliRunner().invoke(app, [*words, "--protocol", "gpu"])
        assert isinstance(refused.exception, ConfigError)
