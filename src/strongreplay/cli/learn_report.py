"""The output of ser learn: the gate's table, the version in use, and why an update was refused."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from strongreplay.cli.tables import Table, TableCell, print_table
from strongreplay.cli.text import NAMED, count_of, join_names, print_json, print_line

if TYPE_CHECKING:
    from strongreplay.models.gate import Change, Verdict
    from strongreplay.models.store import Store, Version

FEW = 20  # with fewer samples, one error is many points


def print_outcome(
    store: "Store",
    version: "Version | None",
    notes: Sequence[str] | None,
    limits: tuple[float, float],
    everything: bool,
    as_json: bool,
) -> None:
    """Print the new version, or the refused update if it is None; `notes` is None if nothing was learnt.

    `limits` are the points that a class may lose, and the level of the test.
    """
    from strongreplay.models.learn import guessed_labels, verdict_of
    from strongreplay.models.settings import CLOSED_FORM
    from strongreplay.models.store import CANDIDATE

    about = (version or store.read(CANDIDATE, parts=())[0]).about
    verdict = verdict_of(about, *limits)
    missed, unsure = guessed_labels(about)
    trains = about.get("method") not in CLOSED_FORM
    if as_json:
        changed = notes is not None and version is not None
        more = {"changed": changed, "refused": version is None, "notes": list(notes or ())}
        more |= {"not_learnt": missed, "too_few_to_tell": unsure}
        print_json(summarise(store, about, verdict) | more, indent=None)
        return
    if notes is None:
        assert version is not None
        print_line(
            f"{version.name} is in use and already learnt this; nothing was done (--again learns it again)"
        )
        return
    print_gate(about, verdict, everything)
    for note in [*notes, *describe_doubts(verdict)]:
        print_line(f"note: {note}")
    if version is None:
        print_refusal(store, verdict, trains)
    else:
        print_line(f"{version.name} is in use: {describe_update(about)}")
    if missed:
        remedy = "Look at their labels, give more of them, or more --epochs"
        if not trains:
            remedy = "Look at their labels, or give more of them"
        print_line(
            f"WARNING: not learnt: {join_names(missed)}; held-out samples are recognised no better than by a "
            f"guess. {remedy}"
        )
    if unsure:
        print_line(
            f"note: held-out samples are too few to tell whether these were learnt: {join_names(unsure)}; "
            "give more of them, or --guard LABELLED"
        )


def summarise(store: "Store", about: dict[str, Any], verdict: "Verdict") -> dict[str, Any]:
    """The outcome for JSON."""
    from dataclasses import asdict

    fallen = [change.label for change in verdict.fallen]
    return {
        "state": str(store.folder),
        "version": store.current,
        "candidate": str(store.candidate) if store.candidate.exists() else None,
        "passed": verdict.passed,
        "max_drop": verdict.max_drop if math.isfinite(verdict.max_drop) else None,
        "level": verdict.level,
        "fallen": list(dict.fromkeys(fallen)),
        "fallen_together": bool(verdict.together),
        "classes": about["labels"],
        "new_classes": about["new_labels"],
        "learnt": about["chunk"]["learnt"],
        "held_out": about["chunk"]["held_out"],
        "changes": [asdict(change) for change in verdict.changes],
        "fresh": [{"label": label, "right": right, "count": count} for label, right, count in about["fresh"]],
        "seconds": about["seconds"],
    }


def print_gate(about: dict[str, Any], verdict: "Verdict", everything: bool) -> None:
    """Print the accuracy of every class before and after, the largest loss first."""
    rows, fallen = [], set(verdict.fallen)
    for change in list_changes(about, verdict):
        before = "-" if change.before is None else f"{change.before:.1f}"
        moved = "new" if change.before is None else f"{change.after - change.before:+.1f}"
        cells = (str(change.label), change.where, str(change.count), before, f"{change.after:.1f}", moved)
        rows.append([TableCell(cell, is_bad=change in fallen) for cell in cells])
    if not rows:
        print_line("nothing was held out and no guard given: there was nothing to judge by")
        return
    columns = ("class", "judged on", "samples", "before", "after", "change")
    print_table(Table(columns, rows, wraps=["class"]), everything=everything)
    right, count = (sum(entry[place] for entry in about["fresh"]) for place in (1, 2))
    if count:
        print_line(f"held out of this data: {right} of {count} right ({100 * right / count:.1f} %)")


def list_changes(about: dict[str, Any], verdict: "Verdict") -> "list[Change]":
    """Old classes, the largest loss first, then the new ones."""
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


def print_refusal(store: "Store", verdict: "Verdict", trains: bool) -> None:
    """Print which classes lost too much, which version is in use, and what to do next.

    `trains`: the method has a learning rate and replays its memory.
    """
    fallen, folder = (*verdict.fallen, *verdict.together), store.folder
    losses = [
        f"{change.label} {change.before:.1f} -> {change.after:.1f} % "
        f"({count_of(change.count, f'{change.where} sample')})"
        for change in fallen[:NAMED]
    ]
    if len(fallen) > NAMED:
        losses.append(f"and {len(fallen) - NAMED} more")
    proof = (
        ""
        if verdict.level == 1
        else f"; chance explains that with a probability of at most {verdict.level:g}"
    )
    print_line(f"refused: more than {verdict.max_drop:g} points were lost by {', '.join(losses)}{proof}")
    print_line(f"{folder} still is {store.current}; the refused update is kept in {store.candidate}")
    print_line("What to do next:")
    print_line(f"  ser evaluate {folder} --data LABELLED --version candidate   look at it more closely")
    print_line(f"  ser learn {folder} --accept                                 use it as it is")
    if trains:
        print_line("  the same command with a larger --memory or a smaller --lr")
    print_line("  look at the labels of the new data; if they are right, give more photos of these classes")
    if max(change.count for change in fallen) < FEW:
        print_line("  --guard LABELLED, or a larger --memory: few samples were there to judge by")


def describe_doubts(verdict: "Verdict") -> list[str]:
    """A note about classes that lost more than the limit on too few samples."""
    doubts = [
        f"{change.label} {change.before:.1f} -> {change.after:.1f} % on {count_of(change.count, 'sample')}"
        for change in verdict.doubtful
    ]
    if not doubts:
        return []
    return [
        f"more than {verdict.max_drop:g} points were lost by {join_names(doubts)}, but that may be chance; "
        "--guard LABELLED would tell"
    ]


def describe_update(about: dict[str, Any]) -> str:
    labels, new, chunk = about["labels"], about["new_labels"], about["chunk"]
    named = f" ({join_names(new)})" if new else ""
    return (
        f"{count_of(len(labels), 'class', 'classes')}, {len(new)} new{named}, "
        f"{count_of(chunk['learnt'], 'sample')} learnt, "
        f"{chunk['held_out']} held out, {about['seconds']:.1f} s"
    )
