"""Listener: what a run or an update reports while it trains. Progress bars and loggers are listeners.

Write a class with the methods you need and pass it to `run(..., listeners=[...])` or
`Learner(..., listeners=[...])`:

    class LossFile(Listener):
        def on_epoch(self, position, terms, rate, seconds):
            with open("loss.txt", "a") as file:
                file.write(f"task {position.task + 1}, epoch {position.epoch + 1}: {terms}\\n")

    run(config, listeners=[LossFile()])

Listening never changes what is learnt. Events are reported when the state is whole: after a step, not within.
A listener that raises an exception is left out from then on and the run continues; a warning says so.
"""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # it imports torch, which takes seconds; progress bars are needed without it
    from strongreplay.protocol import Terms

Scores = dict[str, list[float | None]]  # by scenario: accuracy on each task in per cent, none if not tested


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What is about to be trained."""

    name: str
    num_tasks: int
    num_steps: int  # expected in all, if every task is as large as the first
    steps_done: int = 0  # before this process: more than 0 after a resume


@dataclass(frozen=True, slots=True)
class Position:
    """Where training is after a step. Task, epoch and step count from 0."""

    task: int
    epoch: int  # of the phase
    step: int  # of the epoch
    num_steps: int  # in an epoch
    phase: str = "main"
    steps_done: int = 0  # of the whole run
    steps_expected: int = 0  # of the whole run


@dataclass(frozen=True, slots=True)
class Outcome:
    """How training ended, and one sentence about it. The gate of a kept model may have refused an update."""

    kind: Literal["finished", "stopped", "failed", "refused"]
    text: str = ""


class Listener:
    """Define any of these methods; the others do nothing."""

    def on_loading(self, what: str, done: int, total: int) -> None:
        """A slow part of reading data is under way: `done` of `total`."""

    def on_start(self, run: RunInfo) -> None:
        """Training begins, or continues from a checkpoint. Comes before all events that follow here."""

    def on_phase(self, task: int, phase: str) -> None:
        """A phase of a task begins, or continues from a checkpoint."""

    def on_step(self, position: Position, terms: "Terms") -> None:
        """After every training step. Be quick: the terms are on the device, and reading them waits for it."""

    def on_epoch(self, position: Position, terms: dict[str, float], rate: float, seconds: float) -> None:
        """After every epoch: the mean of each loss term, the learning rate at its end, its duration."""

    def on_task(self, index: int, scores: Scores) -> None:
        """A task was learnt and all tasks so far were tested.

        A kept model has no test data of its own: after an update, `scores` has the accuracy on all held-out
        samples at the place of the update, and likewise on the guard set.
        """

    def on_checkpoint(self, path: Path) -> None:
        """A checkpoint was written."""

    def on_message(self, text: str) -> None:
        """Something a person may want to know, such as where a run continues."""

    def on_end(self, outcome: Outcome) -> None:
        """Training ended. The last event."""

    def wants_stop(self) -> bool:
        """Asked after every step: True stops training, with its state kept where there is a folder for it."""
        return False


class Listeners(Listener):
    """Passes every event on to several listeners.

    An exception in one of them ends neither the run nor the others: the listener is left out from then on.
    """

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self.listeners = list(listeners)
        self._calls: dict[str, list[tuple[Listener, Callable[..., Any]]]] = {}

    def _defined(self, event: str) -> list[tuple[Listener, Callable[..., Any]]]:
        """Only the listeners that define an event are called: most define few, and steps are many."""
        if event not in self._calls:
            base = getattr(Listener, event)
            own = [each for each in self.listeners if getattr(type(each), event, base) is not base]
            self._calls[event] = [(each, getattr(each, event)) for each in own]
        return self._calls[event]

    def _report(self, event: str, *values: object) -> list[Any]:
        answers = []
        for listener, call in list(self._defined(event)):
            try:
                answers.append(call(*values))
            except Exception as error:
                self._leave_out(listener, event, error)
        return answers

    def _leave_out(self, listener: Listener, event: str, error: Exception) -> None:
        self.listeners.remove(listener)
        self._calls.clear()
        text = f"{type(listener).__name__}.{event} raised {type(error).__name__}: {error}; it is left out now"
        self.on_message(text)
        warnings.warn(text, RuntimeWarning, stacklevel=2)

    def on_loading(self, what: str, done: int, total: int) -> None:
        self._report("on_loading", what, done, total)

    def on_start(self, run: RunInfo) -> None:
        self._report("on_start", run)

    def on_phase(self, task: int, phase: str) -> None:
        self._report("on_phase", task, phase)

    def on_step(self, position: Position, terms: "Terms") -> None:
        self._report("on_step", position, terms)

    def on_epoch(self, position: Position, terms: dict[str, float], rate: float, seconds: float) -> None:
        self._report("on_epoch", position, terms, rate, seconds)

    def on_task(self, index: int, scores: Scores) -> None:
        self._report("on_task", index, scores)

    def on_checkpoint(self, path: Path) -> None:
        self._report("on_checkpoint", path)

    def on_message(self, text: str) -> None:
        self._report("on_message", text)

    def on_end(self, outcome: Outcome) -> None:
        self._report("on_end", outcome)

    def wants_stop(self) -> bool:
        return any(self._report("wants_stop"))
