"""Trainer: trains a method task by task; its state can be saved, stopped and resumed at any step.

Runs of streams and updates of kept models both use it, so they have the same checkpoints, the same events,
and the same checks that weights, loss and predictions are finite.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from strongreplay.errors import RunError
from strongreplay.methods.base import MAIN, Method, Phase, predict_all
from strongreplay.protocol import Split, Task, View
from strongreplay.storage.state import Checkpoint
from strongreplay.training.checkpoints import Checkpoints
from strongreplay.training.devices import keep_freed_memory
from strongreplay.training.engine import (
    NonFiniteError,
    PhaseDefaults,
    PhaseLoop,
    TaskProgress,
    steps_in_epoch,
    train_epoch,
)
from strongreplay.training.events import Listener, Listeners, Outcome, RunInfo
from strongreplay.training.optimizers import carry_over, load_state, make_optimizer, with_gradients
from strongreplay.training.parallel import Ranks
from strongreplay.training.precision import Precision
from strongreplay.training.settings import TrainConfig
from strongreplay.training.state_check import check_progress

CHECKED = 64  # samples whose predictions must be finite after each task
UNFIT = (KeyError, TypeError, ValueError, AttributeError, RuntimeError)  # errors of a wrong state


class Interrupted(RunError):
    """Training was stopped on request; its state is saved if there is a folder for checkpoints."""


class Trainer:
    """Trains a method task by task."""

    kind = "update"  # what messages call it

    def __init__(
        self,
        method: Method,
        view: View,
        plain_view: View,
        train: TrainConfig,
        generators: dict[str, torch.Generator],
        *,
        listeners: Iterable[Listener] = (),
        checkpoints: Checkpoints | None = None,
        name: str = "",
        num_tasks: int = 1,
        ranks: Ranks | None = None,
        further_phases: Callable[[], list[Phase]] = list,
    ) -> None:
        self.ranks = ranks or Ranks()  # the processes that train together; usually this one alone
        self.method, self.view, self.plain_view, self.train = method, view, plain_view, train
        self.generators, self.checkpoints = generators, checkpoints
        self.listener = Listeners(listeners)
        self.name, self.num_tasks = name, num_tasks
        self.further_phases = further_phases  # after those of the method
        self.device = next(method.parameters()).device
        self.precision = Precision(train, self.device)
        self.index = 0  # the index of the task
        self.progress: TaskProgress | None = None  # within a task that has begun
        self.optimizer: Optimizer | None = None  # of the main phase
        self.phase_optimizer: Optimizer | None = None  # of another phase
        self.steps_done = self.steps_expected = 0
        self.main_steps = 0  # expected steps from this task to the last one
        self.other_steps: dict[str, int] = {}  # steps of the other phases in one task
        self.loaded: dict[str, Any] | None = None  # a loaded state in the middle of a task

    # Training

    def start(self, train: Split | None) -> None:
        """Report that training begins. `train` is the data of the next task; None: no task is left."""
        if train is not None:
            settings, size = self.train, self.method.stream_batch_size(self.train.batch_size)
            self.expect_main(steps_in_epoch(len(train), size, bool(settings.drop_last)))
        self.listener.on_start(RunInfo(self.name, self.num_tasks, self.steps_expected, self.steps_done))

    def learn(self, task: Task) -> list[dict[str, float]]:
        """Train the rest of a task; returns the mean loss terms of the main phase by epoch."""
        keep_freed_memory()
        self.method.train()
        given, task = task.train, self.method.begin_task(task)
        if self.loaded:
            self.restore(self.loaded)  # begin_task ran a second time and may have changed the state
        progress = self.progress = self.progress or TaskProgress(first_step=self.steps_done)
        with self.precision.applied(self.method):
            for phase in self.phases_left(task, progress.phase):
                self.train_phase(task, phase, progress)
        self.method.end_task(task)  # in float32: what it measures is kept
        self.progress = self.phase_optimizer = self.loaded = None
        self.check_weights()
        self.check_answers(given)
        self.ranks.expect_equal(f"task {self.index + 1}", dict(self.method.state_dict()))
        return progress.history

    def phases_left(self, task: Task, current: str) -> list[Phase]:
        phases = [*self.method.phases(task), *self.further_phases()]
        names = [phase.name for phase in phases]
        if len(set(names)) < len(names):
            raise RunError(f"{type(self.method).__name__}.phases: names must differ, got {', '.join(names)}")
        if current and current not in names:
            raise RunError(f"the state is in phase '{current}', but the phases are {', '.join(names)}")
        return phases[names.index(current) if current else 0 :]

    def train_phase(self, task: Task, phase: Phase, progress: TaskProgress) -> None:
        if progress.phase != phase.name:
            progress.begin_phase(phase.name)
            if phase.begin:
                phase.begin()
        train = self.train
        defaults = PhaseDefaults(
            self.view,
            train.epochs_of(task.index),
            train.batch_size,
            self.generators["order"],
            train.rate_of(task.index),
            bool(train.drop_last),
        )
        loop = PhaseLoop(self.method, task, phase, defaults, progress)
        if not loop.total:
            return
        optimizer = self.optimizer_of(phase)
        self.expect(loop, progress)
        self.listener.on_phase(task.index, phase.name)

        def after_step() -> None:
            self.steps_done = loop.steps_done
            self.pause()

        with with_gradients(optimizer, phase.parameters is not None):
            while loop.is_open:
                train_epoch(loop, optimizer, self.listener, after_step)

    def optimizer_of(self, phase: Phase) -> Optimizer:
        """Make the phase's optimiser, after `begin_task`; it takes over the last momentum if that is kept."""
        usual = partial(make_optimizer, train=self.train)
        made = self.precision.guard(phase.make_optimizer(self.method.net, usual))
        key = "optimizer" if phase.name == MAIN else "phase_optimizer"
        if phase.name == MAIN:
            if self.optimizer and self.train.keep_momentum:
                carry_over(self.optimizer, made)
            self.optimizer = made
        else:
            self.phase_optimizer = made
        if self.loaded:  # only this phase is resumed; the next phases start from the beginning
            try:
                load_state(made, self.loaded[key])
            except UNFIT as error:
                raise RunError(f"{self.name}: the state does not fit ({error}); start anew") from None
            self.loaded = None
        return made

    def expect(self, loop: PhaseLoop, progress: TaskProgress) -> None:
        """Estimate the number of steps, as if all following tasks were as large as this one."""
        in_phase = progress.epoch * loop.num_steps + progress.step
        if progress.first_step is None:  # a state written by version 0.1
            progress.first_step = self.steps_done - in_phase
        if loop.phase.name == MAIN:
            self.expect_main(loop.num_steps)
        else:
            self.other_steps[loop.phase.name] = loop.total
        others = sum(self.other_steps.values()) * (self.num_tasks - self.index)
        self.steps_expected = progress.first_step + self.main_steps + others
        loop.steps_done, loop.steps_expected = self.steps_done, self.steps_expected

    def expect_main(self, steps_an_epoch: int) -> None:
        epochs = sum(self.train.epochs_of(index) for index in range(self.index, self.num_tasks))
        before = self.progress.first_step if self.progress else None
        self.main_steps = epochs * steps_an_epoch
        self.steps_expected = (self.steps_done if before is None else before) + self.main_steps

    # Stopping

    def pause(self) -> None:
        """Between steps: write a checkpoint if one is due, and stop if a listener asks for it."""
        stop, checkpoints = self.ranks.agree_to_stop(self.listener.wants_stop()), self.checkpoints
        if checkpoints and (stop or checkpoints.is_due(self.steps_done, self.steps_expected)):
            self.write_checkpoint()
        if stop:
            kept = f"; its state is kept in {checkpoints.folder}" if checkpoints else ""
            at = f"after step {self.steps_done} of {self.steps_expected}"
            raise Interrupted(f"stopped {at if self.steps_done else 'before the first step'}{kept}")

    def write_checkpoint(self) -> None:
        assert self.checkpoints is not None
        self.check_weights()  # training could not continue from weights that are not finite
        self.listener.on_checkpoint(self.checkpoints.write(self.state(), self.position()))

    def position(self) -> dict[str, Any]:
        """For a checkpoint's manifest."""
        return {
            "step": self.steps_done,
            "steps_expected": self.steps_expected,
            "task": min(self.index + 1, self.num_tasks),
            "tasks": self.num_tasks,
            "threads": torch.get_num_threads(),
            "device": self.device.type if self.ranks.size > 1 else str(self.device),
        } | ({"ranks": self.ranks.size} if self.ranks.size > 1 else {})

    @contextmanager
    def reported(self) -> Iterator[list[Outcome]]:
        """Report to listeners how the code inside ended; it may append another outcome than finished."""
        outcomes = [Outcome("finished")]
        try:
            yield outcomes
        except Interrupted as error:
            self.listener.on_end(Outcome("stopped", str(error)))
            raise
        except BaseException as error:
            self.listener.on_end(Outcome("failed", f"{error}" or type(error).__name__))
            raise
        self.listener.on_end(outcomes[-1])

    # Checks

    def check_weights(self) -> None:
        """Raise unless weights and loss are finite; called after each task and before each checkpoint."""
        values = [p.detach().abs().max() for p in self.method.net.parameters() if p.numel()]
        terms = [term for step in (self.progress.steps if self.progress else []) for term in step.values()]
        if not torch.stack(values + terms).isfinite().all():
            raise self.not_finite("weights or loss")

    def check_answers(self, train: Split) -> None:
        """Raise unless the highest score of each prediction is finite; other scores may be minus infinity."""
        if len(train) == 0:
            return
        with self.precision.applied(self.method):
            scores = predict_all(self.method, train.inputs[:CHECKED], self.plain_view, self.method.predict)
        if not scores.amax(1).isfinite().all():
            raise self.not_finite("answers to training samples")

    def not_finite(self, what: str) -> NonFiniteError:
        return NonFiniteError(
            f"task {self.index + 1}: {what} are not finite after step {self.steps_done}; "
            "lower train.lr or the weight of a loss term"
        )

    # State

    def state(self) -> dict[str, Any]:
        """Everything that the next steps depend on."""
        phase = self.progress.phase if self.progress else None
        # Between tasks the optimiser is not needed, unless its momentum is kept.
        main = self.optimizer if phase == MAIN or self.train.keep_momentum else None
        other = self.phase_optimizer if phase != MAIN else None
        return self.precision.state() | {
            "method": dict(self.method.state_dict()),
            "optimizer": main.state_dict() if main else None,
            "phase_optimizer": other.state_dict() if other else None,
            "generators": {name: generator.get_state() for name, generator in self.generators.items()},
            "progress": self.progress.state() if self.progress else None,
        }

    def load(self, state: dict[str, Any], steps_done: int) -> None:
        self.restore(state)
        self.steps_done = steps_done
        kept = state["optimizer"]
        if state["progress"] is not None:
            check_progress(state["progress"])
            self.progress, self.loaded = TaskProgress.of_state(state["progress"], self.device), state
        if kept is not None and (self.progress is None or self.progress.phase != MAIN):
            # The net may have grown since: new parameters have no momentum yet.
            count = sum(len(group["params"]) for group in kept["param_groups"])
            self.optimizer = make_optimizer(list(self.method.net.parameters())[:count], self.train)
            load_state(self.optimizer, kept)

    def restore(self, state: dict[str, Any]) -> None:
        self.precision.load(state)
        self.method.load_state_dict(state["method"])
        self.method.to(self.device)  # a memory takes its columns from the state, which is on the CPU
        for name, generator in self.generators.items():
            generator.set_state(state["generators"][name])

    def resume(self, found: Checkpoint, message: str, remedy: str) -> None:
        """Continue from a checkpoint."""
        try:
            self.load(found.tree, found.manifest["step"])
        except UNFIT as error:
            reason = str(error).splitlines()[0]
            raise RunError(f"{found.path}: does not fit this {self.kind} ({reason}); {remedy}") from None
        if self.checkpoints:
            self.checkpoints.start_from(self.steps_done, found.path)
        self.listener.on_message(message)


def report_loading(listener: Listener) -> Callable[[str, int, int], None]:
    """Report the progress of reading data to the listener, and stop if it asks for that."""

    def report(what: str, done: int, total: int) -> None:
        listener.on_loading(what, done, total)
        if listener.wants_stop():
            raise Interrupted("stopped while reading; nothing has changed")

    return report
