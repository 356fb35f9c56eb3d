"""What a person sees while many runs are made: a table of those under way, a bar and the time left."""

import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from strongreplay.cli.progress import LINE_SECONDS, StopRequest
from strongreplay.config import RunConfig
from strongreplay.estimate import num_steps
from strongreplay.grid import Job, name_of
from strongreplay.methods import METHODS


class Board:
    """Lines for runs that ended, above a live part: the running ones, a bar over all, the time left."""

    def __init__(self, configs: list[RunConfig]) -> None:
        self.console, self.stop = Console(stderr=True), StopRequest()
        self.weights = {id(config): weight(config) for config in configs}
        self.total, self.done = sum(self.weights.values()), 0.0
        self.began, self.next_line = time.monotonic(), time.monotonic() + LINE_SECONDS
        columns = (
            TextColumn("all runs"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self.progress = Progress(*columns, console=self.console)
        self.bar = self.progress.add_task("all runs", total=len(configs), left="")
        self.live = Live(console=self.console, refresh_per_second=4, transient=True)

    def __enter__(self) -> "Board":
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
        share = self.done + sum(self.weights[id(job.config)] * part(job) for job in running)
        self.progress.update(self.bar, left=self.time_left(share))
        table = Table.grid(padding=(0, 2))
        for job in running:
            where = f"step {job.done:,} of {job.total:,}" if job.total else "starting"
            table.add_row(name_of(job.config), f"{100 * part(job):3.0f} %", where)
        self.live.update(Group(table, self.progress))
        if not self.console.is_terminal and time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + LINE_SECONDS
            told = ", ".join(f"{name_of(job.config)} {100 * part(job):.0f} %" for job in running)
            self.say(f"{told}; {self.time_left(share)}")

    def time_left(self, share: float) -> str:
        """From the work done since the start; work is steps times what a method's step costs."""
        spent = time.monotonic() - self.began
        if share <= 0 or spent < 5:
            return "time left: not known yet"
        seconds = spent * (self.total - share) / share
        return (
            f"about {seconds / 3600:.1f} h left" if seconds > 5400 else f"about {seconds / 60:.0f} min left"
        )

    def ended(self, job: Job) -> None:
        assert job.ended
        how, what = job.ended
        if how != "stopped":
            self.done += self.weights[id(job.config)]
            self.progress.advance(self.bar)
        self.say(f"{name_of(job.config)}: {'failed: ' if how == 'failed' else ''}{what}")

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)


def weight(config: RunConfig) -> float:
    return num_steps(config) * METHODS[config.method_name].cost


def part(job: Job) -> float:
    return job.done / job.total if job.total else 0.0
