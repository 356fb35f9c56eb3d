"""ser status: what a kept model knows, remembers and takes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.cli.tables import counted, moment, per_cent, print_json, print_table, say, size

if TYPE_CHECKING:
    from rich.console import Console

    from strongreplay.models.inspect import ModelStatus
    from strongreplay.models.inspect.status import MemoryStatus


def status_command(
    state: Annotated[
        Path, typer.Argument(metavar="STATE", help="Folder of the model, as made by: ser learn")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Long tables as a whole.")] = False,
) -> None:
    """Show what a model knows: classes and when they were learnt, its memory, its versions."""
    from strongreplay.cli.show import open_console
    from strongreplay.models.inspect import read_status
    from strongreplay.models.store import Store

    status = read_status(Store(state), tell=lambda text: typer.echo(f"note: {text}", err=True))
    if as_json:
        print_json(status.to_dict())
        return
    console = open_console()
    print_model(console, status)
    print_classes(console, status, everything)
    print_memory(console, status.memory)
    print_versions(console, status, everything)
    print_waiting(console, state, status)


def print_model(console: "Console", status: "ModelStatus") -> None:
    source = f", learnt from {status.parent}" if status.parent else ""
    data = f" with {status.data}" if status.data else ""
    say(console, f"{status.version} is in use, written {moment(status.written)} UTC{source}{data}")
    shape = " x ".join(map(str, status.shape))
    what = f"images of {shape}" if len(status.shape) == 3 else f"{shape} features"
    net = " ".join(f"{value}" if key == "name" else f"{key} {value}" for key, value in status.net.items())
    lessons = counted(status.lessons, "lesson")
    say(console, f"net {net}, method {status.method}, takes {what}; {lessons} so far\n")


def print_classes(console: "Console", status: "ModelStatus", everything: bool) -> None:
    from strongreplay.cli.tables import MOST

    classes, title = [*status.classes], counted(len(status.classes), "class").replace("classs", "classes")
    if len(classes) > MOST and not everything:
        classes.sort(key=lambda one: 101.0 if one.accuracy is None else one.accuracy)
        title += ", the worst first"
    rows = []
    for one in classes:
        learnt, first = one.learnt_in or "-", status.known_since
        late = "" if one.measured_in in (None, status.version) else f" ({one.measured_in})"
        rows.append(
            [
                str(one.label),
                f"{learnt} or before" if learnt == first else learnt,
                f"{one.samples:,}",
                f"{one.replay:,}",
                f"{one.held_out:,}",
                size(one.bytes),
                per_cent(one.accuracy) + late,
                f"{one.judged_by:,}",
            ]
        )
    columns = ("class", "learnt in", "samples", "replay", "held out", "kept", "accuracy", "of")
    print_table(console, title, columns, rows, everything=everything, folded=("class",))
    if status.known_since:
        say(console, f"samples are counted since {status.known_since}; older versions are gone")


def print_memory(console: "Console", memory: "MemoryStatus") -> None:
    replay, held = memory.replay, memory.held_out
    say(
        console,
        f"memory: budget {memory.budget}, stored as {memory.stored_as}; "
        f"{counted(replay.samples, 'sample')} to replay, room for {memory.room:,} "
        f"({size(replay.bytes)} on disk); {held.samples:,} held out ({size(held.bytes)} on disk)\n",
    )


def print_versions(console: "Console", status: "ModelStatus", everything: bool) -> None:
    rows = [
        [
            one.version + (" *" if one.version == status.version else ""),
            moment(one.written),
            one.parent or "-",
            size(one.bytes),
            size(one.shared_bytes),
        ]
        for one in reversed(status.versions)
    ]
    title = (
        f"{counted(len(rows), 'version')} (* in use), the newest first; {size(status.bytes)} on disk in all"
    )
    print_table(
        console, title, ("version", "written (UTC)", "from", "size", "shared"), rows, everything=everything
    )


def print_waiting(console: "Console", state: Path, status: "ModelStatus") -> None:
    if candidate := status.candidate:
        data = f" of {candidate.data}" if candidate.data else ""
        say(
            console,
            f"a refused update{data} from {candidate.parent} waits, {moment(candidate.written)} UTC; "
            f"see: ser diff {state} {candidate.parent} candidate; use it with: ser learn {state} --accept",
        )
    if stopped := status.stopped:
        say(
            console,
            f"an update was stopped after step {stopped.step}, {moment(stopped.written)} UTC; the same "
            "ser learn goes on with it, --restart forgets it",
        )
