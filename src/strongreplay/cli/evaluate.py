"""ser evaluate: a model that is kept in a folder on labelled data, and what has changed since a version."""

import json
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strongreplay.cli.predict import Device, Named, State, Threads, open_model
from strongreplay.cli.update_output import SHOWN, listed, make_table, name_cell, plural, printable, tell_more
from strongreplay.errors import ConfigError, DataError

if TYPE_CHECKING:
    from strongreplay.data.user_data import Chunk, Label
    from strongreplay.models.model import Model
    from strongreplay.models.store import Version


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
    from strongreplay.data.user_data import read_chunk

    if confusion and confusion.suffix.lower() != ".png":
        raise ConfigError(f"--confusion must be a .png file, got {confusion}; give it that ending")
    found, model = open_model(state, version, device, threads)
    other = open_other(state, found, against, device)
    with ReportBar() as bar:
        chunk = read_chunk(data, shape=model.shape, progress=bar)
        result = Result(
            found.name,
            judge(model, chunk, bar),
            other[0].name if other else None,
            judge(other[1], chunk, bar) if other else None,
        )
    if confusion:
        draw(result, confusion)
    if as_json:
        typer.echo(json.dumps({"state": str(state), **result.to_dict()}))
    else:
        show(result, show_all)
        if confusion:
            typer.echo(f"picture: {confusion}")


@dataclass(frozen=True, slots=True)
class Judged:
    """What a version answered."""

    known: "dict[Label, None]"  # by column
    pairs: "Counter[tuple[Label, Label]]"  # of label and answer

    def right(self, label: "Label") -> int:
        return self.pairs[label, label]


@dataclass(frozen=True)
class Result:
    """A version on labelled data, and another one on the same."""

    name: str
    judged: Judged
    other_name: str | None
    other: Judged | None

    @cached_property
    def counts(self) -> "Counter[Label]":
        found: Counter[Label] = Counter()
        for (label, _), count in self.judged.pairs.items():
            found[label] += count
        return found

    @property
    def unknown(self) -> "list[Label]":
        return [label for label in self.counts if label not in self.judged.known]

    def before(self, label: "Label") -> float | None:
        """Per cent; none if the other version did not know the class."""
        if self.other is None or label not in self.other.known:
            return None
        return 100 * self.other.right(label) / self.counts[label]

    def after(self, label: "Label") -> float:
        return 100 * self.judged.right(label) / self.counts[label]

    def accuracy(self, judged: Judged, labels: "Sequence[Label] | None" = None) -> float | None:
        chosen = list(self.counts) if labels is None else labels
        total = sum(self.counts[label] for label in chosen)
        return 100 * sum(map(judged.right, chosen)) / total if total else None

    @property
    def old(self) -> "list[Label]":
        """The classes that the other version knew, too."""
        return [label for label in self.counts if self.before(label) is not None]

    def mistakes(self) -> "list[tuple[Label, Label, int]]":
        """Label, answer and how often; the most frequent first."""
        wrong = [(label, answer, count) for (label, answer), count in self.judged.pairs.items()]
        return sorted((entry for entry in wrong if entry[0] != entry[1]), key=lambda entry: -entry[2])

    def to_dict(self) -> dict[str, Any]:
        counts = self.counts
        return {
            "version": self.name,
            "against": self.other_name,
            "samples": counts.total(),
            "accuracy": self.accuracy(self.judged),
            "accuracy_old": self.accuracy(self.judged, self.old) if self.other else None,
            "accuracy_old_before": self.accuracy(self.other, self.old) if self.other else None,
            "unknown": self.unknown,
            "classes": [
                {
                    "label": label,
                    "samples": count,
                    "right": self.judged.right(label),
                    "accuracy": self.after(label),
                    "before": self.before(label),
                }
                for label, count in counts.items()
            ],
            "confusion": [[label, answer, count] for (label, answer), count in self.judged.pairs.items()],
        }


def open_other(
    state: Path, version: "Version", against: str | None, device: str
) -> "tuple[Version, Model] | None":
    """The version to compare with; that it was learnt from, if it is still kept."""
    from strongreplay.models.store import Store

    name = version.parent if against is None else against
    if name is None or name == "none":
        return None
    if against is None and name not in Store(state).names():
        typer.echo(f"note: {name}, from which {version.name} was learnt, is not kept any more", err=True)
        return None
    return open_model(state, name, device, None)


def judge(model: "Model", chunk: "Chunk", bar: Any) -> Judged:
    """How often each label got each answer."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        bar("answering", done, len(chunk))

    answers = model.answers(chunk.inputs, advance)
    # A folder's names are texts, also where the model learnt numbers.
    twins = {str(label): label for label in model.labels}
    labels = (twins.get(str(label), label) for label in chunk.labels)
    return Judged(dict.fromkeys(model.labels), Counter(zip(labels, answers, strict=True)))


def show(result: Result, show_all: bool) -> None:
    from strongreplay.cli.show import open_console

    console, counts, limit = open_console(), result.counts, None if show_all else SHOWN
    beside = [result.other_name, "change"] if result.other_name else []
    table = make_table("class", "samples", *beside[:1], result.name, *beside[1:])
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
            f"not known to {result.name}, counted as wrong: {listed(unknown)}"
        )
    total, right = counts.total(), sum(map(result.judged.right, counts))
    typer.echo(f"{result.name}: {right} of {total} right, {100 * right / total:.2f} %")
    if result.other and (old := result.old):
        then, now = result.accuracy(result.other, old), result.accuracy(result.judged, old)
        typer.echo(
            f"on the {len(old)} class{'' if len(old) == 1 else 'es'} that {result.other_name} knew: "
            f"{then:.2f} % before, {now:.2f} % now"
        )


def show_mistakes(result: Result, limit: int | None) -> None:
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


def draw(result: Result, path: Path) -> None:
    from strongreplay.report.confusion import confusion_figure

    names = list(dict.fromkeys([*result.judged.known, *result.counts]))
    figure = confusion_figure(
        names, result.judged.pairs, f"{result.name}: answers to {result.counts.total()} samples"
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of letters that the font does not have
            figure.savefig(path, dpi=150)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror or error}); choose another place"
        ) from None
