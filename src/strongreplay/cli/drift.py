"""ser drift: compare unlabelled data with what a kept model knows."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import typer

from strongreplay.cli.commands import KEEP, Command
from strongreplay.cli.options import (
    AsJson,
    Device,
    ShowAll,
    StateFolder,
    Threads,
    VersionName,
    check_ending,
    choose_device,
)
from strongreplay.cli.predict import find_files, read_batches
from strongreplay.cli.tables import Table, print_table
from strongreplay.cli.text import count_of, print_json, print_line, print_problems
from strongreplay.errors import DataError
from strongreplay.progress import Bar

if TYPE_CHECKING:
    from torch import Tensor

    from strongreplay.models.drift import Arrivals, DriftReport
    from strongreplay.models.model import Model

OVER = 4  # exit code
BATCH_SIZE = 256
SURE = 0.01  # p-values below it are pointed out


def drift_command(
    state: StateFolder,
    data: Annotated[
        list[str], typer.Option("--data", help="Images, folders of images or arrays, without labels.")
    ],
    rate: Annotated[float, typer.Option(help="False alarms among samples like the held-out ones.")] = 0.05,
    limit: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of unlike samples that is still fine.")
    ] = 0.15,
    score: Annotated[
        Literal["auto", "energy", "features"],
        typer.Option(
            help="energy of the logits, or distance of features to classes (slda on a backbone) or held-out "
            "samples; auto: features with slda on a backbone, else energy."
        ),
    ] = "auto",
    examples: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture of the groups, such as groups.png.")
    ] = None,
    version: VersionName = None,
    as_json: AsJson = False,
    everything: ShowAll = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Look for signs of trouble in data without labels; the exit code is 4 if there are too many.

    Samples are unlike if they score above a threshold that is chosen on the held-out samples
    for the rate of false alarms. Groups of unlike samples may be a new class. Shares of predicted
    classes are compared with those on held-out samples, which has as many of each class as there
    is room for: shares that differ are worth a look, and do not change the exit code.

    Example: ser drift shop --data inbox/
    """
    from strongreplay.models.drift import Collector, load_reference, report_drift
    from strongreplay.models.store import Store

    if examples is not None:
        check_ending("--examples", examples, ".png")
    _, model, reference = load_reference(Store(state), version, choose_device(device, threads), rate, score)
    collector = Collector(model, reference)
    collect(collector, data)
    arrivals = collector.finish()
    report = report_drift(reference, arrivals, limit)
    if examples is not None:
        draw_groups(examples, report, arrivals)
    if as_json:
        print_json(report.to_dict())
    else:
        print_report(report, everything)
    if report.is_over:
        raise typer.Exit(OVER)


class Scores(Protocol):
    """What takes samples batch by batch."""

    model: "Model"

    def add(self, names: Sequence[str], images: "Tensor") -> None: ...


def collect(collector: Scores, data: list[str]) -> None:
    """Score every sample; those that cannot be read are reported and left out."""
    files, faults = find_files(data)
    reasons = [fault.reason for fault in faults]
    reasons += [f"--data {path}: no such file or folder" for path in data if not Path(path).exists()]
    if reasons:
        raise DataError("\n".join(reasons))
    done, count = 0.0, 0
    with Bar() as bar:
        for batch in read_batches(files, collector.model.shape, BATCH_SIZE):
            print_problems([fault.reason for fault in batch.faults])
            if batch.names:
                collector.add(batch.names, batch.inputs)
                count += len(batch.names)
            done += batch.files
            bar("scoring", done, len(files))
    if not count:
        raise DataError(f"--data {' '.join(data)}: no sample could be read; give a folder of images")


def print_report(report: "DriftReport", everything: bool) -> None:
    print_line(
        f"{report.unlike} of {count_of(report.samples, 'sample')} ({report.share:.1%}) are unlike the "
        f"{report.held_out} held-out samples of {report.version}; {report.rate:.1%} would be by chance"
    )
    for number, cluster in enumerate(report.clusters, 1):
        print_line(
            f"group {number}: {cluster.samples} unlike samples look alike, perhaps a new class: "
            f"{', '.join(Path(name).name for name in cluster.examples[:4])}"
        )
    rows = [
        (str(one.label), f"{one.before:.1%}", f"{one.now:.1%}", f"{one.p:.2g}{' *' if one.p < SURE else ''}")
        for one in report.classes
    ]
    together = "" if report.shares_p is None else f"; all together p = {report.shares_p:.2g}"
    title = f"Predicted classes, * p < {SURE:g} after Holm's correction{together}"
    print_table(Table(("class", "held-out", "new", "p"), rows, title, wraps=["class"]), everything=everything)
    if report.is_over:
        print_line(
            f"over the limit of {report.limit:.0%}: look at the samples, and label some: ser review", fg="red"
        )
    else:
        print_line(f"within the limit of {report.limit:.0%}")


def draw_groups(path: Path, report: "DriftReport", arrivals: "Arrivals") -> None:
    from strongreplay.report.contact_sheet import draw_sheet

    rows = [(row, number) for number, one in enumerate(report.clusters, 1) for row in one.rows]
    if not rows or arrivals.images.dim() != 4:
        print_line("no group of unlike samples: no picture is written", err=True)
        return
    images = arrivals.images[[row for row, _ in rows]].numpy()
    with Bar() as bar:
        draw_sheet(images, [f"group {number}" for _, number in rows], [False] * len(rows), path, bar)
    print_line(f"picture: {path}", err=True)


COMMAND = Command("drift", drift_command, KEEP, 31)
