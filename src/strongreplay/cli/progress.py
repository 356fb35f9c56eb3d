"""A progress bar for one run: cheap on every step, redrawn a few times a second."""

import time
from types import TracebackType

from rich.progress import Progress

from strongreplay.engine import Position
from strongreplay.run import Scores, Watcher

REDRAW_SECONDS = 0.2
LINE_SECONDS = 30  # a long run says how far it is in lines too, for logs and pipes


class BarWatcher(Watcher):
    def __init__(self, progress: Progress, name: str) -> None:
        self.progress, self.name = progress, name
        self.bar = progress.add_task(name, total=None)
        self.done, self.num_tasks, self.next_draw = 0, 1, 0.0
        self.next_line = time.monotonic() + LINE_SECONDS

    def __enter__(self) -> "BarWatcher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.remove_task(self.bar)

    def loading(self, what: str, done: int, total: int) -> None:
        self.progress.update(self.bar, description=f"{self.name}: {what}", completed=done, total=total)

    def begin(self, num_steps: int, num_tasks: int) -> None:
        self.num_tasks = num_tasks
        if self.done == 0:
            self.progress.reset(self.bar, total=num_steps, description=self.name)
        self.progress.update(self.bar, total=num_steps)

    def step(self, position: Position) -> None:
        self.done += 1
        now = time.monotonic()
        if now >= self.next_draw:
            self.next_draw = now + REDRAW_SECONDS
            where = f"{self.name}: task {position.task + 1}/{self.num_tasks}"
            self.progress.update(self.bar, completed=self.done, description=where)

    def evaluated(self, index: int, scores: Scores) -> None:
        if time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + LINE_SECONDS
            setting, row = next(iter(scores.items()))
            known = [value for value in row[: index + 1] if value is not None]
            accuracy = f"{setting} {sum(known) / len(known):.2f} %"
            told = f"{self.name}: task {index + 1} of {self.num_tasks} learnt, {accuracy}"
            self.progress.console.print(told, highlight=False)
