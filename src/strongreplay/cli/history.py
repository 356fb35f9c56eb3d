"""ser history and ser rollback: what was done to a kept model, and which of its versions is in use."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strongreplay.cli.tables import counted, moment, per_cent, print_json, print_table
from strongreplay.cli.update_output import listed

if TYPE_CHECKING:
    from strongreplay.models.store import Store

State = Annotated[Path, typer.Argument(metavar="STATE", help="Folder of the model, as made by: ser learn")]
MADE = ("learn", "accept", "save")  # the acts that make the version they name


def history_command(
    state: State,
    as_json: Annotated[bool, typer.Option("--json", help="Every act as JSON, the oldest first.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Every act and new class, not only the first ones.")
    ] = False,
) -> None:
    """Show every act: what was learnt, refused, accepted, saved, rolled back, forgotten, pruned."""
    from strongreplay.cli.show import open_console
    from strongreplay.models.store import Store

    store = Store(state)
    _ = store.current  # says so where no model is
    told = acts(store)
    if as_json:
        print_json(told)
        return
    rows = [
        [
            moment(act["when"]),
            act["act"],
            act["version"] or "-",
            describe(act),
            ", ".join(map(str, new)) if everything else listed(new),
            change_of(act["old_before"], act["old_after"]),
            per_cent(act["fresh"]),
        ]
        for act in reversed(told)
        for new in [act["new_classes"] or []]
    ]
    columns = ("when (UTC)", "act", "version", "what", "new classes", "old\nclasses %", "new\ndata %")
    title = f"{counted(len(told), 'act')}, the newest first"
    print_table(open_console(), title, columns, rows, everything=everything, folded=("what", "new classes"))


def acts(store: "Store") -> list[dict[str, Any]]:
    """The oldest first; what a version that is kept still tells of itself stands beside the act."""
    from strongreplay.models.store import CANDIDATE

    lines = store.history(lambda text: typer.echo(f"note: {text}", err=True))
    abouts = {version.name: version.about for version in store.versions()}
    refused = [number for number, line in enumerate(lines) if line.get("act") == "refuse"]
    waiting = store.read(CANDIDATE, parts=())[0].about if CANDIDATE in store.names() else None
    told = []
    for number, line in enumerate(lines):
        about = abouts.get(line["version"]) if line.get("act") in MADE else None
        if refused and number == refused[-1]:
            about = waiting
        told.append(line | summary(about))
    return told


def summary(about: Mapping[str, Any] | None) -> dict[str, Any]:
    """New classes, and accuracies over all samples judged by; none where nothing is known."""
    if about is None:
        return {"new_classes": None, "old_before": None, "old_after": None, "fresh": None}
    old = [change for change in about["changes"] if change["before"] is not None]
    held = [change for change in old if change["where"] == "held-out"] or old
    count = sum(change["count"] for change in held)
    right, judged = (sum(row[place] for row in about["fresh"]) for place in (1, 2))
    return {
        "new_classes": about["new_labels"],
        "old_before": sum(change["before"] * change["count"] for change in held) / count if count else None,
        "old_after": sum(change["after"] * change["count"] for change in held) / count if count else None,
        "fresh": 100 * right / judged if judged else None,
    }


def change_of(before: float | None, after: float | None) -> str:
    return "-" if before is None else f"{per_cent(before)} → {per_cent(after)}"


def describe(act: Mapping[str, Any]) -> str:
    """What an act was about, in a few words."""
    kind = act["act"]
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
