"""ser evaluate: a model that is kept in a folder on labelled data, and what has changed since a version."""

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.cli.predict import Device, Named, State, Threads, choose_device
from strongreplay.cli.update_output import SHOWN, listed, make_table, name_cell, plural, printable, tell_more
from strongreplay.errors import ConfigError, DataError

if TYPE_CHECKING:
    from strongreplay.models.inspect import Evaluation


def evaluate_command(
    state: State,
    data: Annotated[
        Path, typer.Option(help="Labelled data: a folder of class folders, a CSV manifest or an .npz file.")
    ],
    version: Named = None,
    against: Annotated[
        str | None,
        typer.Option(help="The version to compare with, or none.", show_default="the one it was learnt from"),
    ] = None,
    confusion: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw which class was taken for which.")
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show every class and mistake.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Accuracy by class, the most frequent mistakes, and what has changed since another version."""
    from strongreplay.cli.report import Bar as ReportBar
    from strongreplay.models.inspect import evaluate_versions
    from strongreplay.models.store import Store

    if confusion and confusion.suffix.lower() != ".png":
        raise ConfigError(f"--confusion must be a .png file, got {confusion}; give it that ending")
    place = choose_device(device, threads)
    with ReportBar() as bar:
        result = evaluate_versions(Store(state), data, version, against, place, bar)
    if result.note:
        typer.echo(f"note: {result.note}", err=True)
    if confusion:
        draw(result, confusion)
    if as_json:
        typer.echo(json.dumps({"state": str(state), **result.to_dict()}))
    else:
        show(result, show_all)
        if confusion:
            typer.echo(f"picture: {confusion}")


def show(result: "Evaluation", show_all: bool) -> None:
    from strongreplay.cli.show import open_console

    console, counts, limit = open_console(), result.counts, None if show_all else SHOWN
    beside = [result.other.version, "change"] if result.other else []
    table = make_table("class", "samples", *beside[:1], result.answers.version, *beside[1:])
    for label in sorted(counts, key=result.after)[:limit]:
        before, after = result.before(label), result.after(label)
        cells = ["-" if before is None else f"{before:.1f}"] if beside else []
        cells.append(f"{after:.1f}")
        if beside:
            cells.append("" if before is None else f"{after - before:+.1f}")
        table.add_row(name_cell(label), str(counts[label]), *cells)
    console.print(table)
    tell_more(len(counts), show_all)
    show_mistakes(result, limit)
    if unknown := result.unknown:
        count = sum(counts[label] for label in unknown)
        typer.echo(
            f"note: {len(unknown)} class{'' if len(unknown) == 1 else 'es'} of {count} sample{plural(count)} "
            f"not known to {result.answers.version}, counted as wrong: {listed(unknown)}"
        )
    total, right = sum(counts.values()), sum(right for right, _ in result.values())
    typer.echo(f"{result.answers.version}: {right} of {total} right, {100 * right / total:.2f} %")
    if result.other and (accuracies := result.old_accuracies()):
        old = len(result.old)
        typer.echo(
            f"on the {old} class{'' if old == 1 else 'es'} that {result.other.version} knew: "
            f"{accuracies[0]:.2f} % before, {accuracies[1]:.2f} % now"
        )


def show_mistakes(result: "Evaluation", limit: int | None) -> None:
    mistakes = result.mistakes()
    if not mistakes:
        return
    typer.echo("most frequent mistakes:")
    for label, answer, count in mistakes[: limit and limit // 2]:
        share = 100 * count / result.counts[label]
        names = f"{printable(str(label))} taken for {printable(str(answer))}"
        typer.echo(f"  {names}: {count} ({share:.0f} % of its samples)")
    if limit and len(mistakes) > limit // 2:
        typer.echo(f"  ... and {len(mistakes) - limit // 2} more, which --all shows")


def draw(result: "Evaluation", path: Path) -> None:
    from strongreplay.report.confusion import confusion_figure
    from strongreplay.report.svg import write

    names = list(dict.fromkeys([*result.answers.known, *result.counts]))
    title = f"{result.answers.version}: answers to {sum(result.counts.values())} samples"
    figure = confusion_figure(names, result.answers.pairs, title)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of letters that the font does not have
            write(figure, path)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror or error}); choose another place"
        ) from None
