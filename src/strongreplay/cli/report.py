"""ser report: records as one HTML page."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.errors import DataError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from strongreplay.report.page import Found

PATIENCE = 2.0  # seconds until a person wonders; in a log, also the time between two lines
REDRAW_SECONDS = 0.1


def report_command(
    paths: Annotated[list[Path], typer.Argument(help="Folders of records, or records.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the page goes.")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page: verdicts on the paper, tables, figures, run details."""
    from strongreplay.report.page import build, collect
    from strongreplay.storage.files import write_text

    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder; give what ser run wrote with --out")
    with Bar() as bar:
        found = collect(paths, bar)
        expect_records(found, paths)
        page = build(found, bar)
    for problem in (*found.problems, *found.damaged):
        typer.echo(f"passed over {problem}", err=True)
    try:
        write_text(out, page)
    except OSError as error:
        raise DataError(
            f"{out}: cannot be written ({error.strerror or error}); choose another place with --out"
        ) from None
    count = f"{len(found.records)} record{'s' if len(found.records) != 1 else ''}"
    typer.echo(f"report: {out} ({len(page.encode()) / 1e6:.2f} MB, {count})")


def expect_records(found: "Found", paths: list[Path]) -> None:
    if not found.records:
        for problem in found.problems:
            typer.echo(f"passed over {problem}", err=True)
        places = ", ".join(map(str, paths))
        raise DataError(f"no records in {places}; make some with: ser run STREAM --out DIR")


class Bar:
    """Silent for the first seconds; then a bar on a terminal, or a line now and then elsewhere."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.task: TaskID | None = None
        self.next = time.monotonic() + PATIENCE

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *error: object) -> None:
        if self.progress:
            self.progress.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self.next:
            return
        progress = self.progress or self.begin()
        self.next = now + (REDRAW_SECONDS if progress.console.is_terminal else PATIENCE)
        if progress.console.is_terminal and self.task is not None:
            progress.update(self.task, description=what, completed=done, total=total)
        else:
            progress.console.print(f"{what}: {done} of {total}", highlight=False)

    def begin(self) -> "Progress":
        from rich.console import Console
        from rich.progress import Progress

        self.progress = Progress(console=Console(stderr=True), transient=True)
        if self.progress.console.is_terminal:
            self.progress.start()
            self.task = self.progress.add_task("")
        return self.progress
