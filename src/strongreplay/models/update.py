"""Update: learn one chunk of new samples, in three steps: prepare, train, judge.

Preparation depends only on the model and the chunk. A stopped update is therefore prepared again, and then
resumes from its last checkpoint.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from strongreplay.data.user_data import Chunk, Label
from strongreplay.errors import DataError, RunError
from strongreplay.methods.averaged import Averaging
from strongreplay.models.calibrate import calibrate
from strongreplay.models.capacity import drop_rows_over_budget, make_room
from strongreplay.models.complete import complete_logits
from strongreplay.models.correct import correction_phases
from strongreplay.models.duplicates import compare_with_past, rank_samples
from strongreplay.models.features import check_finite
from strongreplay.models.gate import (
    GUARD,
    HELD_OUT,
    LEVEL,
    Marks,
    Tally,
    Verdict,
    accuracy_of,
    compare,
    count_right,
    guessed,
    mark_answers,
)
from strongreplay.models.guard import usable_guard
from strongreplay.models.held_out import HeldOut, choose_held_out
from strongreplay.models.labels import check_all_known, columns_of, with_new_labels
from strongreplay.models.model import Model
from strongreplay.models.old_states import with_ids
from strongreplay.models.samples import origins_of
from strongreplay.protocol import Split, Task, derive_generator
from strongreplay.storage import files
from strongreplay.storage.state import read_newest
from strongreplay.training.checkpoints import CheckpointInterval, Checkpoints
from strongreplay.training.engine import NonFiniteError
from strongreplay.training.events import Listener, Outcome, Scores
from strongreplay.training.trainer import Trainer

CHECKPOINT_SECONDS = 60.0  # between checkpoints


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an update."""

    verdict: Verdict
    fresh: Tally  # on the samples held out from this chunk
    new_labels: tuple[Label, ...]
    num_learnt: int
    num_held: int
    terms: list[dict[str, float]]  # of the loss, one entry per epoch
    notes: tuple[str, ...]
    not_learnt: tuple[Label, ...] = ()  # new classes that are recognised no better than by a guess
    accuracy: dict[str, float] = field(default_factory=dict)  # on all held-out samples, and on the guard set


def update_checkpoints(folder: Path, name: str) -> Checkpoints:
    """The checkpoints of an update; its name depends on the model before it, the data and the settings."""
    remedy = "make room and repeat the command, no version was changed"
    return Checkpoints(folder, CheckpointInterval(CHECKPOINT_SECONDS), {"lesson": name}, remedy)


