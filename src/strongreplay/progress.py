"""Progress on stderr: a bar for whatever takes a while, one for a training, a live table for many runs.

On a terminal and in a notebook they are redrawn a few times a second; elsewhere a line is printed at times.
Commands that need neither torch nor rich import this module, so rich is imported when something is shown.
"""

import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, Self

from strongreplay.errors import printable
from strongreplay.training.events import Listener, Position, RunInfo

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from strongreplay.protocol import Terms

REDRAW_SECONDS = 0.2
PATIENCE_SECONDS = 2  # what takes less time needs no bar
READING_SECONDS = 10  # between two lines where there is no terminal
LINE_SECONDS = 30  # the same for a training and for many runs


class StopRequest:
    """The first Ctrl-C or SIGTERM asks to stop after the step; the second one ends the process at once."""

    def __init__(self) -> None:
        self.asked: int | None = None  # the signal
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self.before[number] = signal.signal(number, self.ask)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        for each in self.before:
            signal.signal(each, signal.SIG_DFL)


class Screen:
    """Where progress is shown: stderr."""

    @cached_property
    def console(self) -> "Console":
        """Takes text as it is. A pipe gets no escape codes, even if the environment asks for colours."""
        from rich.console import Console

        is_terminal = None if sys.stderr.isatty() else False  # None: rich finds out what it can do
        return Console(stderr=True, force_terminal=is_terminal, markup=False, emoji=False, highlight=False)

    @property
    def is_live(self) -> bool:
        """A notebook without ipywidgets cannot redraw; it gets lines, as a pipe does."""
        return self.console.is_terminal or (self.console.is_jupyter and find_spec("ipywidgets") is not None)

    def say(self, text: str) -> None:
        self.console.print("\n".join(map(printable, text.split("\n"))), soft_wrap=True)

    def make_bar(self, *after: str) -> "Progress":
        """A name, a bar, and the given texts; without them, the share that is done and the time left."""
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = after or (TaskProgressColumn(), TimeRemainingColumn())
        name = TextColumn("{task.description}", markup=False)
        return Progress(
            name, BarColumn(), *columns, console=self.console, transient=True, redirect_stdout=False
        )


class Bar(Screen):
    """Called as bar(what, done, total); shown only for what takes longer than two seconds.

    With `beside_output`, nothing is drawn while stdout goes to the same terminal, and nothing is printed to
    a log.
    """

    def __init__(self, *, beside_output: bool = False) -> None:
        self.is_wanted = not beside_output or (sys.stderr.isatty() and not sys.stdout.isatty())
        self.progress: Progress | None = None
        self.what, self.line_seconds = "", READING_SECONDS
        self.next = time.monotonic() + PATIENCE_SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __call__(self, what: str, done: float, total: float, detail: str = "") -> None:
        if not self.is_wanted or time.monotonic() < self.next:
            return
        self.next = time.monotonic() + (REDRAW_SECONDS if self.is_live else self.line_seconds)
        if self.is_live:
            self.draw(what, done, total, detail)
        else:
            self.say(f"{what}{detail}: {done:,} of {total:,}")

    def draw(self, what: str, done: float, total: float, detail: str = "") -> None:
        """The time left is estimated anew where `what` changes, not where its detail does."""
        if self.progress is None:
            self.progress = self.make_bar()
            self.progress.add_task(what, total=None)
            self.progress.start()
        bar = self.progress.task_ids[0]
        if what != self.what:
            self.what = what
            self.progress.reset(bar, completed=int(done))
        self.progress.update(bar, description=what + detail, completed=done, total=total or None)

    def remove(self) -> None:
        """Remove the bar, such as before a question; the next call draws it again."""
        if self.progress:
            self.progress.stop()
        self.progress, self.what = None, ""


