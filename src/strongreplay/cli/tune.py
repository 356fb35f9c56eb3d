"""ser tune: searches settings on held-out training data, with the same number of trials for every method."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from strongreplay.cli.commands import STUDY, Command
from strongreplay.cli.many_runs import GridOptions, makes_runs
from strongreplay.cli.options import (
    DataFolder,
    Device,
    ProtocolName,
    Settings,
    choose_data_folder,
    parse_methods,
    takes_format,
)
from strongreplay.cli.tables import Entry, Format, Table, TableCell, print_table
from strongreplay.cli.text import print_line
from strongreplay.errors import ConfigError
from strongreplay.progress import Bar, GridProgress

if TYPE_CHECKING:
    from strongreplay.runs.config import RunConfig
    from strongreplay.runs.grid import Job, Judge, RunOptions
    from strongreplay.runs.tune import MethodStudy, Pruning, TrialResult


@makes_runs
@takes_format
def tune_command(
    stream: Annotated[str, typer.Argument(help="The stream to learn; see: ser list streams")],
    method: Annotated[
        list[str],
        typer.Option("--method", "-m", help="Method, or several with commas: the same budget each."),
    ] = ["ser"],  # noqa: B006 - typer reads it, nothing changes it
    trials: Annotated[int, typer.Option(min=1, help="Trials for each method; the first is its recipe.")] = 30,
    memory: Annotated[
        list[str],
        typer.Option(metavar="N,...", help="Samples in the memory, for methods with one; or several sizes."),
    ] = [],  # noqa: B006
    space: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Ranges to search.", show_default="from the settings' types"),
    ] = None,
    validation: Annotated[float, typer.Option(help="Part of the training data to judge by.")] = 0.1,
    finalists: Annotated[int, typer.Option(min=1, help="Best trials that are run with further seeds.")] = 3,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each finalist.")] = 3,
    pruning: Annotated[
        Literal["median", "halving", "none"], typer.Option(help="How bad trials are stopped early.")
    ] = "median",
    settings: Settings = [],  # noqa: B006
    recipe: Annotated[str, typer.Option(help="The recipe to begin with.")] = "published",
    protocol: ProtocolName = "full",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the study, trials and recipe.")] = Path(
        "tuned"
    ),
    data: DataFolder = None,
    device: Device = "auto",
    how: GridOptions = GridOptions(),  # noqa: B008 - it is frozen
    form: Format = "text",
) -> None:
    """Search the settings of methods on held-out data, never on test data, and write a recipe.

    The same command goes on with a search that was stopped, or adds trials.

    Example: ser tune split-digits --method er,ser --memory 50 --trials 20 --out tuned
    """
    if how.shard != (1, 1):
        raise ConfigError("--shard does not apply: a trial depends on those before it; use --jobs")
    if how.on == "slurm":
        raise ConfigError("--on slurm does not apply: trials are asked about after each task; use --on ray")
    if not 0 < validation < 1:
        raise ConfigError(f"--validation must be > 0 and < 1, got {validation}")

    from strongreplay.cli.run import note_memory
    from strongreplay.runs.config import prepare_stream
    from strongreplay.runs.grid import RunOptions
    from strongreplay.runs.recipes import recipe_of
    from strongreplay.runs.sweep import Sweep, add_options, collect_settings
    from strongreplay.runs.tune import SEARCHED, write_recipe
    from strongreplay.storage.records import safe_name

    names = parse_methods(method)
    chosen = add_options(collect_settings(settings), {"memory": memory}) | {"data.validation": [validation]}
    sweep = Sweep(stream, names, settings=chosen, recipe=recipe_of(protocol, recipe))
    with Bar() as bar:
        for values in sweep.reading_settings():
            prepare_stream(stream, values, bar)
    configs = sweep.configs()
    note_memory(sweep)
    studies = open_studies(configs, space, out, trials, pruning)
    options = RunOptions(out, choose_data_folder(data), how.place(device), loggers=how.log, ranks=how.ranks)
    search(studies, options, how, finalists, seeds)
    tried = [(study.config, study.tried(finalists, seeds)) for study in studies]
    print_tried(tried, validation, form)
    path = out / f"{safe_name(stream)}.toml"
    source = f"ser tune: best of {trials} trials by {validation:.0%} of the training data, {seeds} seeds"
    fixed = {name: [key for key in sweep.settings_of(name) if key.startswith(SEARCHED)] for name in names}
    write_recipe(path, tried, fixed, source, f"ser {' '.join(sys.argv[1:])}")
    use = f"ser run {stream} --method {','.join(names)} --recipe {path}"
    print_line(f"recipe: {path}. Use it with: {use}", err=form != "text")


def open_studies(
    configs: "list[RunConfig]", file: Path | None, out: Path, trials: int, pruning: "Pruning"
) -> "list[MethodStudy]":
    from strongreplay.runs.search_space import read_space, space_of
    from strongreplay.runs.tune import MethodStudy, check_space, section_of

    if len({section_of(config) for config in configs}) < len(configs):
        raise ConfigError(
            "ser tune takes one value of each setting; ranges to search are in --space FILE.toml"
        )
    spaces = [read_space(file, config.method_name) if file else space_of(config) for config in configs]
    for config, space in zip(configs, spaces, strict=True):
        check_space(config, space)
        ranges = ", ".join(f"{key} {one.ends[0]} to {one.ends[-1]}" for key, one in space.items())
        print_line(f"{section_of(config)}: {trials} trials of {ranges}", err=True)
    return [
        MethodStudy(config, space, out, trials, pruning)
        for config, space in zip(configs, spaces, strict=True)
    ]


def search(
    studies: "list[MethodStudy]", options: "RunOptions", how: GridOptions, finalists: int, seeds: int
) -> None:
    """Make all trials, then all runs of finalists; after a stop, print how to go on."""
    from strongreplay.cli.run import exit_if_failed
    from strongreplay.runs.grid import Grid, Job
    from strongreplay.runs.jobs import always
    from strongreplay.runs.loggers import prepare_loggers

    prepare_loggers(options.loggers, options.out)
    num_finals = min(finalists, studies[0].num_trials) * (seeds - 1)
    expected = [
        Job.of(study.config)
        for study in studies
        for _ in range(max(0, study.num_trials - study.num_finished) + num_finals)
    ]
    ended = list[Job]()
    with GridProgress(expected) as progress:

        def go(jobs: "Iterator[Job]", goes_on: "Judge") -> None:
            for job in Grid(jobs, options, how.jobs, how.threads, how.devices, goes_on, how.on).go(progress):
                for study in studies:
                    study.end(job)
                progress.on_job(job)
                ended.append(job)

        go(
            (job for study in studies for job in study.jobs()),
            lambda *event: all(study.goes_on(*event) for study in studies),
        )
        if progress.stop.asked is None:
            go((job for study in studies for job in study.final_jobs(finalists, seeds)), always)
    if progress.stop.asked is not None:
        done = ", ".join(f"{study.num_finished} {study.config.method_name}" for study in studies)
        print_line(f"\nstopped after trials: {done}. Go on with the same command.", err=True)
        raise typer.Exit(128 + progress.stop.asked)
    if all(job.ended and job.ended[0] == "failed" for job in ended):
        exit_if_failed(ended)


def print_tried(tried: "list[tuple[RunConfig, list[TrialResult]]]", validation: float, form: Format) -> None:
    from strongreplay.methods.table import method_label
    from strongreplay.runs.tune import choose, mean
    from strongreplay.storage.records import format_settings

    rows: list[tuple[Entry, ...]] = []
    for config, trials in tried:
        best, states = choose(trials), [one.state for one in trials]
        first = next((one.accuracy for one in trials if one.number == 0 and one.state == "complete"), None)
        rows.append(
            (
                TableCell(method_label(config.method_name), config.method_name),
                len(trials),
                states.count("pruned"),
                states.count("failed"),
                score_cell(first),
                score_cell(best.accuracy if best else None),
                score_cell(mean(best.finals) if best else None),
                len(best.finals) if best else None,
                format_settings(best.settings) if best else None,
            )
        )
    columns = ("method", "trials", "stopped\nearly", "failed", "recipe", "best\ntrial", "finalist", "seeds")
    title = f"accuracy on the {validation:.0%} of the training data that was held out, in per cent"
    print_table(Table((*columns, "settings"), rows, title, wraps=["settings"]), form)


def score_cell(score: float | None) -> TableCell:
    return TableCell("-" if score is None else f"{score:.2f}", score)


COMMAND = Command("tune", tune_command, STUDY, 25)
