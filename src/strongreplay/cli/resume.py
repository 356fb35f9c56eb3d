"""ser resume: resumes stopped runs."""

from pathlib import Path
from typing import Annotated

import typer

from strongreplay.cli.commands import STUDY, Command
from strongreplay.cli.many_runs import GridOptions
from strongreplay.cli.options import CheckpointEvery, DataFolder, choose_data_folder
from strongreplay.cli.run import run_to_the_end
from strongreplay.errors import ConfigError


def resume_command(
    folder: Annotated[Path, typer.Argument(help="A folder with stopped runs, or one run's .state folder.")],
    data: DataFolder = None,
    device: Annotated[str | None, typer.Option(help="Another device.", show_default="the same")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.", show_default="as many")] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Devices that make a run together.", show_default="as many")
    ] = None,
    checkpoint_every: CheckpointEvery = None,
) -> None:
    """Resume every stopped run in a folder; the results are the same bits as without the stop.

    Another number of devices changes them by rounding only.

    Example: ser resume runs
    """
    from strongreplay.runs.config import config_of
    from strongreplay.runs.grid import RunOptions
    from strongreplay.runs.run import find_device, state_folder
    from strongreplay.runs.stopped import read_stopped
    from strongreplay.storage.checkpoints import checkpoints, folders_with_state
    from strongreplay.training.parallel import under_torchrun

    stopped = folders_with_state(folder)
    if not stopped:
        raise ConfigError(f"{folder}: no stopped run in there; see: ser run --help")
    for path in stopped:
        found = read_stopped(checkpoints(path)[0])
        config = config_of(found.config, found.recipe)
        out = path.parent.parent.parent
        if state_folder(out, config).resolve() != path.resolve():
            raise ConfigError(f"{path}: the folder was renamed; it must be {state_folder(Path(), config)}")
        place = str(find_device(device or found.device))
        ranks = 1 if under_torchrun() else devices or found.ranks
        options = RunOptions(out, choose_data_folder(data), place, checkpoint_every, ranks=ranks)
        run_to_the_end([config], options, GridOptions(threads=threads or ranks * found.threads))


COMMAND = Command("resume", resume_command, STUDY, 20)
