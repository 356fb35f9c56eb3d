"""A progress bar for one run: cheap on every step, redrawn a few times a second."""

import signal
import time
from types import FrameType, TracebackType
from typing import Any

from rich.progress import Progress

from strongreplay.runs.run import Interrupted, Scores, Watcher
from strongreplay.training.engine import Position

REDRAW_SECONDS = 0.2
LINE_SECONDS = 30  # a long run says how far it is in lines too, for logs and pipes


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

    def end(self) -> None:
        """Where nothing is under way that would have to be finished first."""
        if self.asked is not None:
            raise Interrupted("stopped")


class BarWatcher(Watcher):
    def __init__(self, progress: Progress, name: str, stop: "StopRequest") -> None:
        self.progress, self.name, self.stop, self.started = progress, name, stop, False
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
        self.stop.end()
        self.progress.update(self.bar, description=f"{self.name}: {what}", completed=done, total=total)

    def begin(self, num_steps: int, num_tasks: int, steps_done: int = 0) -> None:
        if not self.started:
            self.progress.reset(self.bar, total=num_steps, description=self.name)
        self.started, self.num_tasks, self.done = True, num_tasks, steps_done
        self.progress.update(self.bar, total=num_steps, completed=steps_done)

    def told(self, text: str) -> None:
        self.progress.console.print(f"{self.name}: {text}", highlight=False, soft_wrap=True)

    def wants_stop(self) -> bool:
        return self.stop.asked is not None

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
            scenario, row = next(iter(scores.items()))
            known = [value for value in row[: index + 1] if value is not None]
            accuracy = f"{scenario} {sum(known) / len(known):.2f} %"
            told = f"{self.name}: task {index + 1} of {self.num_tasks} learnt, {accuracy}"
            self.progress.console.print(told, highlight=False)
