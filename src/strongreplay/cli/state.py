"""ser state: look at checkpoints and check their sums; nothing of them is executed."""

from pathlib import Path
from typing import Annotated

import typer

from strongreplay.errors import DataError

app = typer.Typer(help="Look at the kept state of runs.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(help="A checkpoint, a run's .state folder, or a folder of runs.")]


def find(folder: Path) -> list[Path]:
    """Every checkpoint in there, the newest of each run first."""
    from strongreplay.storage.checkpoints import MANIFEST, checkpoints, folders_with_state

    if (folder / MANIFEST).exists():
        return [folder]
    found = [path for place in folders_with_state(folder) for path in checkpoints(place)]
    if not found:
        raise DataError(f"{folder}: no checkpoints in there; a run keeps some with --checkpoint-every")
    return found


@app.command()
def inspect(folder: Folder) -> None:
    """What each checkpoint holds: which run, when, which step, sizes and sums."""
    from rich.console import Console
    from rich.markup import escape

    from strongreplay.storage.checkpoints import read_manifest

    console = Console(highlight=False)
    for path in find(folder):
        manifest = read_manifest(path)
        config = manifest["config"]
        method = config["method"]
        size = sum(file["bytes"] for file in manifest["files"].values())
        console.print(f"[bold]{escape(str(path))}[/]", soft_wrap=True)
        memory = f", memory {method['memory_size']}" if "memory_size" in method else ""
        console.print(f"  run      {config['stream']} {method['name']}{memory}, seed {config['seed']}")
        console.print(
            f"  written  {manifest['written']} by strongreplay {manifest['package']}, "
            f"format {manifest['format']}"
        )
        console.print(
            f"  stands   after step {manifest['step']} of about {manifest['steps_expected']}, "
            f"task {manifest['task']} of {manifest['tasks']}"
        )
        console.print(f"  made on  {manifest['device']}, {manifest['threads']} threads")
        console.print(f"  size     {size / 1e6:.2f} MB")
        for name, file in manifest["files"].items():
            console.print(
                f"           {name}: {file['bytes']} bytes, sha256 {file['sha256']}", soft_wrap=True
            )


@app.command()
def verify(folder: Folder) -> None:
    """Read every checkpoint and check every sum; the exit code is 1 if one is damaged."""
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
