"""ser evaluate: test a kept model on labelled data, and compare it with another version."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.cli.commands import KEEP, Command
from strongreplay.cli.options import (
    AllowOutside,
    AsJson,
    Device,
    ShowAll,
    SkipBad,
    StateFolder,
    Threads,
    VersionName,
    check_ending,
    choose_device,
)
from strongreplay.cli.tables import NUM_ROWS, Table, print_table
from strongreplay.cli.text import (
    count_of,
    format_per_cent,
    join_names,
    print_json,
    print_line,
    print_note,
)
from strongreplay.errors import DataError
from strongreplay.progress import Bar

if TYPE_CHECKING:
    from strongreplay.models.inspect import Evaluation


def evaluate_command(
    state: StateFolder,
    data: Annotated[
        Path,
        typer.Option(
            help="Labelled data: a folder of class folders (if it has test/ or val/, that part), a CSV "
            "manifest or an .npz file."
        ),
    ],
    version: VersionName = None,
    against: Annotated[
        str | None,
        typer.Option(help="The version to compare with, or none.", show_default="the one it was learnt from"),
    ] = None,
    confusion: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the confusion matrix.")
    ] = None,
    skip_bad: SkipBad = False,
    allow_outside: AllowOutside = False,
    everything: ShowAll = False,
    as_json: AsJson = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Show accuracy by class, the most frequent errors, and the change since another version.

    Example: ser evaluate kept --data labelled/ --against v1
    """
    from strongreplay.data.read_options import ReadOptions
    from strongreplay.models.inspect import evaluate_versions
    from strongreplay.models.store import Store

    if confusion:
        check_ending("--confusion", confusion, ".png")
    place = choose_device(device, threads)
    with Bar() as bar:
        options = ReadOptions(allow_outside, skip_bad, bar.say)
        result = evaluate_versions(Store(state), data, version, against, place, bar, options)
    if result.note:
        print_note(result.note)
    if confusion:
        draw_confusion(result, confusion)
    if as_json:
        print_json({"state": str(state), **result.to_dict()}, indent=None)
        return
    print_classes(result, everything)
    print_mistakes(result, None if everything else NUM_ROWS // 2)
    print_summary(result)
    if confusion:
        print_line(f"picture: {confusion}")


def print_classes(result: "Evaluation", everything: bool) -> None:
    """A row for each class, the worst first, with the accuracy of the other version."""
    rows = []
    for label in sorted(result.counts, key=result.after):
        before, after = result.before(label), result.after(label)
        rows.append(
            [
                str(label),
                str(result.counts[label]),
                format_per_cent(before),
                f"{after:.1f}",
                "" if before is None else f"{after - before:+.1f}",
            ]
        )
    columns = [
        "class",
        "samples",
        result.other.version if result.other else "",
        result.answers.version,
        "change",
    ]
    if result.other is None:
        columns, rows = drop_columns(columns), [drop_columns(row) for row in rows]
    print_table(Table(columns, rows, wraps=["class"]), everything=everything)


def drop_columns(row: list[str]) -> list[str]:
    """The row without the columns of the other version."""
    return [*row[:2], row[3]]


def print_summary(result: "Evaluation") -> None:
    version, counts = result.answers.version, result.counts
    if unknown := result.unknown:
        count = sum(counts[label] for label in unknown)
        print_line(
            f"note: {count_of(len(unknown), 'class', 'classes')} of {count_of(count, 'sample')} not known to "
            f"{version}, counted as wrong: {join_names(unknown)}"
        )
    total, right = sum(counts.values()), sum(right for right, _ in result.values())
    print_line(f"{version}: {right} of {total} right, {result.accuracy:.2f} %")
    if result.other and (accuracies := result.old_accuracies()):
        print_line(
            f"on the {count_of(len(result.old), 'class', 'classes')} that {result.other.version} knew: "
            f"{accuracies[0]:.2f} % before, {accuracies[1]:.2f} % now"
        )


def print_mistakes(result: "Evaluation", limit: int | None) -> None:
    mistakes = result.mistakes()
    if not mistakes:
        return
    print_line("most frequent mistakes:")
    for label, answer, count in mistakes[:limit]:
        share = 100 * count / result.counts[label]
        names = f"{label} taken for {answer}"
        print_line(f"  {names}: {count} ({share:.0f} % of its samples)")
    if limit and len(mistakes) > limit:
        print_line(f"  {len(mistakes) - limit:,} more; --all shows them all")


def draw_confusion(result: "Evaluation", path: Path) -> None:
    from strongreplay.report.confusion import confusion_figure
    from strongreplay.report.svg import write

    if not path.parent.is_dir():
        raise DataError(f"{path}: cannot be written (no folder {path.parent}); choose another place")
    names = list(dict.fromkeys([*result.answers.known, *result.counts]))
    title = f"{result.answers.version}: answers to {sum(result.counts.values())} samples"
    figure = confusion_figure(names, result.answers.pairs, title)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about letters that the font lacks
            write(figure, path)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror or error}); choose another place"
        ) from None


COMMAND = Command("evaluate", evaluate_command, KEEP, 30)
