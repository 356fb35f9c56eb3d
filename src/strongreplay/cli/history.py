"""ser history and ser rollback: what was done to a kept model, and which of its versions is in use."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.cli.tables import counted, moment, per_cent, print_json, print_table
from strongreplay.cli.update_output import listed

if TYPE_CHECKING:
    from strongreplay.models.inspect import HistoryEntry

State = Annotated[Path, typer.Argument(metavar="STATE", help="Folder of the model, as made by: ser learn")]


def history_command(
    state: State,
    as_json: Annotated[bool, typer.Option("--json", help="Every act as JSON, the oldest first.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Every act and new class, not only the first ones.")
    ] = False,
) -> None:
    """Show every act: what was learnt, refused, accepted, saved, rolled back, forgotten, pruned."""
    from strongreplay.cli.show import open_console
    from strongreplay.models.inspect import read_history
    from strongreplay.models.store import Store

    entries = read_history(Store(state), lambda text: typer.echo(f"note: {text}", err=True))
    if as_json:
        print_json([entry.to_dict() for entry in entries])
        return
    rows = [
        [
            moment(entry.when),
            entry.act,
            entry.version or "-",
            describe_act(entry),
            ", ".join(map(str, new)) if everything else listed(new),
            change_of(entry.old_before, entry.old_after),
            per_cent(entry.fresh),
        ]
        for entry in reversed(entries)
        for new in [entry.new_classes or ()]
    ]
    columns = ("when (UTC)", "act", "version", "what", "new classes", "old\nclasses %", "new\ndata %")
    title = f"{counted(len(entries), 'act')}, the newest first"
    print_table(open_console(), title, columns, rows, everything=everything, folded=("what", "new classes"))


def change_of(before: float | None, after: float | None) -> str:
    return "-" if before is None else f"{per_cent(before)} → {per_cent(after)}"


def describe_act(entry: "HistoryEntry") -> str:
    """What an act was about, in a few words."""
    kind, act = entry.act, entry.details
    if kind == "rollback":
        return f"from {act.get('from') or '?'}"
    if kind == "prune":
        return f"without {', '.join(act.get('forgotten', []))}"
    if kind == "forget":
        changed = ", ".join(act.get("changed", [])) or "no version"
        return f"{counted(act.get('samples', 0), 'sample')} in {changed}"
    samples = f", {counted(act['samples'], 'sample')}" if "samples" in act else ""
    accepted = ", accepted" if act.get("accepted") else ""
    return f"{act.get('data', '')}{samples}{accepted}"


def rollback_command(
    state: State,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="The one to use, such as v3.")],
) -> None:
    """Put another version in use, at once; nothing is copied and nothing is lost."""
    from strongreplay.errors import DataError
    from strongreplay.models.store import WORK, Store

    store = Store(state)
    if not store.names():
        _ = store.current  # says so where no model is
    with store.locked():
        try:
            before = store.peek()
        except DataError:  # a damaged `current` is what a rollback mends
            before = None
        if before == version:
            typer.echo(f"{version} is in use already")
            return
        store.rollback(version, {"act": "rollback", "from": before})
    typer.echo(f"{version} is in use now")
    if before:
        typer.echo(f"undo with: ser rollback {state} {before}")
    if (store.folder / WORK).exists():
        typer.echo("note: an update of another version was stopped; ser learn --restart forgets it", err=True)
