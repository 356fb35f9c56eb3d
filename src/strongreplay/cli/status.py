"""ser status: classes, memory, versions and input shape of a kept model."""

from pathlib import Path
from typing import TYPE_CHECKING

from strongreplay.cli.commands import KEEP, Command
from strongreplay.cli.options import AsJson, ShowAll, StateFolder
from strongreplay.cli.tables import NUM_ROWS, Table, print_table
from strongreplay.cli.text import (
    count_of,
    format_bytes,
    format_per_cent,
    format_time,
    print_json,
    print_line,
    print_note,
    print_text,
)

if TYPE_CHECKING:
    from strongreplay.models.inspect import ModelStatus
    from strongreplay.models.inspect.status import MemoryStatus


def status_command(state: StateFolder, as_json: AsJson = False, everything: ShowAll = False) -> None:
    """Show a model's classes and when they were learnt, its memory and its versions.

    Example: ser status kept
    """
    from strongreplay.models.inspect import read_status
    from strongreplay.models.store import Store

    status = read_status(Store(state), tell=print_note)
    if as_json:
        print_json(status.to_dict())
        return
    print_model(status)
    print_table(make_classes_table(status, everything), everything=everything)
    if status.known_since:
        print_line(f"samples are counted since {status.known_since}; older versions are gone")
    print_memory(status.memory)
    print_table(make_versions_table(status), everything=everything)
    print_waiting(state, status)


def print_model(status: "ModelStatus") -> None:
    source = f", learnt from {status.parent}" if status.parent else ""
    data = f" with {status.data}" if status.data else ""
    print_text(f"{status.version} is in use, written {format_time(status.written)} UTC{source}{data}")
    shape = " x ".join(map(str, status.shape))
    what = f"images of {shape}" if len(status.shape) == 3 else f"{shape} features"
    shown = {key: value for key, value in status.net.items() if key != "tune"}
    net = " ".join(f"{value}" if key == "name" else f"{key} {value}" for key, value in shown.items())
    net += {"nothing": " (frozen)", "head": " (frozen, its head is trained)", "all": " (trained too)"}.get(
        status.net.get("tune", ""), ""
    )
    updates = count_of(status.num_updates, "update")
    print_text(f"net {net}, method {status.method}, takes {what}; {updates} so far\n")


def make_classes_table(status: "ModelStatus", everything: bool) -> Table:
    """A row for each class; if not all are shown, the worst come first."""
    classes, title = [*status.classes], count_of(len(status.classes), "class", "classes")
    if len(classes) > NUM_ROWS and not everything:
        classes.sort(key=lambda one: 101.0 if one.accuracy is None else one.accuracy)
        title += ", the worst first"
    rows = []
    for one in classes:
        older = " or before" if one.learnt_in and one.learnt_in == status.known_since else ""
        measured = "" if one.measured_in in (None, status.version) else f" ({one.measured_in})"
        rows.append(
            [
                str(one.label),
                f"{one.learnt_in or '-'}{older}",
                f"{one.samples:,}",
                f"{one.replay:,}",
                f"{one.held_out:,}",
                format_bytes(one.bytes),
                format_per_cent(one.accuracy) + measured,
                f"{one.judged_by:,}",
            ]
        )
    columns = ("class", "learnt in", "samples", "replay", "held out", "kept", "accuracy", "of")
    return Table(columns, rows, title, wraps=["class"])


def print_memory(memory: "MemoryStatus") -> None:
    replay, held, room = memory.replay, memory.held_out, f"room for {memory.room:,}"
    if memory.is_features:
        print_text("no image is kept: samples are features of the frozen backbone")
    if memory.keeps:
        print_text(
            f"memory: no sample to replay; the method keeps {memory.keeps}; "
            f"{count_of(held.samples, 'sample')} held out ({format_bytes(held.bytes)} on disk)\n"
        )
        return
    print_text(
        f"memory: budget {memory.budget}, stored as {memory.stored_as}; "
        f"{count_of(replay.samples, 'sample')} to replay, {room} ({format_bytes(replay.bytes)} on disk); "
        f"{held.samples:,} held out ({format_bytes(held.bytes)} on disk)\n"
    )


def make_versions_table(status: "ModelStatus") -> Table:
    rows = [
        [
            one.version + (" *" if one.version == status.version else ""),
            format_time(one.written),
            one.parent or "-",
            format_bytes(one.bytes),
            format_bytes(one.shared_bytes),
        ]
        for one in reversed(status.versions)
    ]
    count, size = count_of(len(rows), "version"), format_bytes(status.bytes)
    title = f"{count} (* in use), the newest first; {size} on disk in all"
    return Table(("version", "written (UTC)", "from", "size", "shared"), rows, title)


def print_waiting(state: Path, status: "ModelStatus") -> None:
    if candidate := status.candidate:
        data = f" of {candidate.data}" if candidate.data else ""
        print_text(
            f"a refused update{data} from {candidate.parent} waits, {format_time(candidate.written)} UTC; "
            f"see: ser diff {state} {candidate.parent} candidate; use it with: ser learn {state} --accept",
        )
    if stopped := status.stopped:
        print_text(
            f"an update was stopped after step {stopped.step}, {format_time(stopped.written)} UTC; the same "
            "ser learn command resumes it, --restart removes it",
        )


COMMAND = Command("status", status_command, KEEP, 40)
