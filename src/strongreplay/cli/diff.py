"""ser diff: differences between two versions of a kept model."""

from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.cli.commands import KEEP, Command
from strongreplay.cli.options import AsJson, ShowAll, StateFolder
from strongreplay.cli.tables import Table, print_table
from strongreplay.cli.text import count_of, format_per_cent, join_names, print_json, print_line, print_text
from strongreplay.progress import Bar

if TYPE_CHECKING:
    from strongreplay.models.inspect import VersionDiff

Name = Annotated[str, typer.Argument(metavar="VERSION", help="Such as v3, or candidate.")]


def diff_command(
    state: StateFolder, first: Name, second: Name, as_json: AsJson = False, everything: ShowAll = False
) -> None:
    """Show differences between two versions: classes, accuracy, memory, weights, settings.

    Accuracy is measured on the same samples: those held out by one version and not replayed by the other.

    Example: ser diff kept v1 v2
    """
    from strongreplay.models.inspect import diff_versions
    from strongreplay.models.store import Store

    with Bar() as bar:
        diff = diff_versions(Store(state), first, second, bar)
    if as_json:
        print_json(diff.to_dict())
        return
    print_line(f"{first} → {second}")
    print_line(f"new classes: {join_names(diff.new_classes) or 'none'}")
    if diff.gone_classes:
        print_line(f"classes that {second} does not know: {join_names(diff.gone_classes)}")
    print_accuracy(diff, everything)
    print_memory(diff, everything)
    print_weights(diff, everything)
    for key, (before, after) in diff.settings.items():
        print_line(f"setting {key}: {before} → {after}")
    if not diff.settings:
        print_line("settings: the same")


def print_accuracy(diff: "VersionDiff", everything: bool) -> None:
    if diff.accuracy_note:
        print_text(diff.accuracy_note)
        return
    rows = [
        (
            str(one.label),
            f"{one.count:,}",
            format_per_cent(one.before),
            format_per_cent(one.after),
            f"{0 - one.drop:+.1f}",
        )
        for one in diff.accuracy
    ]
    columns = ("class", "samples", diff.first, diff.second, "change")
    title = "\naccuracy in per cent on held-out samples"
    print_table(Table(columns, rows, title, wraps=["class"]), everything=everything)


def print_memory(diff: "VersionDiff", everything: bool) -> None:
    if not diff.memory:
        print_line("memory: the same samples")
        return
    rows = [
        (
            str(one.label),
            f"+{one.replay_came:,}",
            f"-{one.replay_went:,}",
            f"+{one.held_out_came:,}",
            f"-{one.held_out_went:,}",
        )
        for one in diff.memory
    ]
    columns = ("class", "replay\nadded", "replay\nremoved", "held out\nadded", "held out\nremoved")
    print_table(Table(columns, rows, "samples in the memory", wraps=["class"]), everything=everything)


def print_weights(diff: "VersionDiff", everything: bool) -> None:
    rows = [(one.layer, "-" if one.change is None else f"{100 * one.change:.2f} %") for one in diff.weights]
    grown = f"; without {count_of(diff.new_rows, 'new row')} of the head" if diff.new_rows > 0 else ""
    title = f"weights: norm of the change divided by the norm before{grown}"
    print_table(Table(("layer", "change"), rows, title), everything=everything)


COMMAND = Command("diff", diff_command, KEEP, 60)
