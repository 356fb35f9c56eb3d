"""ser report: records as one HTML page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.cli.commands import STUDY, Command
from strongreplay.cli.compare import print_problems
from strongreplay.cli.options import Margin, RecordPaths
from strongreplay.cli.text import count_of, print_line
from strongreplay.errors import ConfigError, DataError
from strongreplay.progress import Bar

if TYPE_CHECKING:
    from strongreplay.report.collect import Found


def report_command(
    paths: RecordPaths,
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the page.")] = Path("report.html"),
    margin: Margin = 2.0,
) -> None:
    """Write one self-contained HTML page: verdicts on the paper, tables, figures, run details.

    Example: ser report runs -o report.html
    """
    from strongreplay.report.collect import collect
    from strongreplay.report.page import build
    from strongreplay.storage.files import write_text

    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out must be a file that ends in .html, got '{out}'; a page is HTML")
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder; give what ser run wrote with --out")
    with Bar() as bar:
        found = collect(paths, bar)
        check_records(found, paths)
        page = build(found, bar, margin=margin)
    print_problems([*found.problems, *map(str, found.damaged)])
    try:
        write_text(out, page)
    except OSError as error:
        raise DataError(
            f"{out}: cannot be written ({error.strerror or error}); choose another place with --out"
        ) from None
    count = count_of(len(found.records), "record")
    print_line(f"report: {out} ({len(page.encode()) / 1e6:.2f} MB, {count})")


def check_records(found: "Found", paths: list[Path]) -> None:
    if not found.records:
        print_problems(found.problems)
        places = ", ".join(map(str, paths))
        raise DataError(f"no records in {places}; make some with: ser run STREAM --out DIR")


COMMAND = Command("report", report_command, STUDY, 50)
