"""Update: one chunk of new samples on its way into a model: prepare, train, judge.

The model and the chunk alone decide how an update is prepared. One that was stopped is therefore prepared
again, and goes on from the state of its training.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strongreplay.data.user_data import Chunk, Label
from strongreplay.errors import DataError
from strongreplay.models.gate import GUARD, HELD_OUT, Tally, Verdict, compare, count_right
from strongreplay.models.guard import usable_guard
from strongreplay.models.held_out import HeldOut, choose_held_out
from strongreplay.models.labels import check_all_known, columns_of, with_new_labels
from strongreplay.models.model import Model
from strongreplay.models.old_states import with_ids
from strongreplay.models.room import drop_rows_over_budget, make_room
from strongreplay.models.samples import origins_of
from strongreplay.protocol import Split, Task, derive_generator
from strongreplay.runs.trainer import make_optimizer
from strongreplay.training.engine import OnStep, TaskProgress, steps_in_epoch, train_task


@dataclass(frozen=True, slots=True)
class Report:
    """What an update did."""

    verdict: Verdict
    fresh: Tally  # right answers on what was held out of this chunk
    new_labels: tuple[Label, ...]
    num_learnt: int
    num_held: int
    terms: list[dict[str, float]]  # of the loss, an entry an epoch
    notes: tuple[str, ...]


class Update:
    def __init__(
        self, model: Model, chunk: Chunk, guard: Chunk | None = None, announced: Sequence[Label] = ()
    ) -> None:
        if tuple(chunk.inputs.shape[1:]) != model.shape:
            raise DataError(
                f"the model takes samples of shape {model.shape}, got {tuple(chunk.inputs.shape[1:])}; "
                "read them with this shape"
            )
        self.model, self.chunk, self.known, self.kept = model, chunk, tuple(model.labels), model.held
        self.ids = torch.arange(model.next_id, model.next_id + len(chunk))
        model.next_id += len(chunk)
        self.guard, self.notes = self.check_guard(guard)
        self.before = self.tallies() if model.lessons else {}
        columns = self.add_labels([*chunk.labels, *announced])
        train = self.hold_out(columns)
        self.held_room = make_room(model, model.samples.image_bytes(chunk.inputs))
        classes = tuple(train.labels.unique().tolist())
        self.task = Task(model.lessons, classes, train, train.take(torch.empty(0, dtype=torch.int64)))
        self.optimizer = make_optimizer(model.method, model.plan.train)
        self.progress: TaskProgress | None = TaskProgress()
        self.restore: Callable[[], None] | None = None
        self.terms: list[dict[str, float]] = []

    @property
    def num_steps(self) -> int:
        train = self.model.plan.train
        return train.epochs * steps_in_epoch(len(self.task.train), train.batch_size, bool(train.drop_last))

    def add_labels(self, labels: Sequence[Label]) -> Tensor:
        """(N,) the column of each sample's label; labels not met before get the next columns."""
        model, fixed = self.model, self.model.plan.learner.classes
        if fixed is not None:
            check_all_known(fixed, labels)
            model.labels = list(fixed)
        else:
            model.labels = with_new_labels(model.labels, labels)
            # Rows of the head that wait for their class learn to stay low, and stored logits include them.
            # A head without a row for a class before it came would forget more, and a fixed head has it.
            model.method.grow(len(model.labels) + model.plan.learner.reserve, model.generators["growth"])
        return columns_of(self.chunk.labels, model.labels)

    def hold_out(self, columns: Tensor) -> Split:
        """What to learn; a share of each class is put aside in `fresh`."""
        inputs, share = self.chunk.inputs, self.model.plan.learner.val
        held, keys = choose_held_out(columns, share, self.generator("held out"))
        self.fresh = HeldOut(inputs[held], columns[held], keys[held], self.ids[held])
        split = Split(inputs, columns, self.ids)
        return split.take(~held) if held.any() else split

    def go(self, on_step: OnStep | None = None) -> None:
        """Train, from where it stands."""
        model, train = self.model, self.model.plan.train
        self.terms = train_task(
            model.method,
            self.task,
            model.view,
            self.optimizer,
            epochs=train.epochs,
            batch_size=train.batch_size,
            generator=model.generators["order"],
            rate=train.rate_of(self.task.index),
            drop_last=bool(train.drop_last),
            on_step=on_step,
            progress=self.progress,
            restore=self.restore,
        )
        self.progress = None

    def state(self) -> dict[str, Any]:
        """Of a training that is under way."""
        assert self.progress is not None
        model = self.model
        return {
            "method": dict(model.method.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "generators": {name: generator.get_state() for name, generator in model.generators.items()},
            "progress": self.progress.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        model = self.model
        method_state = with_ids(state["method"], [*model.kept_samples(), (self.chunk.inputs, self.ids)])

        def restore() -> None:
            model.method.load_state_dict(method_state)
            for name, generator in model.generators.items():
                generator.set_state(state["generators"][name])

        restore()
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress, self.restore = TaskProgress.of_state(state["progress"], model.device), restore

    def finish(self, max_drop: float) -> Report:
        """Judge the model as it is now, and keep what later updates are judged by."""
        model, fresh = self.model, self.fresh
        model.lessons += 1
        after = self.tallies()
        changes = [
            change
            for where, tally in after.items()
            for change in compare(self.before.get(where, {}), tally, self.known, where)
        ]
        judged, new = self.tally(fresh) if len(fresh) else {}, set(self.chunk.labels) - set(self.known)
        self.remember()
        return Report(
            Verdict(tuple(changes), max_drop),
            judged,
            tuple(label for label in model.labels if label in new),
            len(self.task.train),
            len(fresh),
            self.terms,
            tuple(self.notes),
        )

    def tallies(self) -> dict[str, Tally]:
        """On all that was held out of the chunks before, and on the guard set."""
        found = {HELD_OUT: self.tally(self.kept)} if len(self.kept) else {}
        if self.guard:
            found[GUARD] = count_right(self.model.answers(self.guard.inputs), self.guard.labels)
        return found

    def tally(self, held: HeldOut) -> Tally:
        labels = [self.model.labels[column] for column in held.columns.tolist()]
        return count_right(self.model.answers(held.images), labels)

    def check_guard(self, guard: Chunk | None) -> tuple[Chunk | None, list[str]]:
        if guard is None:
            return None, []
        learnt = [self.chunk.inputs, *(images for images, _ in self.model.kept_samples())]
        return usable_guard(guard, {*self.model.labels, *self.chunk.labels}, learnt)

    def remember(self) -> None:
        """Keep samples within the budget, and know the origin of each."""
        model = self.model
        model.held = self.kept.joined(self.fresh).cut_to(self.held_room)
        model.samples.origins |= origins_of(self.chunk, self.ids.tolist(), model.lessons)
        for images, ids in model.kept_samples():
            model.samples.apply_loss(images, ids)
        drop_rows_over_budget(model, self.generator("budget"))
        model.samples.keep_only(number for _, ids in model.kept_samples() for number in ids.tolist())

    def generator(self, name: str) -> torch.Generator:
        return derive_generator(self.model.plan.learner.seed, f"{name} {self.model.lessons}")
