"""Options that several commands share, and the functions that parse them."""

import inspect
import os
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from strongreplay.errors import ConfigError

if TYPE_CHECKING:
    import torch

# A kept model
StateFolder = Annotated[
    Path, typer.Argument(metavar="STATE", help="Folder of the model, as made by: ser learn")
]
VersionName = Annotated[
    str | None, typer.Option("--version", help="Such as v2, or candidate.", show_default="the one in use")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Go on without files that cannot be read.")]
AllowOutside = Annotated[
    bool,
    typer.Option("--allow-outside", help="Follow links and absolute paths that leave the data's folder."),
]

# Records
RecordPaths = Annotated[list[Path], typer.Argument(help="Folders of records, or records.")]
ResultsFolder = Annotated[Path, typer.Option("--out", "-o", help="Folder of the records.")]
RESULTS = Path("results")  # the default of that folder
RunsFolder = Annotated[Path, typer.Option("--out", "-o", help="Folder for records and the picture.")]

# How to compute
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", help="Data folder.", show_default="$STRONGREPLAY_DATA, else the cache folder"),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps ...")]
Threads = Annotated[
    int | None, typer.Option(min=1, max=1024, help="CPU threads.", show_default="PyTorch's choice")
]
Seeds = Annotated[str, typer.Option(help="How many seeds (5: 0 to 4), or which ones (3,7 or 4,).")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at a time; the cores are shared among them.")]
Settings = Annotated[
    list[str],
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Settings, such as train.epochs=5."),
]
CheckpointEvery = Annotated[
    str | None,
    typer.Option(
        metavar="5m|90s|STEPS",
        help="How often to write a checkpoint.",
        show_default="every 5m in runs of more than 10 minutes",
    ),
]

ProtocolName = Annotated[
    str,
    typer.Option(
        "--protocol",
        help="full: as published; cpu: smaller, for machines without a GPU, never mixed with full.",
    ),
]

# Output
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
ShowAll = Annotated[bool, typer.Option("--all", help="Show all rows of long tables.")]


MOST_SEEDS = 1000


def choose_device(name: str, threads: int | None) -> "torch.device":
    """Set the number of threads and find the device."""
    import torch

    from strongreplay.training.devices import find_device

    if threads:
        torch.set_num_threads(threads)
    return find_device(name)


def check_ending(option: str, path: Path, *endings: str) -> None:
    """Refuse a folder, and a file of a format that is not written, before anything is read."""
    if path.is_dir() or path.suffix.lower() not in endings:
        what = "a folder" if path.is_dir() else f"'{path}'"
        raise ConfigError(f"{option} must be a file that ends in {', '.join(endings)}, got {what}")


def choose_data_folder(option: Path | None) -> Path:
    """The option, else STRONGREPLAY_DATA, else the user's cache folder."""
    if option is not None:
        return option.expanduser()
    if named := os.environ.get("STRONGREPLAY_DATA"):
        return Path(named).expanduser()
    from strongreplay.data.datasets import default_folder

    return default_folder()


def parse_methods(entries: list[str]) -> list[str]:
    """The names of all entries, which may have commas, each once."""
    names = list(
        dict.fromkeys(name.strip() for entry in entries for name in entry.split(",") if name.strip())
    )
    if not names:
        raise ConfigError("--method must name at least one method; see: ser list methods")
    return names


def parse_seeds(text: str) -> list[int]:
    """The seeds of a text: a count, or the seeds themselves if there is a comma."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if "," not in text and numbers:
        if numbers[0] > MOST_SEEDS:
            raise ConfigError(
                f"--seeds {text} are {text} seeds, expected at most {MOST_SEEDS:,}; "
                f"for the seed {text} alone write --seeds {text},"
            )
        numbers = list(range(numbers[0]))
    if not numbers or min(numbers) < 0:
        raise ConfigError(
            f"--seeds must be a count >= 1 or numbers >= 0 with commas, got '{text}'; try --seeds 5"
        )
    return list(dict.fromkeys(numbers))


def takes_format(command: Callable[..., None]) -> Callable[..., None]:
    """Add --csv, --json, --latex and --markdown to a command; its argument `form` gets the chosen one."""
    from strongreplay.cli.tables import Format

    forms = [form for form in get_args(Format) if form != "text"]

    def choose(**given: bool) -> str:
        chosen = [form for form in forms if given[form]]
        if len(chosen) > 1:
            raise ConfigError(f"--{' and --'.join(chosen)} exclude each other; give one of them")
        return chosen[0] if chosen else "text"

    flags = {
        form: (Annotated[bool, typer.Option(f"--{form}", help=f"Print the table as {form}.")], False)
        for form in forms
    }
    return with_options(command, "form", flags, choose)


def with_options(
    command: Callable[..., None],
    name: str,
    options: Mapping[str, tuple[Any, Any]],
    make: Callable[..., object],
) -> Callable[..., None]:
    """Replace one argument of a command by several options, whose values `make` puts together."""
    signature = inspect.signature(command)
    others = [one for key, one in signature.parameters.items() if key != name]
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(key, kind, default=default, annotation=annotation)
        for key, (annotation, default) in options.items()
    ]

    @wraps(command)
    def with_more(**given: Any) -> None:
        own = {key: given.pop(key) for key in options}
        command(**given, **{name: make(**own)})

    with_more.__signature__ = signature.replace(parameters=[*others, *added])  # type: ignore[attr-defined]
    with_more.__annotations__ = {one.name: one.annotation for one in (*others, *added)}
    return with_more


# Tables

SpreadOption = Annotated[
    Literal["interval", "sd"],
    typer.Option(
        help="sd: columns with the sample deviation, too; ± is half of the 95 % interval of the mean."
    ),
]
Margin = Annotated[
    float,
    typer.Option(min=0.0, max=100.0, help="Points below the printed number that still count as reproduced."),
]
