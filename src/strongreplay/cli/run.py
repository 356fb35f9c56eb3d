"""ser run: learns streams. A finished run writes a record; a stopped run writes a state to resume from."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.cli.commands import STUDY, Command
from strongreplay.cli.many_runs import GridOptions, makes_runs
from strongreplay.cli.options import (
    CheckpointEvery,
    DataFolder,
    Device,
    ProtocolName,
    RunsFolder,
    Seeds,
    Settings,
    choose_data_folder,
    parse_seeds,
)
from strongreplay.errors import ConfigError
from strongreplay.progress import Bar, GridProgress, Standing

if TYPE_CHECKING:
    from strongreplay.runs.config import RunConfig
    from strongreplay.runs.grid import Job, RunOptions


@makes_runs
def run_command(
    stream: Annotated[str, typer.Argument(help="The stream to learn; see: ser list streams")],
    method: Annotated[
        list[str],
        typer.Option(
            "--method", "-m", help="Method, mine.py:Class, or several with commas; see: ser list methods"
        ),
    ] = ["ser"],  # noqa: B006 - typer reads it, nothing changes it
    net: Annotated[
        str | None,
        typer.Option(help="Net, or mine.py:function; see: ser list nets", show_default="the stream's"),
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Number of tasks; the same as --set data.num_tasks=N.")
    ] = None,
    memory: Annotated[int | None, typer.Option(help="Samples in the memory, for methods with one.")] = None,
    seeds: Seeds = "1",
    settings: Settings = [],  # noqa: B006
    recipe: Annotated[
        str, typer.Option(help="published, or tuned if there is one; see: ser list recipes")
    ] = "published",
    protocol: ProtocolName = "full",
    out: RunsFolder = Path("runs"),
    data: DataFolder = None,
    device: Device = "auto",
    again: Annotated[bool, typer.Option("--again", help="Make recorded runs again.")] = False,
    checkpoint_every: CheckpointEvery = None,
    keep_state: Annotated[
        bool,
        typer.Option("--keep-state", help="Keep the last state of a finished run, with weights."),
    ] = False,
    how: GridOptions = GridOptions(),  # noqa: B008 - it is frozen
) -> None:
    """Learn a stream and record the results.

    Recorded runs are skipped; stopped runs resume from their last checkpoint.
    """
    names = [name.strip() for entry in method for name in entry.split(",") if name.strip()]
    if not names:
        raise ConfigError("--method must name at least one method; see: ser list methods")
    numbers = parse_seeds(seeds)

    from strongreplay.runs.config import parse_settings, prepare_stream
    from strongreplay.runs.grid import RunOptions
    from strongreplay.runs.recipes import recipe_of
    from strongreplay.runs.run import CheckpointInterval, find_device

    if checkpoint_every:
        CheckpointInterval.parse(checkpoint_every)
    place = str(find_device(device))
    chosen = parse_settings(settings) | ({"net.name": net} if net else {})
    chosen = ({"data.num_tasks": str(tasks)} if tasks else {}) | chosen
    with Bar() as bar:
        prepare_stream(stream, chosen, bar)
    configs = plan(stream, names, memory, numbers, chosen, recipe_of(protocol, recipe))
    options = RunOptions(out, choose_data_folder(data), place, checkpoint_every, keep_state, how.log)
    run_to_the_end(configs, options, how, again)


def run_to_the_end(
    configs: "list[RunConfig]",
    options: "RunOptions",
    how: GridOptions = GridOptions(),  # noqa: B008
    again: bool = False,
) -> None:
    """Make all runs, then print the table and draw the picture; after a stop, print how to resume."""
    from strongreplay.cli.compare import print_comparison
    from strongreplay.runs.grid import find_record, sort_out
    from strongreplay.storage.records import read_folder, record_path

    configs = how.part_of(configs)
    recorded, absent, problems = sort_out(configs, options.out, again)
    progress, ended = make_runs(recorded, absent, problems, options, how)
    finished = [job for job in (*recorded, *ended) if job.ended and job.ended[0] in ("recorded", "skipped")]
    if progress.stop.asked is not None:
        said = "".join(f"{job.ended[1]}. " for job in ended if job.ended and job.ended[0] == "stopped")
        typer.echo(
            f"\n{said or 'stopped. '}{len(finished)} of {len(configs)} runs are recorded in {options.out}. "
            f"Resume with the same command, or with: ser resume {options.out}",
            err=True,
        )
        raise typer.Exit(128 + progress.stop.asked)
    kept = {id(job.config) for job in finished}
    found = [find_record(config, options.out) for config in configs if id(config) in kept]
    if records := [record for record in found if record]:
        # The picture also shows the runs of earlier commands.
        folders = {record_path(options.out, record.config).parent.parent for record in records}
        print_comparison(records, options.out, drawn=read_folder(sorted(folders))[0])
    exit_if_failed(ended)


def make_runs(
    recorded: "list[Job]",
    absent: "list[Job]",
    problems: list[str],
    options: "RunOptions",
    how: GridOptions,
    standing: Standing | None = None,
) -> "tuple[GridProgress, list[Job]]":
    """Make the missing runs and print a line for each at its end; used by `ser run` and `ser reproduce`."""
    from strongreplay.runs.grid import Grid
    from strongreplay.runs.loggers import prepare_loggers

    ended = []
    prepare_loggers(options.loggers if absent else (), options.out)
    with GridProgress(absent, standing) as progress:
        for problem in problems:
            progress.say(problem)
        for job in recorded:
            assert job.ended
            progress.on_message(job.name, job.ended[1])
        for job in Grid(absent, options, how.jobs, how.threads, how.devices).go(progress):
            progress.on_job(job)
            ended.append(job)
    return progress, ended


def exit_if_failed(ended: "list[Job]") -> None:
    failed = [job for job in ended if job.ended and job.ended[0] == "failed"]
    if failed:
        typer.echo(f"error: {len(failed)} of {len(ended)} runs failed; see above", err=True)
        raise typer.Exit(1)


def plan(
    stream: str,
    names: list[str],
    memory: int | None,
    seeds: list[int],
    settings: dict[str, str],
    recipe: str,
) -> "list[RunConfig]":
    """The configurations of all runs, checked before the first run starts."""
    from strongreplay.methods import method_row
    from strongreplay.runs.config import resolve

    configs, faults = [], []
    for name in names:
        try:
            configs += [resolve(stream, name, memory, seed, settings, recipe) for seed in seeds]
        except ConfigError as error:
            faults += [line for line in str(error).splitlines() if line not in faults]
    if faults:
        raise ConfigError("\n".join(faults))
    if memory is not None:
        without = [name for name in names if not method_row(name).has_memory]
        if without:
            typer.echo(f"note: no memory in {', '.join(without)}; --memory does not apply there", err=True)
        warn_small_memory(stream, memory, [name for name in names if name not in without])
    return configs


def warn_small_memory(stream: str, memory: int, names: list[str]) -> None:
    from strongreplay.data.streams import describe_stream

    num_classes = describe_stream(stream).num_classes
    if names and memory < num_classes:
        typer.echo(
            f"note: a memory of {memory} samples is smaller than the {num_classes} classes of {stream}; "
            "some classes will never be replayed",
            err=True,
        )


COMMAND = Command("run", run_command, STUDY, 10)
