"""ser compare: a table and a picture of the records of each stream."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.cli.commands import STUDY, Command
from strongreplay.cli.options import RecordPaths, SpreadOption, check_ending, takes_format
from strongreplay.cli.tables import Entry, Format, Table, TableCell, is_terminal, print_table
from strongreplay.cli.text import print_line, print_problems
from strongreplay.cli.verdict_tables import add_deviations, numbers_of, print_paired
from strongreplay.errors import ConfigError, DataError, unknown
from strongreplay.progress import Bar

if TYPE_CHECKING:
    from strongreplay.report.collect import Found
    from strongreplay.report.summary import Spread
    from strongreplay.report.tables import Group
    from strongreplay.storage.records import RunRecord

SCORES = ("average_accuracy", "forgetting")  # the columns unless others are asked for; names of METRICS


@takes_format
def compare_command(
    paths: RecordPaths,
    picture: Annotated[
        Path | None, typer.Option(help="File of the picture.", show_default="in the first folder")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="METHOD", help="Test this method against the others: paired, after Holm."),
    ] = None,
    metric: Annotated[
        str, typer.Option(metavar="NAME,...", help="Columns, such as average_incremental_accuracy.")
    ] = ",".join(SCORES),
    spread: SpreadOption = "interval",
    form: Format = "text",
) -> None:
    """Print a table of metrics, averaged over seeds, and draw accuracy after each task.

    Example: ser compare runs --against ser --metric average_accuracy,forgetting
    """
    from strongreplay.report.paired import compare_groups
    from strongreplay.report.tables import group_records

    metrics = parse_metrics(metric)
    if picture:
        check_ending("--picture", picture, ".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp")
    folder, records = paths[0] if paths[0].is_dir() else paths[0].parent, read_records(paths)
    if against is not None and metrics != list(SCORES):
        raise ConfigError(
            "--metric is for the table; --against tests average accuracy: leave one of them out"
        )
    if picture and (against is not None or form != "text"):
        other = form if against is None else "against"
        raise ConfigError(f"--{other} draws no picture, got --picture {picture}; leave one of them out")
    if against is not None:
        print_paired(compare_groups(group_records(records), against), against, form, spread)
    else:
        print_comparison(records, folder, picture, form, spread, metrics=metrics)


def parse_metrics(text: str) -> list[str]:
    from strongreplay.metrics import METRICS

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in METRICS:
            raise unknown("metric", name, METRICS, f"Known: {', '.join(METRICS)}.")
    if not names:
        raise ConfigError(f"--metric names no metric, got '{text}'; try --metric {','.join(SCORES)}")
    return names


def read_records(paths: list[Path]) -> "list[RunRecord]":
    return find_records(paths).records


def find_records(paths: list[Path]) -> "Found":
    """All records; files that are damaged or not records are reported and skipped. None is an error."""
    from strongreplay.report.collect import collect

    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder; give what ser run wrote with --out")
    with Bar() as bar:
        found = collect(paths, bar)
    print_problems(found.problems)
    if not found.records:
        places = ", ".join(map(str, paths))
        raise DataError(f"no records in {places}; make some with: ser run STREAM --out DIR")
    return found


def print_comparison(
    records: "list[RunRecord]",
    folder: Path,
    picture: Path | None = None,
    form: Format = "text",
    spread: "Spread" = "interval",
    drawn: "list[RunRecord] | None" = None,
    metrics: Sequence[str] = SCORES,
) -> None:
    """A table and a picture for each stream and protocol; other formats are one table and no picture.

    The picture shows the records of the table, or those of `drawn` if given.
    """
    from strongreplay.report.curves import accuracy_curves
    from strongreplay.report.tables import group_records
    from strongreplay.storage.records import safe_name

    groups = group_records(records)
    if form != "text":
        table = make_comparison_table(groups, metrics, with_stream=True)
        print_table(add_deviations(table, spread, form), form)
        return
    names = list(dict.fromkeys(group.place for group in groups))
    for name in names:
        file = safe_name(name).rstrip("-")
        own = [group for group in groups if group.place == name]
        print_table(add_deviations(make_comparison_table(own, metrics), spread))
        shown = [group for group in group_records(drawn) if group.place == name] if drawn else own
        path = picture or folder / f"{file}.png"
        if picture and len(names) > 1:
            path = picture.with_stem(f"{picture.stem}-{file}")
        try:
            path = accuracy_curves(shown, path)
        except OSError as error:
            raise DataError(
                f"{path}: the picture cannot be written ({error.strerror or error}), all records are there; "
                f"make room or choose another place, and draw it with: ser compare {folder} --picture FILE"
            ) from None
        print_line(f"picture: {path}")


def make_comparison_table(
    groups: "list[Group]", metrics: Sequence[str] = SCORES, with_stream: bool = False
) -> Table:
    """Mean ± interval over seeds; the best of each column among equal memory sizes is marked.

    `with_stream` is for formats other than text, which have all streams in one table.
    """
    from strongreplay.metrics import METRICS
    from strongreplay.report.styles import TITLES

    columns = [*(["stream"] if with_stream else []), "method", "memory"]
    rows: list[list[Entry]] = [
        [
            *([group.place] if with_stream else []),
            group.name,
            group.memory_size,
        ]
        for group in groups
    ]
    for scenario in [one for one in TITLES if any(one in group.records[0].scenarios for group in groups)]:
        for metric in metrics:
            columns.append(f"{TITLES[scenario]}\n{METRICS[metric].label}")
            for row, cell in zip(rows, make_score_cells(groups, scenario, metric), strict=True):
                row.append(cell)
    for row, group in zip(rows, groups, strict=True):
        row.append(len(group.records))
    mark = "in bold" if with_stream or is_terminal() else "marked *"
    what = f"mean ± 95 % interval over n seeds, in per cent; best of a memory size {mark}"
    title = what if with_stream else f"{groups[0].place}: {what}"
    return Table([*columns, "n"], rows, title, wraps=["method"], num_keys=2 + with_stream)


def make_score_cells(groups: "list[Group]", scenario: str, metric: str) -> Iterator[TableCell]:
    """The cells of one column. Joint training is an upper bound and is never marked as best."""
    from strongreplay.metrics import METRICS
    from strongreplay.report.styles import UPPER_BOUND

    found = [group.score(scenario, metric) for group in groups]
    rivals: dict[tuple[str, int | None], list[float]] = {}
    for group, summary in zip(groups, found, strict=True):
        if summary and group.method != UPPER_BOUND:
            rivals.setdefault((group.place, group.memory_size), []).append(summary.mean)
    for group, summary in zip(groups, found, strict=True):
        own = rivals.get((group.place, group.memory_size), [])
        competes = summary is not None and len(own) > 1 and group.method != UPPER_BOUND
        is_best = competes and summary is not None and summary.mean == METRICS[metric].best_of(own)
        yield TableCell(summary.text() if summary else "-", numbers_of(summary), is_best)


COMMAND = Command("compare", compare_command, STUDY, 30)
