"""ser learn: update a kept model with new data; the gate can refuse the update."""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from strongreplay.cli.commands import KEEP, Command
from strongreplay.cli.learn_report import print_outcome
from strongreplay.cli.options import (
    AllowOutside,
    AsJson,
    Device,
    Settings,
    ShowAll,
    SkipBad,
    Threads,
    choose_device,
    with_options,
)
from strongreplay.errors import ConfigError

if TYPE_CHECKING:
    from strongreplay.models.learn import LearnOutcome, LearnRequest
    from strongreplay.models.store import Version

REFUSED = 3  # exit code


class SettingOption(NamedTuple):
    """An option that stands for a setting; None, its default, leaves the setting as it is."""

    key: str
    kind: Any
    help: str
    shown: str | bool  # as the default
    metavar: str | None = None
    flags: tuple[str, ...] = ()  # if not the name


FORMS = (
    "auto, one of: ser list nets, or a backbone: efficientnet-lite0, timm:NAME, FILE.onnx, mine.py:factory."
)
BUDGET = "Samples or bytes to keep, such as 500 or 20MB; one fifth is held out."
METHOD = "Method of training; auto: slda on a backbone, else ser."
SETTINGS = {
    "method": SettingOption("learner.method", str, METHOD, "auto", None, ("--method", "-m")),
    "memory": SettingOption("learner.memory", str, BUDGET, "5000,64MB", "SAMPLES|BYTES"),
    "val": SettingOption("learner.val", float, "Share of the data held out for testing.", "0.1"),
    "net": SettingOption("net.name", str, FORMS, "auto"),
    "weights": SettingOption("net.weights", Path, "Weights of timm:NAME.", False, "FILE.safetensors"),
    "tune": SettingOption(
        "net.tune", str, "What is trained of a backbone: none, head or all.", "none with slda, else head"
    ),
    "store": SettingOption("learner.store", str, "How images are kept: raw, png or jpeg.", "raw"),
    "augment": SettingOption("learner.augment", str, "auto, none, crop or crop-flip, when learning.", "auto"),
    "classes": SettingOption(
        "learner.classes", str, "The complete list of classes.", "new ones are added", "A,B,C"
    ),
    "epochs": SettingOption("train.epochs", int, "Passes over the data.", "20"),
    "lr": SettingOption("train.lr", float, "Learning rate.", "0.03"),
    "batch_size": SettingOption("train.batch_size", int, "Samples per step.", "32"),
    "seed": SettingOption("learner.seed", int, "Random seed.", "0"),
}


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of SETTINGS to a command; its argument `given` gets the settings that were typed."""
    options = {
        name: (
            row.kind | None,
            typer.Option(None, *row.flags, help=row.help, show_default=row.shown, metavar=row.metavar),
        )
        for name, row in SETTINGS.items()
    }

    def collect(**values: Any) -> dict[str, Any]:
        typed = {SETTINGS[name].key: value for name, value in values.items() if value is not None}
        return {key: str(value) if isinstance(value, Path) else value for key, value in typed.items()}

    return with_options(command, "given", options, collect)


@takes_settings
def learn_command(
    state: Annotated[
        Path, typer.Argument(metavar="STATE", help="Folder of the model; the first update creates it.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            help="What to learn: a folder with a folder for each class (also in train/, with val/ as the "
            "guard set), a CSV or JSONL list of paths and labels, Parquet files or a saved Hugging Face "
            "dataset, or an .npz file with inputs and labels.",
        ),
    ] = None,
    guard: Annotated[
        Path | None, typer.Option(help="More labelled data to test the update on; never learnt.")
    ] = None,
    given: dict[str, Any] = {},  # noqa: B006 - replaced by SETTINGS
    side: Annotated[
        int | None,
        typer.Option(
            help="Pixels of the square images.", show_default="the backbone's, or the data's up to 64"
        ),
    ] = None,
    channels: Annotated[
        int | None, typer.Option(help="1 (grey) or 3 (colour).", show_default="as the data are")
    ] = None,
    pairs: Settings = [],  # noqa: B006 - typer reads it, nothing changes it
    max_drop: Annotated[
        float | None,
        typer.Option(
            help="Points that an old class may lose before an update is refused.", show_default="10"
        ),
    ] = None,
    level: Annotated[
        float | None,
        typer.Option(
            help="A loss counts if chance explains it with at most this probability; 1: every loss counts.",
            show_default="0.05",
        ),
    ] = None,
    accept: Annotated[
        bool,
        typer.Option("--accept", help="Ignore the gate; without --data: put the refused update in use."),
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Learn the last data again.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Discard a stopped update.")] = False,
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Versions to keep, now and later; the one in use and its parent always stay.",
            show_default="10",
        ),
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    skip_bad: SkipBad = False,
    allow_outside: AllowOutside = False,
    merge_case: Annotated[
        bool, typer.Option("--merge-case", help="Labels such as Cat and cat are one class.")
    ] = False,
    keep_case: Annotated[
        bool, typer.Option("--keep-case", help="Labels such as Cat and cat are two classes.")
    ] = False,
    everything: ShowAll = False,
    as_json: AsJson = False,
) -> None:
    """Learn new data, and put the result in use unless an old class got worse.

    The first update creates the model. Later ones keep its settings; --memory,
    --val and the training settings can change. If the update is refused, the
    exit code is 3 and the model does not change.

    Example: ser learn kept --data january/ --max-drop 5
    """
    check_paths(state, data, guard)
    if merge_case and keep_case:
        raise ConfigError("--merge-case and --keep-case contradict each other; give one of them")
    case = "merge" if merge_case else "keep" if keep_case else None
    if max_drop is not None and not max_drop >= 0:  # also true of nan
        raise ConfigError(f"--max-drop must be points >= 0, got {max_drop:g}; try --max-drop 5")
    if level is not None and not 0 < level <= 1:
        raise ConfigError(f"--level must be a probability > 0 and <= 1, got {level:g}; try --level 0.01")

    from strongreplay.models.gate import LEVEL
    from strongreplay.models.learn import MAX_DROP, LearnRequest
    from strongreplay.models.store import Store
    from strongreplay.models.switch_version import accept_candidate

    settings = read_settings(given, pairs, data)
    place, limit = choose_device(device, threads), MAX_DROP if max_drop is None else max_drop
    level = LEVEL if level is None else level
    if data is None:
        check_alone(accept, settings)
        version: Version | None = accept_candidate(Store(state), keep)
        notes: Sequence[str] | None = ()
    else:
        request = LearnRequest(
            data, guard, settings, side, channels, limit, level, accept, again, restart, keep,
            allow_outside, skip_bad, case,
        )  # fmt: skip
        outcome = learn(state, request, place)
        version, notes = outcome.version, outcome.report.notes if outcome.report else None
    print_outcome(Store(state), version, notes, (limit, level), everything, as_json)
    if version is None:
        raise typer.Exit(REFUSED)


def read_settings(given: dict[str, Any], pairs: list[str], data: Path | None) -> dict[str, Any]:
    """The settings of options and of `--set`, or an error if they differ."""
    from strongreplay.training.settings import parse_settings

    settings = dict(given)
    if (memory := settings.get("learner.memory", "")).isdecimal():
        settings["learner.memory"] = int(memory)
    if "learner.classes" in settings:
        settings["learner.classes"] = class_names(settings["learner.classes"], data)
    for key, value in parse_settings(pairs).items():
        if str(settings.setdefault(key, value)) != value:
            raise ConfigError(
                f"--set {key}={value} contradicts the option with the value {settings[key]}; "
                "leave one of them out"
            )
    return settings


def check_paths(state: Path, *paths: Path | None) -> None:
    for path in paths:
        if path is not None and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(state)):
            raise ConfigError(f"{path} is inside {state}, the folder of the model; give data from elsewhere")


def check_alone(accept: bool, settings: dict[str, Any]) -> None:
    if not accept:
        raise ConfigError(
            "--data must name what is to be learnt, such as --data photos/; see: ser learn --help"
        )
    if settings:
        raise ConfigError(
            f"--accept without --data takes the refused update as it is, got {', '.join(settings)} besides; "
            "leave that out"
        )


def class_names(text: str, data: Path | None) -> list[str | int]:
    """The names between the commas; converted to numbers if the labels of the data are numbers."""
    from strongreplay.data.labels import normalise

    names = [normalise(name.strip()) for name in text.split(",") if name.strip()]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"--classes names '{twice[0]}' twice; name each class once")
    if data is not None and data.suffix.lower() == ".npz" and all(map(is_number, names)):
        import numpy as np

        from strongreplay.data.archives import BROKEN
        from strongreplay.data.user_data import LABEL_NAMES

        with (
            contextlib.suppress(*BROKEN),
            np.load(data, allow_pickle=False) as arrays,
        ):  # reading the data reports it
            if any(arrays[name].dtype.kind in "iuf" for name in arrays.files if name.lower() in LABEL_NAMES):
                return [int(name) for name in names]
    return list(names)


def is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def learn(state: Path, request: "LearnRequest", device: Any) -> "LearnOutcome":
    """Learn with a progress bar; after a stop, print how to resume."""
    from strongreplay.models import learn as update
    from strongreplay.progress import ProgressBar, StopRequest
    from strongreplay.training.trainer import Interrupted

    with StopRequest() as stop, ProgressBar(stop) as bar:
        try:
            return update.learn(state, request, device, [bar])
        except Interrupted as error:
            stopped = str(error)
    typer.echo(f"{stopped}; run the same command again to resume", err=True)
    raise typer.Exit(128 + (stop.asked or 2))


COMMAND = Command("learn", learn_command, KEEP, 10)
