"""The progress bar of every command that reads, draws or answers for a while."""

import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_SECONDS = 2.0  # what takes less time needs no bar
REDRAW_SECONDS = 0.1
LINE_SECONDS = 10.0  # between two lines in a log


class Bar:
    """Called as bar(what, done, total); drawn on stderr, only for what takes longer than two seconds.

    Where stderr is no terminal, a line is printed now and then. With `beside_output`, nothing is drawn
    while stdout goes to the same terminal, and nothing is printed to a log.
    """

    def __init__(self, *, beside_output: bool = False) -> None:
        self.is_terminal = sys.stderr.isatty()
        self.is_wanted = not beside_output or (self.is_terminal and not sys.stdout.isatty())
        self.progress: Progress | None = None
        self.task: TaskID | None = None
        self.what, self.next = "", time.monotonic() + PATIENCE_SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __call__(self, what: str, done: float, total: float) -> None:
        now = time.monotonic()
        if not self.is_wanted or now < self.next:
            return
        self.next = now + (REDRAW_SECONDS if self.is_terminal else LINE_SECONDS)
        if not self.is_terminal:
            print(f"{what}: {done:,} of {total:,}", file=sys.stderr)
            return
        progress = self.progress or self.start()
        assert self.task is not None
        if what != self.what:
            self.what = what
            progress.reset(self.task, description=what)
        progress.update(self.task, completed=done, total=total or None)

    def start(self) -> "Progress":
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        console = Console(stderr=True)
        self.progress = Progress(*columns, console=console, transient=True, redirect_stdout=False)
        self.task = self.progress.add_task(self.what)
        self.progress.start()
        return self.progress

    def stop(self) -> None:
        """Remove the bar, such as before a question; the next call draws it again."""
        if self.progress:
            self.progress.stop()
        self.progress, self.what = None, ""
