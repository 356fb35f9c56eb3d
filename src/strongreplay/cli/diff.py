"""ser diff: what is different between two versions of a kept model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.cli.report import Bar
from strongreplay.cli.tables import per_cent, print_json, print_table, say
from strongreplay.cli.update_output import listed

if TYPE_CHECKING:
    from rich.console import Console

    from strongreplay.models.inspect import VersionDiff

Name = Annotated[str, typer.Argument(metavar="VERSION", help="Such as v3, or candidate.")]


def diff_command(
    state: Annotated[
        Path, typer.Argument(metavar="STATE", help="Folder of the model, as made by: ser learn")
    ],
    first: Name,
    second: Name,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Long tables as a whole.")] = False,
) -> None:
    """Show what is different between two versions: classes, accuracy, memory, weights, settings.

    Both answer the same held-out samples: those of either version that the other does not replay.
    """
    from strongreplay.cli.show import open_console
    from strongreplay.models.inspect import diff_versions
    from strongreplay.models.store import Store

    with Bar() as bar:
        diff = diff_versions(Store(state), first, second, bar)
    if as_json:
        print_json(diff.to_dict())
        return
    console = open_console()
    say(console, f"{first} → {second}")
    say(console, f"new classes: {listed(diff.new_classes) or 'none'}")
    if diff.gone_classes:
        say(console, f"classes {second} does not know: {listed(diff.gone_classes)}")
    print_accuracy(console, diff, everything)
    print_memory(console, diff, everything)
    print_weights(console, diff, everything)
    for key, (before, after) in diff.settings.items():
        say(console, f"setting {key}: {before} → {after}")
    if not diff.settings:
        say(console, "settings: the same")


def print_accuracy(console: "Console", diff: "VersionDiff", everything: bool) -> None:
    if diff.accuracy_note:
        say(console, diff.accuracy_note)
        return
    rows = [
        [str(one.label), f"{one.count:,}", per_cent(one.before), per_cent(one.after), f"{-one.drop:+.1f}"]
        for one in diff.accuracy
    ]
    columns = ("class", "samples", diff.first, diff.second, "change")
    title = "\naccuracy in per cent on held-out samples"
    print_table(console, title, columns, rows, everything=everything, folded=("class",))


def print_memory(console: "Console", diff: "VersionDiff", everything: bool) -> None:
    rows = [
        [
            str(one.label),
            f"+{one.replay_came:,}",
            f"-{one.replay_went:,}",
            f"+{one.held_out_came:,}",
            f"-{one.held_out_went:,}",
        ]
        for one in diff.memory
    ]
    if not rows:
        say(console, "memory: the same samples")
        return
    columns = ("class", "replay: came", "went", "held out: came", "went ")
    print_table(console, "samples remembered", columns, rows, everything=everything, folded=("class",))


def print_weights(console: "Console", diff: "VersionDiff", everything: bool) -> None:
    rows = [[one.layer, "-" if one.change is None else f"{100 * one.change:.2f} %"] for one in diff.weights]
    grown = f"; {diff.new_rows} new in the head are not counted" if diff.new_rows > 0 else ""
    title = f"weights: norm of the change by the norm before, of rows both have{grown}"
    print_table(console, title, ("layer", "change"), rows, everything=everything)
