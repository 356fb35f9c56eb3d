"""Progress bars: one bar for one training, a table and a bar for many runs.

On a terminal and in a notebook they are redrawn a few times a second; elsewhere a line is printed at times.
"""

import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from strongreplay.errors import printable
from strongreplay.protocol import Terms
from strongreplay.training.events import Listener, Position, RunInfo

REDRAW_SECONDS = 0.2
LINE_SECONDS = 30  # between two lines where there is no terminal


class StopRequest:
    """The first Ctrl-C or SIGTERM asks to stop after the step; the second one ends the process at once."""

    def __init__(self) -> None:
        self.asked: int | None = None  # the signal
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
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


class ProgressBar(Listener):
    """One training as one bar."""

    def __init__(self, stop: StopRequest | None = None) -> None:
        self.stop, self.console = stop, Console(stderr=True)
        self.is_live = self.console.is_terminal or self.console.is_jupyter
        name = TextColumn("{task.description}", markup=False)
        columns = (name, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self.progress = Progress(
            *columns, console=self.console, transient=True, redirect_stdout=False, disable=not self.is_live
        )
        self.bar = self.progress.add_task("starting", total=None)
        self.pause = REDRAW_SECONDS if self.is_live else LINE_SECONDS
        self.num_tasks, self.next = 1, time.monotonic() + self.pause

    def __enter__(self) -> "ProgressBar":
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def on_loading(self, what: str, done: int, total: int) -> None:
        self.show(what, done, total)

    def on_start(self, run: RunInfo) -> None:
        self.progress.reset(self.bar, total=run.num_steps, completed=run.steps_done, description="learning")

    def on_step(self, position: Position, terms: Terms) -> None:
        if time.monotonic() >= self.next:
            phase = "" if position.phase == "main" else f", {position.phase}"
            what = f"learning{phase}, epoch {position.epoch + 1}"
            self.show(what, position.steps_done, position.steps_expected)

    def on_message(self, text: str) -> None:
        self.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def wants_stop(self) -> bool:
        return self.stop is not None and self.stop.asked is not None

    def show(self, what: str, done: int, total: int) -> None:
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + self.pause
        if self.is_live:
            self.progress.update(self.bar, description=what, completed=done, total=total)
        else:
            self.on_message(f"{what}: {done:,} of {total:,}")


class RunningJob(Protocol):
    """What is shown of one run among many."""

    name: str
    done: int
    total: int
    ended: tuple[str, str] | None
    weight: float  # its share of the work
    seconds: float


Standing = Callable[[Any], tuple[str, str]]  # of a job: what is recorded of it so far, and published


class GridProgress:
    """Lines for runs that ended, above a live table of the running ones, a bar over all and the time left."""

    def __init__(self, jobs: Sequence[RunningJob], standing: Standing | None = None) -> None:
        self.console, self.stop, self.standing = Console(stderr=True), StopRequest(), standing
        self.known = dict[int, tuple[str, str]]()
        self.num_jobs, self.num_ended = len(jobs), 0
        self.total, self.done = sum(job.weight for job in jobs) or 1, 0.0
        self.began, self.next_line = time.monotonic(), time.monotonic() + LINE_SECONDS
        left = TextColumn("{task.fields[runs]}, {task.fields[left]}")
        self.progress = Progress(TextColumn("all runs"), BarColumn(), left, console=self.console)
        self.bar = self.progress.add_task("all runs", total=self.total, runs="", left="")
        self.begun_with = dict[int, float]()  # work that kept states began with
        self.live = Live(console=self.console, refresh_per_second=4, transient=True)

    def __enter__(self) -> "GridProgress":
        self.stop.__enter__()
        self.live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.__exit__(kind, error, trace)
        self.stop.__exit__()

    def wants_stop(self) -> bool:
        return self.stop.asked is not None

    def on_tick(self, running: Sequence[RunningJob]) -> None:
        for job in running:
            if job.total:
                self.begun_with.setdefault(id(job), job.weight * part(job))
        share = self.done + sum(job.weight * part(job) for job in running)
        runs = f"{self.num_ended} of {self.num_jobs}"
        self.progress.update(self.bar, completed=share, runs=runs, left=self.time_left(share))
        self.live.update(Group(self.table(running), self.progress))
        if not self.console.is_terminal and time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + LINE_SECONDS
            parts = ", ".join(f"{job.name} {100 * part(job):.0f} %" for job in running)
            self.say(f"{parts}; {self.time_left(share)}")

    def table(self, running: Sequence[RunningJob]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        further = ("recorded so far", "published") if self.standing else ()
        for heading in ("running", "", "step", *further):
            table.add_column(heading, no_wrap=True, justify="right" if not heading else "left")
        for job in running:
            where = f"{job.done:,} of {job.total:,}" if job.total else "starting"
            if self.standing and id(job) not in self.known:
                self.known[id(job)] = self.standing(job)
            table.add_row(job.name, f"{100 * part(job):.0f} %", where, *self.known.get(id(job), ()))
        return table

    def time_left(self, share: float) -> str:
        """From the work done since the start; work is steps times what a method's step costs."""
        spent, done_here = time.monotonic() - self.began, share - sum(self.begun_with.values())
        if done_here <= 0 or spent < 5:
            return "time left: not known yet"
        seconds = spent * (self.total - share) / done_here
        return (
            f"about {seconds / 3600:.1f} h left" if seconds > 5400 else f"about {seconds / 60:.0f} min left"
        )

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

    def say(self, text: str) -> None:
        self.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def part(job: RunningJob) -> float:
    return job.done / job.total if job.total else 0.0