class ProgressBar(Bar, Listener):
    """One training as one bar."""

    def __init__(self, stop: StopRequest | None = None) -> None:
        super().__init__()
        self.stop, self.line_seconds = stop, LINE_SECONDS
        self.next = time.monotonic() + (REDRAW_SECONDS if self.is_live else LINE_SECONDS)

    def __enter__(self) -> Self:
        if self.is_live:
            self.draw("starting", 0, 0)
        return self

    def on_loading(self, what: str, done: int, total: int) -> None:
        self(what, done, total)

    def on_start(self, run: RunInfo) -> None:
        if self.is_live:
            self.draw("learning", run.steps_done, run.num_steps)

    def on_step(self, position: Position, terms: "Terms") -> None:
        if time.monotonic() >= self.next:
            phase = "" if position.phase == "main" else f", {position.phase}"
            detail = f"{phase}, epoch {position.epoch + 1}"
            self("learning", position.steps_done, position.steps_expected, detail)

    def on_message(self, text: str) -> None:
        self.say(text)

    def wants_stop(self) -> bool:
        return self.stop is not None and self.stop.asked is not None


class RunningJob(Protocol):
    """What is shown of one run among many."""

    name: str
    label: str  # its name with the method's label, as tables have it
    done: int
    total: int
    ended: tuple[str, str] | None
    weight: float  # its share of the work
    seconds: float


DescribeScores = Callable[[Any], tuple[str, str]]  # of a job: what is recorded of it so far, and published


class GridProgress(Screen):
    """Lines for runs that ended, above a live table of the running ones, a bar over all and the time left."""

    def __init__(self, jobs: Sequence[RunningJob], standing: DescribeScores | None = None) -> None:
        from rich.live import Live

        self.stop, self.standing = StopRequest(), standing
        self.known = dict[int, tuple[str, str]]()
        self.num_jobs, self.num_ended = len(jobs), 0
        self.total, self.done = sum(job.weight for job in jobs) or 1, 0.0
        self.began, self.next_line = time.monotonic(), time.monotonic() + LINE_SECONDS
        self.progress = self.make_bar("{task.fields[after]}")
        self.bar = self.progress.add_task("all runs", total=self.total, after="")
        self.begun_with = dict[int, float]()  # work that kept states began with
        self.live = Live(console=self.console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self.stop.__enter__()
        self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.live.__exit__(*error)
        self.stop.__exit__()

    def wants_stop(self) -> bool:
        return self.stop.asked is not None

    def on_tick(self, running: Sequence[RunningJob]) -> None:
        from rich.console import Group

        for job in running:
            if job.total:
                self.begun_with.setdefault(id(job), job.weight * part(job))
        share = self.done + sum(job.weight * part(job) for job in running)
        left = self.time_left(share)
        after = f"{self.num_ended} of {self.num_jobs}, {left}"
        self.progress.update(self.bar, completed=share, after=after)
        self.live.update(Group(self.table(running), self.progress))
        if not self.is_live and time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + LINE_SECONDS
            parts = ", ".join(f"{job.name} {100 * part(job):.0f} %" for job in running)
            self.say(f"{parts}; {left}")

    def table(self, running: Sequence[RunningJob]) -> "Table":
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        further = ("recorded so far\n(mean ± 95 % interval)", "published") if self.standing else ()
        for heading in ("running", "", "step", *further):
            table.add_column(heading, no_wrap=True, justify="right" if not heading else "left")
        for job in running:
            where = f"{job.done:,} of {job.total:,}" if job.total else "starting"
            if self.standing and id(job) not in self.known:
                self.known[id(job)] = self.standing(job)
            share = f"{100 * part(job):.0f} %"
            table.add_row(printable(job.label), share, where, *self.known.get(id(job), ()))
        return table

    def time_left(self, share: float) -> str:
        """From the work done since the start; work is steps times what a method's step costs."""
        spent, done_here = time.monotonic() - self.began, share - sum(self.begun_with.values())
        if done_here <= 0 or spent < 5:
            return "time left: not known yet"
        seconds = spent * (self.total - share) / done_here
        amount = f"{seconds / 3600:.1f} h" if seconds > 5400 else f"{seconds / 60:.0f} min"
        return f"about {amount} left"

    def on_job(self, job: RunningJob) -> None:
        """A run ended."""
        assert job.ended
        how, what = job.ended
        self.known.clear()  # another seed of the same cell may have ended
        if how != "stopped":
            self.done += job.weight
            self.num_ended += 1
        took = f" in {job.seconds:.1f} s" if how == "recorded" else ""
        self.on_message(job.name, f"{'failed: ' if how == 'failed' else ''}{what}{took}")

    def on_message(self, name: str, text: str) -> None:
        self.say(f"{name}: {text}")


def part(job: RunningJob) -> float:
    return job.done / job.total if job.total else 0.0
