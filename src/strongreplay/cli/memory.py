"""ser memory: list, show, export or erase the samples that a kept model stores."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strongreplay.cli.commands import KEEP, Command
from strongreplay.cli.options import AsJson, ShowAll, StateFolder, VersionName, check_ending
from strongreplay.cli.tables import NUM_ROWS, Table, print_table
from strongreplay.cli.text import count_of, format_bytes, print_json, print_line
from strongreplay.errors import ConfigError, unknown
from strongreplay.progress import Bar

if TYPE_CHECKING:
    from torch import Tensor

    from strongreplay.models.erasure import ErasedSamples
    from strongreplay.models.memory_view import Remembered

app = typer.Typer(help="List, show, export or erase the samples a model stores.", no_args_is_help=True)
WEIGHTS_STAY = (
    "The weights, which were trained on them, do not change; to remove that influence, train a new model."
)
Label = Annotated[str | None, typer.Option(help="Only samples of this class.")]


@dataclass(frozen=True, slots=True)
class VersionSamples:
    """The samples of a version, and for each update the version it made, if known."""

    version: str
    samples: "list[Remembered]"
    came_with: dict[int, str]  # by the number of the update
    parts: dict[str, Any]
    rows: list[int]  # positions of the samples among all of the version

    def images(self) -> "Tensor":
        from strongreplay.models.memory_view import all_images

        return all_images(self.parts)[self.rows]


@app.callback()
def choose(
    context: typer.Context,
    state: StateFolder,
) -> None:
    """List, show, export or erase the samples a model stores."""
    context.obj = state


def read_samples(state: Path, version: str | None, label: str | None = None) -> VersionSamples:
    from strongreplay.models.inspect import list_ancestors
    from strongreplay.models.memory_view import read_parts, samples_of
    from strongreplay.models.store import Store

    store = Store(state)
    found, parts = read_parts(store, version)
    base = found.name if found.number else found.parent
    line = list_ancestors(store.versions(), base) if base else []
    came_with = {one.about["number"]: one.name for one in line}
    came_with |= {found.about["number"]: found.name}
    samples = samples_of(parts)
    rows = [row for row, one in enumerate(samples) if label is None or str(one.label) == label]
    if label is not None and not rows:
        known = sorted({str(one.label) for one in samples})
        raise unknown("label of a remembered sample", label, known, f"See: ser status {state}")
    return VersionSamples(found.name, [samples[row] for row in rows], came_with, parts, rows)


@app.command("list")
def list_command(
    context: typer.Context,
    label: Label = None,
    version: VersionName = None,
    as_json: AsJson = False,
    everything: ShowAll = False,
) -> None:
    """List the samples: label, source, version that added it, and use.

    Example: ser memory kept list
    """
    kept = read_samples(context.obj, version, label)
    if as_json:
        print_json([one.to_dict() | {"version": kept.came_with.get(one.update)} for one in kept.samples])
        return
    rows = [
        [
            str(one.id),
            str(one.label),
            kept.came_with.get(one.update, f"update {one.update}"),
            one.kind,
            format_bytes(one.bytes),
            one.source,
        ]
        for one in kept.samples
    ]
    title = f"{count_of(len(rows), 'sample')} remembered by {kept.version}"
    columns = ("id", "class", "came with", "kept for", "size", "source")
    print_table(Table(columns, rows, title, wraps=["class", "source"]), everything=everything)


@app.command("show")
def show_command(
    context: typer.Context,
    label: Label = None,
    version: VersionName = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the picture.")] = Path("memory.png"),
) -> None:
    """Draw the stored images, one row per class; held-out images have a frame.

    Example: ser memory kept show --out memory.png
    """
    from strongreplay.report.contact_sheet import draw_sheet

    check_ending("--out", out, ".png")
    kept = read_samples(context.obj, version, label)
    if not kept.samples:
        print_line("nothing is remembered: there is nothing to see")
        return
    images = kept.images()
    if images.dim() != 4:
        print_line("this model keeps features, not images: there is nothing to see; try list or export")
        return
    with Bar() as bar:
        shown = draw_sheet(
            images.numpy(),
            [str(one.label) for one in kept.samples],
            [one.kind == "held-out" for one in kept.samples],
            out,
            bar,
        )
    more = "" if shown == len(kept.samples) else f" of {len(kept.samples):,}; --label shows more of a class"
    print_line(f"picture: {out} ({count_of(shown, 'image')}{more})")


@app.command("export")
def export_command(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder.")],
    version: VersionName = None,
) -> None:
    """Write the samples: PNG files in class folders, or features.npz, and manifest.csv with a line for each.

    Characters of a class name that a folder name cannot have are written as %XX, as in URLs.

    Example: ser memory kept export samples/
    """
    from strongreplay.models.write_samples import write_samples

    kept = read_samples(context.obj, version)
    with Bar() as bar:
        write_samples(out, kept.samples, kept.images(), bar)
    print_line(f"{out}: {count_of(len(kept.samples), 'sample')} of {kept.version}, see manifest.csv")


@app.command("forget")
def forget_command(
    context: typer.Context,
    label: Annotated[list[str] | None, typer.Option(help="All samples of a class; may be repeated.")] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(help="A source as list shows it, or its folder or file; may be repeated."),
    ] = None,
    number: Annotated[
        list[int] | None, typer.Option("--id", help="A number as list shows it; may be repeated.")
    ] = None,
    photos: Annotated[
        list[Path] | None,
        typer.Option(
            "--file", help="A file or folder with the pixels; also finds photos not kept. May be repeated."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Erase samples from the memory of every version; this cannot be undone.

    Afterwards no file of the model has their pixels, encoded files or sources.
    Cached features are removed in any case, and with --file the print by which a
    photo is known that is not kept. Other samples do not change, and a stopped
    update is removed. Samples with equal pixels are erased too, whatever their
    path or label. Weights that were trained on the samples do not change: to
    remove that influence, train a new model. Copies of the folder, and data
    that a disk keeps of removed files, are not erased.

    Example: ser memory kept forget --id 12
    """
    from strongreplay.models.erasure import forget
    from strongreplay.models.store import Store

    def confirm(found: "ErasedSamples") -> None:
        bar.remove()
        print_found(found)
        if yes:
            return
        if not sys.stdin.isatty():
            raise ConfigError("nothing was forgotten: this cannot be undone; confirm with --yes")
        if not typer.confirm("Forget them for good?", err=True):
            raise typer.Abort

    bar = Bar()
    with bar, report_interrupt():
        erased = forget(
            Store(context.obj),
            labels=label or (),
            sources=source or (),
            ids=number or (),
            photos=photos or (),
            confirm=confirm,
            progress=bar,
        )
    what = count_of(erased.num_samples, "sample") if erased.num_samples else "prints of photos"
    print_line(f"forgotten: {what}, in {', '.join(erased.versions)}")
    if erased.stopped:
        print_line("a stopped update, which held samples too, was removed; learn its data again")
    print_line(WEIGHTS_STAY)


@contextmanager
def report_interrupt() -> Iterator[None]:
    """On Ctrl-C, print that some versions may still have the samples."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped; repeat the command to be sure that every version forgets", err=True)
        raise


def print_found(found: "ErasedSamples") -> None:
    """Print the samples that will be erased, to stderr."""
    samples: Sequence[Remembered] = list(found.samples.values())
    print_line(
        f"to be forgotten: {count_of(len(samples), 'sample')}, in {', '.join(found.versions)}", err=True
    )
    if found.num_prints:
        print_line(f"  {count_of(found.num_prints, 'print')} of learnt photos, 8 bytes each", err=True)
    for one in samples[:NUM_ROWS]:
        print_line(f"  {one.id}  {one.label}  {one.source}", err=True)
    if len(samples) > NUM_ROWS:
        print_line(f"  and {len(samples) - NUM_ROWS:,} more", err=True)
    if found.num_copies:
        copies, have = count_of(found.num_copies, "sample"), "has" if found.num_copies == 1 else "have"
        print_line(f"  {copies} of these {have} the pixels of one you named", err=True)
    if found.stopped:
        print_line("an update that was stopped holds samples too; it will be removed as a whole", err=True)


COMMAND = Command("memory", app, KEEP, 80)
