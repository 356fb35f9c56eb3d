"""ser report: records as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from strongreplay.cli.commands import STUDY, Command
from strongreplay.cli.compare import find_records
from strongreplay.cli.options import Margin, RecordPaths, check_ending
from strongreplay.cli.text import count_of, print_line, print_problems
from strongreplay.errors import DataError
from strongreplay.progress import Bar


def report_command(
    paths: RecordPaths,
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the page.")] = Path("report.html"),
    margin: Margin = 2.0,
) -> None:
    """Write one self-contained HTML page: verdicts on the paper, tables, figures, run details.

    Example: ser report runs -o report.html
    """
    from strongreplay.report.page import build
    from strongreplay.storage.files import write_text

    check_ending("--out", out, ".html", ".htm")
    found = find_records(paths)
    with Bar() as bar:
        page = build(found, bar, margin=margin)
    print_problems(found.damaged)
    try:
        write_text(out, page)
    except OSError as error:
        raise DataError(
            f"{out}: cannot be written ({error.strerror or error}); choose another place with --out"
        ) from None
    count = count_of(len(found.records), "record")
    print_line(f"report: {out} ({len(page.encode()) / 1e6:.2f} MB, {count})")


COMMAND = Command("report", report_command, STUDY, 50)
