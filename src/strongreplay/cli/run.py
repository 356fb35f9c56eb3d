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
    parse_methods,
    parse_seeds,
)
from strongreplay.cli.text import print_note
from strongreplay.progress import Bar, DescribeScores, GridProgress

if TYPE_CHECKING:
    from strongreplay.runs.config import RunConfig
    from strongreplay.runs.grid import Job, RunOptions
    from strongreplay.runs.sweep import Sweep


def read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Take the defaults of all options from the file; settings are kept for `run_command`."""
    if path is not None:
        from strongreplay.runs.sweep_file import read_sweep

        names = [param.name for param in ctx.command.params if param.name not in (None, "settings", "config")]
        file = read_sweep(path, [name for name in names if name])
        ctx.default_map, ctx.obj = file.options, file.settings
    return path


@makes_runs
def run_command(
    ctx: typer.Context,
    stream: Annotated[str, typer.Argument(help="The stream to learn; see: ser list streams")],
    method: Annotated[
        list[str],
        typer.Option(
            "--method", "-m", help="Method, mine.py:Class, or several with commas; see: ser list methods"
        ),
    ] = ["ser"],  # noqa: B006 - typer reads it, nothing changes it
    net: Annotated[
        list[str],
        typer.Option(help="Net, or mine.py:function; see: ser list nets", show_default="the stream's"),
    ] = [],  # noqa: B006
    tasks: Annotated[
        list[str],
        typer.Option(metavar="N,...", help="Number of tasks; the same as --set data.num_tasks=N."),
    ] = [],  # noqa: B006
    memory: Annotated[
        list[str],
        typer.Option(metavar="N,...", help="Samples in the memory, for methods with one; or several sizes."),
    ] = [],  # noqa: B006
    config: Annotated[
        Path | None,
        typer.Option(
            is_eager=True,
            callback=read_config,
            help="TOML file with these options, and settings in its table set; the command line wins.",
        ),
    ] = None,
    seeds: Seeds = "1",
    settings: Settings = [],  # noqa: B006
    recipe: Annotated[
        str,
        typer.Option(help="published, tuned if there is one, or a file of ser tune; see: ser list recipes"),
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
    """Learn a stream and record the results; a run for each combination of methods, values and seeds.

    Recorded runs are skipped; stopped runs resume from their last checkpoint.

    Example: ser run split-digits --method er,ser --memory 50 --seeds 5 --out runs
    """
    names = parse_methods(method)
    numbers = parse_seeds(seeds)

    from strongreplay.runs.config import prepare_stream
    from strongreplay.runs.grid import RunOptions
    from strongreplay.runs.recipes import recipe_of
    from strongreplay.runs.run import CheckpointInterval
    from strongreplay.runs.sweep import Sweep, add_options, collect_settings, override

    if checkpoint_every:
        CheckpointInterval.parse(checkpoint_every)
    place = how.place(device)
    chosen = add_options(collect_settings(settings), {"memory": memory, "net": net, "tasks": tasks})
    sweep = Sweep(stream, names, numbers, override(ctx.obj or {}, chosen), recipe_of(protocol, recipe))
    source = ctx.get_parameter_source("method")
    if source and source.name == "COMMANDLINE":  # the file may have settings for other methods
        sweep = sweep.without_absent(ctx.obj or {})
    with Bar() as bar:
        for values in sweep.reading_settings():
            prepare_stream(stream, values, bar)
    configs = sweep.configs()
    note_memory(sweep)
    options = RunOptions(
        out, choose_data_folder(data), place, checkpoint_every, keep_state, how.log, how.ranks
    )
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
    from strongreplay.runs.rank_process import run_under_torchrun
    from strongreplay.storage.records import read_folder, record_path
    from strongreplay.training.parallel import join_torchrun, under_torchrun

    configs = how.part_of(configs)
    ranks = join_torchrun(options.device)[0] if under_torchrun() else None
    if ranks and not ranks.is_first:
        run_under_torchrun(configs, options, ranks, how.threads, again)
        return
    recorded, absent, problems = sort_out(configs, options.out, again)
    tell_apart([*recorded, *absent])
    if ranks:
        ranks.wait_for_all()  # the others look for records now
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


def tell_apart(jobs: "list[Job]") -> None:
    """Add the settings in which runs differ to their names."""
    from strongreplay.runs.sweep import differences

    for job, text in zip(jobs, differences([job.config for job in jobs]), strict=True):
        if text:
            job.name, job.label = f"{job.name} {text}", f"{job.label} {text}"


def make_runs(
    recorded: "list[Job]",
    absent: "list[Job]",
    problems: list[str],
    options: "RunOptions",
    how: GridOptions,
    standing: DescribeScores | None = None,
) -> "tuple[GridProgress, list[Job]]":
    """Make the missing runs and print a line for each at its end; used by `ser run` and `ser reproduce`."""
    from strongreplay.runs.grid import Grid
    from strongreplay.runs.loggers import prepare_loggers
    from strongreplay.training.parallel import under_torchrun

    ended = []
    prepare_loggers(options.loggers if absent else (), options.out)
    with GridProgress(absent, standing) as progress:
        for problem in problems:
            progress.say(problem)
        for job in recorded:
            assert job.ended
            progress.on_message(job.name, job.ended[1])
        for job in Grid(absent, options, how.jobs, how.threads, how.devices, on=how.on).go(progress):
            progress.on_job(job)
            ended.append(job)
            if under_torchrun() and job.ended and job.ended[0] == "failed":
                break  # the other ranks have ended too
    return progress, ended


def exit_if_failed(ended: "list[Job]") -> None:
    failed = [job for job in ended if job.ended and job.ended[0] == "failed"]
    if failed:
        typer.echo(f"error: {len(failed)} of {len(ended)} runs failed; see above", err=True)
        raise typer.Exit(1)


def note_memory(sweep: "Sweep") -> None:
    """Say which methods have no memory, and which sizes leave classes without a sample."""
    from strongreplay.data.streams import describe_stream
    from strongreplay.methods import method_row
    from strongreplay.runs.sweep import MEMORY

    sizes = [int(size) for size in sweep.settings.get(MEMORY, ())]
    without = [name for name in sweep.methods if not method_row(name).has_memory]
    if sizes and without:
        print_note(f"no memory in {', '.join(without)}; --memory does not apply there")
    if sizes and len(without) < len(sweep.methods):
        num_classes = describe_stream(sweep.stream).num_classes
        for size in [size for size in sizes if size < num_classes]:
            print_note(
                f"a memory of {size} samples is smaller than the {num_classes} classes of {sweep.stream}; "
                "some classes will never be replayed"
            )


COMMAND = Command("run", run_command, STUDY, 10)
