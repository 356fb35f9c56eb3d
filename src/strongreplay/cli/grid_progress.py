"""What a person sees while many runs are made: a table of those under way, a bar and the time left."""

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from strongreplay.cli.progress import LINE_SECONDS, StopRequest
from strongreplay.runs.config import RunConfig
from strongreplay.runs.estimate import num_steps
from strongreplay.runs.grid import Job, name_of

Standing = Callable[[RunConfig], tuple[str, str]]  # of a run's cells: recorded so far, and published


class GridProgress:
    """Lines for runs that ended, above a live table of the running ones, a bar over all and the time left."""

    def __init__(self, configs: list[RunConfig], standing: Standing) -> None:
        self.console, self.stop = Console(stderr=True), StopRequest()
        self.standing, self.known = standing, dict[int, tuple[str, str]]()
        self.weights = {id(config): weight(config) for config in configs}
        self.total, self.done = sum(self.weights.values()), 0.0
        self.began, self.next_line = time.monotonic(), time.monotonic() + LINE_SECONDS
        columns = (
            TextColumn("all runs"),
            BarColumn(),
            TextColumn("{task.fields[runs]}, {task.fields[left]}"),
        )
        self.progress = Progress(*columns, console=self.console)
        self.bar = self.progress.add_task("all runs", total=self.total, runs="", left="")
        self.num_ended, self.begun_with = 0, dict[int, float]()  # work that kept states began with
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

    def tick(self, running: list[Job]) -> None:
        for job in running:
            if job.total:
                self.begun_with.setdefault(id(job.config), self.weights[id(job.config)] * part(job))
        share = self.done + sum(self.weights[id(job.config)] * part(job) for job in running)
        runs = f"{self.num_ended} of {len(self.weights)}"
        self.progress.update(self.bar, completed=share, runs=runs, left=self.time_left(share))
        self.live.update(Group(self.table(running), self.progress))
        if not self.console.is_terminal and time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + LINE_SECONDS
            told = ", ".join(f"{name_of(job.config)} {100 * part(job):.0f} %" for job in running)
            self.say(f"{told}; {self.time_left(share)}")

    def table(self, running: list[Job]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in ("running", "", "step", "recorded so far", "published"):
            table.add_column(heading, no_wrap=True, justify="right" if not heading else "left")
        for job in running:
            where = f"{job.done:,} of {job.total:,}" if job.total else "starting"
            if id(job.config) not in self.known:
                self.known[id(job.config)] = self.standing(job.config)
            table.add_row(name_of(job.config), f"{100 * part(job):.0f} %", where, *self.known[id(job.config)])
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

    def ended(self, job: Job) -> None:
        assert job.ended
        how, what = job.ended
        self.known.clear()  # another seed of the same cell may have ended
        if how != "stopped":
            self.done += self.weights[id(job.config)]
            self.num_ended += 1
        self.say(f"{name_of(job.config)}: {'failed: ' if how == 'failed' else ''}{what}")

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)


def weight(config: RunConfig) -> float:
    return num_steps(config) * config.row.cost


def part(job: Job) -> float:
    return job.done / job.total if job.total else 0.0
