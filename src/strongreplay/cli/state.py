"""ser state: inspect checkpoints and verify their checksums; no code in them is executed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.cli.commands import STUDY, Command
from strongreplay.cli.text import print_line
from strongreplay.errors import DataError

if TYPE_CHECKING:
    from strongreplay.runs.stopped import StoppedState

app = typer.Typer(help="Inspect and verify the checkpoints of runs.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(help="A checkpoint, a run's .state folder, or a folder of runs.")]


def find(folder: Path) -> list[Path]:
    """Every checkpoint in a folder, the newest of each run first."""
    from strongreplay.storage.checkpoints import MANIFEST, checkpoints, folders_with_state

    if (folder / MANIFEST).exists():
        return [folder]
    found = [path for place in folders_with_state(folder) for path in checkpoints(place)]
    if not found and (folder / "current").exists():
        raise DataError(f"{folder}: a kept model and no runs; see: ser status {folder}")
    if not found:
        raise DataError(f"{folder}: no checkpoints in there; a run keeps some with --checkpoint-every")
    return found


@app.command()
def inspect(folder: Folder) -> None:
    """Show the contents of each checkpoint: run, time, step, sizes and checksums.

    Example: ser state inspect runs
    """
    from strongreplay.runs.stopped import read_stopped

    for path in find(folder):
        print_line(f"{path}\n{describe(read_stopped(path))}")


def describe(stopped: "StoppedState") -> str:
    """A few lines about the checkpoint of a run."""
    method = stopped.config.get("method")
    method = method if isinstance(method, dict) else {}
    memory = f", memory {method['memory_size']}" if "memory_size" in method else ""
    size = sum(file["bytes"] for file in stopped.files.values())
    run = f"{stopped.config.get('stream')} {method.get('name')}{memory}, seed {stopped.config.get('seed')}"
    lines = [
        f"run      {run}",
        f"written  {stopped.written} by strongreplay {stopped.package}, format {stopped.format}",
        f"stands   after step {stopped.step} of about {stopped.steps_expected}, "
        f"task {stopped.task} of {stopped.tasks}",
        f"made on  {stopped.device}, {stopped.threads} threads",
        f"size     {size / 1e6:.2f} MB",
    ]
    for name, file in stopped.files.items():
        lines.append(f"         {name}: {file['bytes']} bytes, sha256 {file['sha256']}")
    return "\n".join(f"  {line}" for line in lines)


@app.command()
def verify(folder: Folder) -> None:
    """Read every checkpoint and verify every checksum; the exit code is 1 if one is damaged.

    Example: ser state verify runs
    """
    from strongreplay.storage.state import read_checkpoint

    damaged = 0
    for path in find(folder):
        try:
            read_checkpoint(path)
            typer.echo(f"{path}: good")
        except DataError as error:
            damaged += 1
            typer.secho(f"damaged: {error}", fg="red", err=True)
    if damaged:
        raise typer.Exit(1)


COMMAND = Command("state", app, STUDY, 70)
