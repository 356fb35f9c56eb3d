"""ser compare: records as one table and one picture a stream."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.cli.commands import STUDY, Command
from strongreplay.cli.options import RecordPaths, takes_format
from strongreplay.cli.tables import Cell, Format, Table, is_terminal, print_table
from strongreplay.cli.text import print_line
from strongreplay.errors import DataError

if TYPE_CHECKING:
    from strongreplay.report.tables import Group
    from strongreplay.storage.records import RunRecord

SCORES = {"average_accuracy": ("accuracy", max), "forgetting": ("forgetting", min)}  # headings, which is best


@takes_format
def compare_command(
    paths: RecordPaths,
    picture: Annotated[
        Path | None, typer.Option(help="Where the picture goes.", show_default="into the first folder")
    ] = None,
    form: Format = "text",
) -> None:
    """Print a table of mean accuracy and forgetting over seeds, and draw accuracy after each task."""
    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    print_comparison(read_records(paths), folder, picture, form)


def read_records(paths: list[Path]) -> "list[RunRecord]":
    """All records found; a file that is damaged or no record is named and passed over."""
    from strongreplay.storage.records import read_folder

    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder; give what ser run wrote with --out")
    records, problems = read_folder(paths)
    print_problems(problems)
    if not records:
        places = ", ".join(map(str, paths))
        raise DataError(f"no records in {places}; make some with: ser run STREAM --out DIR")
    return records


def print_problems(problems: list[str]) -> None:
    for problem in problems:
        print_line(f"passed over {problem}", err=True)


def print_comparison(
    records: "list[RunRecord]", folder: Path, picture: Path | None = None, form: Format = "text"
) -> None:
    """A table and a picture for each stream and protocol; other formats are one table and no picture."""
    from strongreplay.report.curves import accuracy_curves
    from strongreplay.report.tables import group_records
    from strongreplay.storage.records import safe_name

    groups = group_records(records)
    if form != "text":
        print_table(make_comparison_table(groups, with_stream=True), form)
        return
    names = list(dict.fromkeys(group.place for group in groups))
    for name in names:
        own = [group for group in groups if group.place == name]
        print_table(make_comparison_table(own))
        path = picture or folder / f"{safe_name(name)}.png"
        if picture and len(names) > 1:
            path = picture.with_stem(f"{picture.stem}-{safe_name(name)}")
        try:
            print_line(f"picture: {accuracy_curves(own, path)}")
        except OSError as error:
            raise DataError(
                f"{path}: the picture cannot be written ({error.strerror or error}), all records are there; "
                f"make room and draw it with: ser compare {folder}"
            ) from None


def make_comparison_table(groups: "list[Group]", with_stream: bool = False) -> Table:
    """Mean ± deviation over seeds; the best of each column among equal memory sizes is marked."""
    from strongreplay.report.styles import TITLES, label_of

    columns = [*(["stream"] if with_stream else []), "method", "memory"]
    rows: list[list[str | Cell]] = [
        [*([group.place] if with_stream else []), label_of(group), str(group.memory_size or "-")]
        for group in groups
    ]
    for scenario in [one for one in TITLES if any(one in group.records[0].scenarios for group in groups)]:
        for score, (heading, best_of) in SCORES.items():
            columns.append(f"{TITLES[scenario]}\n{heading}")
            for row, cell in zip(rows, make_score_cells(groups, scenario, score, best_of), strict=True):
                row.append(cell)
    for row, group in zip(rows, groups, strict=True):
        row.append(Cell(str(len(group.records)), len(group.records)))
    mark = "in bold" if is_terminal() else "marked *"
    title = f"{groups[0].place}: mean ± deviation over n seeds, in per cent; best of a memory size {mark}"
    return Table([*columns, "n"], rows, title, wraps=["method"], num_keys=2 + with_stream)


def make_score_cells(
    groups: "list[Group]", scenario: str, score: str, best_of: Callable[[list[float]], float]
) -> Iterator[Cell]:
    """One column. Joint training is an upper bound and does not compete."""
    from strongreplay.report.styles import UPPER_BOUND

    found = [group.score(scenario, score) for group in groups]
    rivals: dict[tuple[str, int | None], list[float]] = {}
    for group, summary in zip(groups, found, strict=True):
        if summary and group.method != UPPER_BOUND:
            rivals.setdefault((group.place, group.memory_size), []).append(summary.mean)
    for group, summary in zip(groups, found, strict=True):
        own = rivals.get((group.place, group.memory_size), [])
        is_best = bool(
            summary and len(own) > 1 and group.method != UPPER_BOUND and summary.mean == best_of(own)
        )
        value = {"mean": summary.mean, "deviation": summary.deviation} if summary else {"mean": None}
        yield Cell(str(summary or "-"), value, is_best)


COMMAND = Command("compare", compare_command, STUDY, 30)