class Update:
    def __init__(
        self,
        model: Model,
        chunk: Chunk,
        guard: Chunk | None = None,
        announced: Sequence[Label] = (),
        listeners: Iterable[Listener] = (),
        checkpoints: Checkpoints | None = None,
    ) -> None:
        chunk = replace(chunk, inputs=model.stored(chunk.inputs))
        guard = guard and replace(guard, inputs=model.stored(guard.inputs))
        if model.reader:
            check_finite(chunk, model.reader.backbone)
        if tuple(chunk.inputs.shape[1:]) != model.stored_shape:
            raise DataError(
                f"the model takes samples of shape {model.shape}, got {tuple(chunk.inputs.shape[1:])}; "
                "read them with this shape"
            )
        seen = compare_with_past(model, chunk)
        self.seen, self.chunk = (
            (seen.take(~seen.held), chunk.take(~seen.held)) if seen.held.any() else (seen, chunk)
        )
        self.model, self.known, self.kept = model, tuple(model.labels), model.held
        self.ids = torch.arange(model.next_id, model.next_id + len(self.chunk))
        model.next_id += len(self.chunk)
        self.guard, self.notes = self.check_guard(guard)
        self.notes += seen.notes()
        self.before = self.judge() if model.num_updates else {}
        columns = self.add_labels([*chunk.labels, *announced])
        train = self.hold_out(columns)
        if model.memory is not None and model.settings.learner.sampling == "balanced":
            learnt = self.learnt
            order = rank_samples(
                model, self.chunk.take(learnt), self.ids[learnt], columns[learnt], self.seen.prints[learnt]
            )
            model.memory.prefer(order)
        self.held_room = make_room(model, model.samples.image_bytes(chunk.inputs))
        classes = tuple(train.labels.unique().tolist())
        self.task = Task(model.num_updates, classes, train, train.take(torch.empty(0, dtype=torch.int64)))
        if isinstance(model.method, Averaging):
            epochs, size = model.settings.train.epochs, model.settings.train.batch_size
            model.method.pace_average(epochs * -(-len(train) // size))
        self.trainer = Trainer(
            model.method,
            model.view,
            model.test_view,
            model.settings.train,
            model.generators,
            listeners=listeners,
            checkpoints=checkpoints,
            name="update",
            num_tasks=model.num_updates + 1,
            further_phases=lambda: correction_phases(model, self.columns_of_ids),
        )
        self.trainer.index = model.num_updates
        self.terms: list[dict[str, float]] = []

    def add_labels(self, labels: Sequence[Label]) -> Tensor:
        """(N,) the column of each sample's label; new labels get the next columns."""
        model, fixed = self.model, self.model.settings.learner.classes
        if fixed is not None:
            check_all_known(fixed, labels)
            model.labels = list(fixed)
        else:
            model.labels = with_new_labels(model.labels, labels)
            # Reserve rows of the head learn low scores before their class arrives, and stored logits include
            # them. This reduces forgetting, compared with adding a row only when its class arrives.
            model.method.grow(len(model.labels) + model.settings.learner.reserve, model.generators["growth"])
        return columns_of(self.chunk.labels, model.labels)

    def hold_out(self, columns: Tensor) -> Split:
        """The samples to train on; of those met for the first time, a share of each class is held out."""
        inputs, share, new = self.chunk.inputs, self.model.settings.learner.val, self.seen.new
        chosen, keys = choose_held_out(columns[new], share, self.generator("held out"))
        held = new.nonzero().flatten()[chosen]
        self.fresh = HeldOut(inputs[held], columns[held], keys[chosen], self.ids[held])
        self.learnt = torch.ones(len(columns), dtype=torch.bool).index_fill(0, held, False)
        split = Split(inputs, columns, self.ids)
        return split.take(self.learnt) if len(held) else split

    def run(
        self,
        max_drop: float,
        level: float = LEVEL,
        accept: bool = False,
        forget: str = "forget it with --restart",
    ) -> Report:
        """Train and judge, and report both to the listeners. `accept` ignores the gate."""
        listener = self.trainer.listener
        with self.trainer.reported() as outcomes:
            self.train(forget)
            report = self.finish(max_drop, level)
            listener.on_task(self.task.index, self.scores(report))
            if not (report.verdict.passed or accept):
                outcomes.append(Outcome("refused", report.verdict.reason()))
        return report

    def scores(self, report: Report) -> Scores:
        """Accuracy in per cent on all held-out samples and on the guard set, at the place of this update."""
        earlier: list[float | None] = [None] * self.task.index
        return {where: [*earlier, value] for where, value in report.accuracy.items()}

    def train(self, forget: str = "forget it with --restart") -> None:
        """Train, starting from the newest checkpoint if there is one.

        Raises NonFiniteError if weights, loss or predictions are not finite, and removes the checkpoints,
        because resuming would fail again. `forget` is the text that says how to discard a stopped update.
        """
        trainer, checkpoints = self.trainer, self.trainer.checkpoints
        if checkpoints and (found := read_newest(checkpoints.folder, trainer.listener.on_message)):
            if found.manifest.get("lesson") != checkpoints.about["lesson"]:
                raise RunError(
                    f"{checkpoints.folder}: an update with other data or settings was stopped here; "
                    f"finish it with the same command as then, or {forget}"
                )
            step, known = found.manifest["step"], [*self.model.kept_samples(), (self.chunk.inputs, self.ids)]
            method = with_ids(found.tree["method"], known)
            found = replace(found, tree=found.tree | {"method": method})
            trainer.resume(found, f"resuming the stopped update after step {step}", forget)
        trainer.start(self.task.train)
        try:
            self.terms = trainer.learn(self.task)
        except NonFiniteError:
            if checkpoints:
                files.remove_quietly(checkpoints.folder)
            raise

    def finish(self, max_drop: float, level: float = LEVEL) -> Report:
        """Judge the trained model, and add the new held-out samples."""
        model, fresh = self.model, self.fresh
        if model.memory is not None and model.settings.learner.sampling == "balanced":
            complete_logits(model)
        calibrate(model, self.kept, fresh)
        model.num_updates += 1
        after = self.judge()
        changes = [
            change
            for where, marks in after.items()
            for change in compare(self.before.get(where, {}), marks, self.known, where)
        ]
        arrived = set(self.chunk.labels) - set(self.known)
        new = tuple(label for label in model.labels if label in arrived)
        fresh_marks = self.mark(fresh) if len(fresh) else {}
        judged = count_right(fresh_marks)
        held = [*after.get(HELD_OUT, {}).values(), *fresh_marks.values()]
        accuracy = {HELD_OUT: accuracy_of(held)} if held else {}
        accuracy |= {GUARD: accuracy_of(after[GUARD].values())} if self.guard else {}
        self.remember()
        return Report(
            Verdict(tuple(changes), max_drop, level),
            judged,
            new,
            len(self.task.train),
            len(fresh),
            self.terms,
            tuple(self.notes),
            tuple(guessed(new, judged, len(model.labels))[0]),
            accuracy,
        )

    def columns_of_ids(self, ids: Tensor) -> Tensor:
        """(N,) the columns of samples of the memory or of the chunk."""
        new = dict(zip(self.ids.tolist(), self.chunk.labels, strict=True))
        old = self.model.samples.origins
        labels = [new[number] if number in new else old[number].label for number in ids.tolist()]
        return columns_of(labels, self.model.labels)

    def judge(self) -> dict[str, Marks]:
        """Which answers are right, on the held-out samples of earlier chunks and on the guard set."""
        found = {HELD_OUT: self.mark(self.kept)} if len(self.kept) else {}
        if self.guard:
            found[GUARD] = mark_answers(self.model.answers(self.guard.inputs), self.guard.labels)
        return found

    def mark(self, held: HeldOut) -> Marks:
        labels = [self.model.labels[column] for column in held.columns.tolist()]
        return mark_answers(self.model.answers(held.images), labels)

    def check_guard(self, guard: Chunk | None) -> tuple[Chunk | None, list[str]]:
        if guard is None:
            return None, []
        learnt = [self.chunk.inputs, *(images for images, _ in self.model.kept_samples())]
        return usable_guard(guard, {*self.model.labels, *self.chunk.labels}, learnt)

    def remember(self) -> None:
        """Fit the kept samples into the budget, and store the origin of each."""
        model = self.model
        model.held = self.kept.joined(self.fresh).cut_to(self.held_room)
        model.learnt = torch.cat([model.learnt, self.seen.prints[self.learnt]]).unique()
        model.samples.origins |= origins_of(self.chunk, self.ids.tolist(), model.num_updates)
        for images, ids in model.kept_samples():
            model.samples.apply_loss(images, ids)
        drop_rows_over_budget(model, self.generator("budget"))
        model.samples.keep_only(number for _, ids in model.kept_samples() for number in ids.tolist())

    def generator(self, name: str) -> torch.Generator:
        return derive_generator(self.model.settings.learner.seed, f"{name} {self.model.num_updates}")
