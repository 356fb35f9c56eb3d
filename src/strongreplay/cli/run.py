"""ser run and ser resume: every finished seed leaves a record, every stopped one a state to go on from."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.cli.commands import STUDY, Command
from strongreplay.cli.options import ProtocolName, choose_data_folder, parse_seeds
from strongreplay.errors import ConfigError
from strongreplay.runs.recipes import recipe_of

if TYPE_CHECKING:
    from strongreplay.cli.progress import StopRequest
    from strongreplay.runs.config import RunConfig
    from strongreplay.runs.grid import RunOptions
    from strongreplay.storage.records import RunRecord


def run_command(
    stream: Annotated[str, typer.Argument(help="The stream to learn; see: ser list streams")],
    method: Annotated[
        list[str],
        typer.Option("--method", "-m", help="Method, or several with commas; see: ser list methods"),
    ] = ["ser"],  # noqa: B006 - typer reads it, nobody writes it
    memory: Annotated[int | None, typer.Option(help="Samples kept by methods that have a memory.")] = None,
    seeds: Annotated[str, typer.Option(help="How many seeds (5: 0 to 4), or which ones (3,7 or 4,).")] = "1",
    settings: Annotated[
        list[str],
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Override a setting, such as train.epochs=5."),
    ] = [],  # noqa: B006
    recipe: Annotated[
        str, typer.Option(help="published, or tuned where there is one; see: ser list recipes")
    ] = "published",
    protocol: ProtocolName = "full",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for records and the picture.")] = Path(
        "runs"
    ),
    data: Annotated[
        Path | None,
        typer.Option(help="Data folder.", show_default="$STRONGREPLAY_DATA, else the cache folder"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps ...")] = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads.", show_default="PyTorch's choice")
    ] = None,
    checkpoint_every: Annotated[
        str | None,
        typer.Option(
            metavar="5m|90s|STEPS",
            help="Keep the state this often.",
            show_default="every 5m in runs of more than 10 minutes",
        ),
    ] = None,
    keep_state: Annotated[
        bool,
        typer.Option("--keep-state", help="Keep the last state of a finished run: weights and all."),
    ] = False,
) -> None:
    """Learn a stream and record what came of it.

    What is recorded already is not run again; what was stopped goes on from its last checkpoint.
    """
    names = [name.strip() for entry in method for name in entry.split(",") if name.strip()]
    if not names:
        raise ConfigError("--method must name at least one method; see: ser list methods")
    numbers = parse_seeds(seeds)

    import torch

    from strongreplay.runs.config import parse_settings
    from strongreplay.runs.grid import RunOptions
    from strongreplay.runs.run import CheckpointInterval, find_device

    if threads:
        torch.set_num_threads(threads)
    if checkpoint_every:
        CheckpointInterval.parse(checkpoint_every)
    place = str(find_device(device))
    configs = plan(stream, names, memory, numbers, parse_settings(settings), recipe_of(protocol, recipe))
    run_to_the_end(configs, RunOptions(out, choose_data_folder(data), place, checkpoint_every, keep_state))


def resume_command(
    folder: Annotated[Path, typer.Argument(help="A folder with stopped runs, or one run's .state folder.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Data folder.", show_default="$STRONGREPLAY_DATA, else the cache folder"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="Another device.", show_default="the same")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.", show_default="as many")] = None,
    checkpoint_every: Annotated[
        str | None, typer.Option(metavar="5m|90s|STEPS", help="Keep the state this often.")
    ] = None,
) -> None:
    """Go on with every stopped run in a folder, to the bit as if it had never stopped."""
    import torch

    from strongreplay.runs.config import config_of
    from strongreplay.runs.grid import RunOptions
    from strongreplay.runs.run import find_device, state_folder
    from strongreplay.runs.stopped import read_stopped
    from strongreplay.storage.checkpoints import checkpoints, folders_with_state

    stopped = folders_with_state(folder)
    if not stopped:
        raise ConfigError(f"{folder}: no stopped run in there; see: ser run --help")
    for path in stopped:
        found = read_stopped(checkpoints(path)[0])
        config = config_of(found.config, found.recipe)
        out = path.parent.parent.parent
        if state_folder(out, config).resolve() != path.resolve():
            raise ConfigError(f"{path}: the folder was renamed; it must be {state_folder(Path(), config)}")
        torch.set_num_threads(threads or found.threads)
        place = str(find_device(device or found.device))
        run_to_the_end([config], RunOptions(out, choose_data_folder(data), place, checkpoint_every, False))


def run_to_the_end(configs: "list[RunConfig]", session: "RunOptions") -> None:
    """All runs, then the table and picture; a stop says what is kept and how to go on."""
    from strongreplay.cli.compare import print_comparison
    from strongreplay.cli.progress import StopRequest
    from strongreplay.runs.run import Interrupted

    finished: list[RunRecord] = []
    with StopRequest() as stop:
        try:
            run_all(configs, finished, session, stop)
        except Interrupted as error:
            typer.echo(
                f"\n{error}. {len(finished)} of {len(configs)} runs are recorded in {session.out}. "
                f"Go on with the same command, or with: ser resume {session.out}",
                err=True,
            )
            raise typer.Exit(128 + (stop.asked or 2)) from None
    print_comparison(finished, session.out)


def plan(
    stream: str,
    names: list[str],
    memory: int | None,
    seeds: list[int],
    settings: dict[str, str],
    recipe: str,
) -> "list[RunConfig]":
    """Every run to be made, checked before the first one starts."""
    from strongreplay.methods import METHODS
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
        without = [name for name in names if not METHODS[name].has_memory]
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


def run_all(
    configs: "list[RunConfig]", finished: "list[RunRecord]", session: "RunOptions", stop: "StopRequest"
) -> None:
    """Run what is not recorded yet, with one bar for all and one for the run at hand."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from strongreplay.cli.progress import BarWatcher
    from strongreplay.errors import DataError
    from strongreplay.runs.grid import find_record, headline, name_of, run_recorded
    from strongreplay.storage.records import record_path

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        overall = progress.add_task("all runs", total=len(configs))
        for config in configs:
            name, record, start = name_of(config), None, time.perf_counter()
            try:
                record = find_record(config, session.out)
            except DataError as error:
                console.print(f"{name}: {error}; running again", highlight=False, soft_wrap=True)
            if record:
                path = record_path(session.out, config.to_dict())
                told = f"recorded already, skipped ({path})"
            else:
                with BarWatcher(progress, name, stop) as watcher:
                    record = run_recorded(config, session, watcher)
                told = f"{headline(record)} in {time.perf_counter() - start:.1f} s"
            finished.append(record)
            progress.advance(overall)
            console.print(f"{name}: {told}", highlight=False, soft_wrap=True)


COMMAND = Command("run", run_command, STUDY, 10)
