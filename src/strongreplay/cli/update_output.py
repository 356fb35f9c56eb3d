"""What an update did, for people and for machines; names of classes are anybody's text and shown as such."""

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from strongreplay.errors import printable as printable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from strongreplay.models.gate import Change, Verdict
    from strongreplay.models.store import Store, Version

SHOWN = 20  # rows of a table, unless all are asked for
NAMED = 5  # labels in a sentence
FEW = 20  # samples: judged by fewer, a few wrong answers are many points


def present(
    store: "Store",
    version: "Version | None",
    notes: Sequence[str] | None,
    limit: float,
    show_all: bool,
    as_json: bool,
) -> None:
    """A new version, or the candidate if there is none; without notes, nothing was learnt."""
    from strongreplay.models.learn import verdict_of
    from strongreplay.models.store import CANDIDATE

    told = version or store.read(CANDIDATE, parts=())[0]
    verdict = verdict_of(told.about, limit)
    if as_json:
        result = summary(store, told.about, verdict)
        changed = notes is not None and version is not None
        result |= {"changed": changed, "refused": version is None, "notes": list(notes or ())}
        typer.echo(json.dumps(result))
        return
    if notes is None:
        assert version is not None
        typer.echo(
            f"{version.name} is in use and learnt this last; nothing was done (--again learns it anew)"
        )
        return
    show_gate(told.about, verdict, show_all)
    for note in notes:
        typer.echo(f"note: {printable(note)}")
    if version is None:
        typer.echo("\n".join(refusal(store, told.about, verdict)))
    else:
        typer.echo(f"{version.name} is in use: {learnt(version.about)}")


def summary(store: "Store", about: dict[str, Any], verdict: "Verdict") -> dict[str, Any]:
    """For machines."""
    from dataclasses import asdict

    fallen = [change.label for change in verdict.fallen]
    return {
        "state": str(store.folder),
        "version": store.current,
        "candidate": str(store.candidate) if store.candidate.exists() else None,
        "passed": verdict.passed,
        "max_drop": verdict.max_drop if math.isfinite(verdict.max_drop) else None,
        "fallen": list(dict.fromkeys(fallen)),
        "classes": about["labels"],
        "new_classes": about["new_labels"],
        "learnt": about["chunk"]["learnt"],
        "held_out": about["chunk"]["held_out"],
        "changes": [asdict(change) for change in verdict.changes],
        "fresh": [{"label": label, "right": right, "count": count} for label, right, count in about["fresh"]],
        "seconds": about["seconds"],
    }


def show_gate(about: dict[str, Any], verdict: "Verdict", show_all: bool) -> None:
    """Every class that could be judged, what fell most first."""
    from strongreplay.cli.show import open_console

    rows = gate_rows(about, verdict)
    if not rows:
        typer.echo("nothing was held out and no guard given: there was nothing to judge by")
        return
    console = open_console()
    table = make_table("class", "judged on", "samples", "before", "after", "change")
    fallen = set(verdict.fallen)
    for change in rows if show_all else rows[:SHOWN]:
        before = "-" if change.before is None else f"{change.before:.1f}"
        moved = "new" if change.before is None else f"{change.after - change.before:+.1f}"
        style = "bold red" if change in fallen else None
        cells = (change.where, str(change.count), before, f"{change.after:.1f}", moved)
        table.add_row(name_cell(change.label), *cells, style=style)
    console.print(table)
    tell_more(len(rows), show_all)
    right, count = (sum(entry[place] for entry in about["fresh"]) for place in (1, 2))
    if count:
        typer.echo(f"held out of this data: {right} of {count} right ({100 * right / count:.1f} %)")


def gate_rows(about: dict[str, Any], verdict: "Verdict") -> "list[Change]":
    from strongreplay.models.gate import Change

    new = {*about["new_labels"]}
    fresh = [
        Change(label, "held-out", count, None, 100 * right / count)
        for label, right, count in about["fresh"]
        if label in new
    ]
    old = [change for change in verdict.changes if change.before is not None]
    unknown = [change for change in verdict.changes if change.before is None]
    return [*sorted(old, key=lambda change: -change.drop), *unknown, *fresh]


def refusal(store: "Store", about: dict[str, Any], verdict: "Verdict") -> list[str]:
    """What fell, what is in use, and the ways on."""
    fallen = verdict.fallen
    falls = [
        f"{printable(str(change.label))} {change.before:.1f} -> {change.after:.1f} % "
        f"({change.count} {change.where} sample{plural(change.count)})"
        for change in fallen[:NAMED]
    ]
    if len(fallen) > NAMED:
        falls.append(f"and {len(fallen) - NAMED} more")
    folder, few = store.folder, max(change.count for change in fallen) < FEW
    return [
        f"refused: more than {verdict.max_drop:g} points were lost by {', '.join(falls)}",
        f"{folder} still is {store.current}; the refused update is kept in {store.candidate}",
        "Ways on:",
        f"  ser evaluate {folder} --data LABELLED --version candidate   look at it more closely",
        f"  ser learn {folder} --accept                                 use it as it is",
        "  the same command with a larger --memory, with more --epochs or a smaller --lr",
        *(["  --guard LABELLED, or a larger --memory: few samples were there to judge by"] if few else []),
    ]


def learnt(about: dict[str, Any]) -> str:
    labels, new, chunk = about["labels"], about["new_labels"], about["chunk"]
    named = f" ({listed(new)})" if new else ""
    return (
        f"{len(labels)} class{'' if len(labels) == 1 else 'es'}, {len(new)} new{named}, "
        f"{chunk['learnt']} sample{plural(chunk['learnt'])} learnt, {chunk['held_out']} held out, "
        f"{about['seconds']:.1f} s"
    )


def plural(count: int) -> str:
    return "" if count == 1 else "s"


def listed(labels: Sequence[object]) -> str:
    more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
    return ", ".join(printable(str(label)) for label in labels[:NAMED]) + more


def make_table(*heads: str) -> "Table":
    """The first column is a name, which may be long; the last ones are numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column(heads[0], overflow="fold")
    for head in heads[1:]:
        table.add_column(head, justify="left" if head == "judged on" else "right", no_wrap=True)
    return table


def name_cell(label: object) -> "Text":
    """A name is text and not markup."""
    from rich.text import Text

    return Text(printable(str(label)))


def tell_more(count: int, show_all: bool) -> None:
    if count > SHOWN and not show_all:
        typer.echo(f"... and {count - SHOWN} more, which --all shows")
