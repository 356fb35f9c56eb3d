"""Lesson: one chunk on its way into a model: new labels, samples held out, training, judgement.

Everything before the training is fixed by the model and the chunk, so a lesson that was stopped is prepared
again and goes on from the state of its training alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strongreplay.data import images as codec
from strongreplay.data.user_data import Chunk, Label, digests
from strongreplay.errors import ConfigError, DataError
from strongreplay.models.gate import GUARD, HELD_OUT, Tally, Verdict, compare, count_right
from strongreplay.models.model import HeldOut, Model, Origin
from strongreplay.protocol import Split, Task, derive_generator
from strongreplay.runs.trainer import make_optimizer
from strongreplay.sampling import draw_distinct
from strongreplay.training.engine import OnStep, TaskProgress, steps_in_epoch, train_task

ENOUGH = 5  # samples of a class from which at least one is held out
PROBED = 200  # images that tell how much one takes when it is encoded


@dataclass(frozen=True, slots=True)
class Report:
    """What a lesson did."""

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
        self.notes: list[str] = []
        self.renamed: dict[str, str] = {}  # digests of decoded images to those of the images they were
        self.guard = self.usable(guard) if guard else None
        self.before = self.tallies() if model.lessons else {}
        columns = self.admit([*chunk.labels, *announced])
        train = self.hold_out(columns)
        self.make_room()
        whole = len(train) == len(columns)
        split = Split(chunk.inputs, columns) if whole else Split(chunk.inputs[train], columns[train])
        classes = tuple(split.labels.unique().tolist())
        self.task = Task(model.lessons, classes, split, Split(split.inputs[:0], split.labels[:0]))
        self.optimizer = make_optimizer(model.method, model.plan.train)
        self.progress: TaskProgress | None = TaskProgress()
        self.restore: Callable[[], None] | None = None
        self.terms: list[dict[str, float]] = []

    @property
    def num_steps(self) -> int:
        train = self.model.plan.train
        return train.epochs * steps_in_epoch(len(self.task.train), train.batch_size, bool(train.drop_last))

    def admit(self, labels: Sequence[Label]) -> Tensor:
        """The column of each sample; labels not met before get the next ones."""
        model, fixed = self.model, self.model.plan.learner.classes
        found = list(dict.fromkeys(labels))
        if fixed is not None:
            allowed = set(fixed)
            foreign = [label for label in found if label not in allowed]
            if foreign:
                raise DataError(f"the model is fixed to {len(fixed)} classes, got {foreign[0]!r} besides")
            model.labels = list(fixed)
        else:
            check_kinds([*model.labels, *found])
            new = set(found) - set(model.labels)
            # The first come sorted, so that it does not matter how a folder or an array orders them.
            model.labels += [label for label in sorted(found, key=sort_key) if label in new]
            # Rows that wait for their class learn to stay low, and what is remembered says so too: a head
            # that had no row for a class before it came would forget more, and a fixed one has it.
            model.method.grow(len(model.labels) + model.plan.learner.reserve, model.generators["growth"])
        places = {label: column for column, label in enumerate(model.labels)}
        return torch.tensor([places[label] for label in self.chunk.labels])

    def hold_out(self, columns: Tensor) -> Tensor:
        """Rows to learn; the others are put aside, a share of each class."""
        share, generator = self.model.plan.learner.val, self.generator("held out")
        keys = torch.rand(len(columns), dtype=torch.float64, generator=generator)
        sizes = columns.bincount()
        counts = (sizes * share).round().long()
        counts = torch.where(sizes >= ENOUGH, counts.clamp(min=1), counts).minimum(sizes - 1) * (share > 0)
        held = ranks(columns, keys) < counts[columns]
        self.fresh = HeldOut(self.chunk.inputs[held], columns[held], keys[held])
        return (~held).nonzero().flatten()

    def make_room(self) -> None:
        """As many rows in memory as the budget has room for now; wider answers take more of it."""
        model = self.model
        image = self.image_bytes()
        fields: dict[str, int] = {"images": image, "labels": 8, "logits": 4 * model.head_size}
        names = model.memory.row_type._fields if model.memory is not None else ("images",)
        row = sum(fields[name] for name in names)
        replay, self.held_room = model.plan.budget.rooms(model.plan.learner.val > 0, row, image + 16)
        if model.memory is not None and model.memory.capacity != replay:
            if replay < 1:
                raise ConfigError(f"a memory of {model.plan.budget} has no room to replay; give more")
            model.memory.resize(replay)

    def image_bytes(self) -> int:
        images, how = self.chunk.inputs[:PROBED], self.model.plan.learner.store
        if how == "raw" or len(self.model.shape) == 1:
            return images[0].nbytes
        return -(-sum(map(len, codec.encode(images, how))) // len(images))

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

        def restore() -> None:
            model.method.load_state_dict(state["method"])
            for name, generator in model.generators.items():
                generator.set_state(state["generators"][name])

        restore()
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress, self.restore = TaskProgress.of_state(state["progress"], model.device), restore

    def finish(self, max_drop: float) -> Report:
        """Judge the model as it is now, and keep what later lessons are judged by."""
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

    def usable(self, guard: Chunk) -> Chunk:
        """The guard set without classes that nobody knows; samples that are learnt too are told."""
        known = {*self.model.labels, *self.chunk.labels}
        foreign = sorted({str(label) for label in guard.labels if label not in known})
        if foreign:
            self.notes.append(
                f"guard: {len(foreign)} unknown classes are left out ({', '.join(foreign[:5])})"
            )
            guard = guard.take(
                torch.tensor([row for row, label in enumerate(guard.labels) if label in known])
            )
        learnt = set(digests(self.chunk.inputs)) | set(self.model.origins)
        twins = [
            source
            for source, name in zip(guard.sources, digests(guard.inputs), strict=True)
            if name in learnt
        ]
        if twins:
            self.notes.append(
                f"guard: {len(twins)} of {len(guard.labels)} samples are in the training data too, such as "
                f"{twins[0]}; they flatter the result"
            )
        return guard

    def remember(self) -> None:
        """Held-out samples within the budget, and the origin of everything kept."""
        model, fresh = self.model, self.fresh
        parts = zip(
            (self.kept.images, self.kept.columns, self.kept.keys),
            (fresh.images, fresh.columns, fresh.keys),
            strict=True,
        )
        joined = HeldOut(*(torch.cat(pair) for pair in parts))
        # One of each class, then a second of each, ...: where room ends, it ends for all classes alike.
        order = np.lexsort((joined.keys.numpy(), ranks(joined.columns, joined.keys).numpy()))[
            : self.held_room
        ]
        model.held = joined.take(torch.from_numpy(np.sort(order)))
        self.store_as_kept()
        self.trace()
        self.fit_budget()

    def store_as_kept(self) -> None:
        """What JPEG loses is lost now, not at the next start: a model in use and a loaded one stay equal."""
        model = self.model
        if model.plan.learner.store != "jpeg" or len(model.shape) == 1:
            return
        names = set(model.files)
        for images in self.sample_tensors():
            rows = [row for row, name in enumerate(digests(images)) if name not in names]
            if rows:
                files = codec.encode(images[rows], "jpeg")
                decoded = codec.decode(files, model.shape)
                self.renamed |= dict(zip(digests(decoded), digests(images[rows]), strict=True))
                model.files |= dict(zip(digests(decoded), files, strict=True))
                images[rows] = decoded.to(images.device)

    def sample_tensors(self) -> list[Tensor]:
        memory = self.model.memory
        replayed = [memory.rows.images] if memory is not None and len(memory) else []
        return [*replayed, self.model.held.images]

    def trace(self) -> None:
        """Every sample kept has an origin; those of samples that are gone are forgotten."""
        model, chunk = self.model, self.chunk
        rows: dict[str, int] = {}
        for row, name in enumerate(digests(chunk.inputs)):
            rows.setdefault(name, row)
        found: dict[str, Origin] = {}
        for images in self.sample_tensors():
            for name in digests(images):
                if name in found:
                    continue
                if name in model.origins:
                    found[name] = model.origins[name]
                else:
                    row = rows[self.renamed.get(name, name)]
                    found[name] = Origin(model.next_id, chunk.sources[row], chunk.labels[row], model.lessons)
                    model.next_id += 1
        model.origins = found
        model.files = {name: data for name, data in model.files.items() if name in found}

    def fit_budget(self) -> None:
        """Encoded images differ in size: rows leave at random until all fit."""
        model, limit = self.model, self.model.plan.budget.bytes
        if limit is None or model.plan.learner.store == "raw" or model.memory is None:
            return
        generator = self.generator("budget")
        while (used := sum(model.num_bytes().values())) > limit and len(model.memory) > 1:
            fitting = max(1, int(len(model.memory) * limit / used) - 1)
            model.memory.keep(draw_distinct(len(model.memory), fitting, generator).sort().values)

    def generator(self, name: str) -> torch.Generator:
        return derive_generator(self.model.plan.learner.seed, f"{name} {self.model.lessons}")


def ranks(columns: Tensor, keys: Tensor) -> Tensor:
    """The place of each sample in its class, by key."""
    order = np.lexsort((keys.numpy(), columns.numpy()))
    sizes = np.bincount(columns.numpy()) if len(columns) else np.empty(0, np.int64)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    found = np.empty(len(columns), np.int64)
    found[order] = np.arange(len(columns)) - starts
    return torch.from_numpy(found)


def sort_key(label: Label) -> tuple[bool, Label]:
    return isinstance(label, str), label


def check_kinds(labels: Sequence[Label]) -> None:
    """1 and "1" side by side are one class for a person and two for a machine."""
    texts = {label for label in labels if isinstance(label, str)}
    twice = [label for label in labels if not isinstance(label, str) and str(label) in texts]
    if twice:
        raise DataError(
            f"labels: both {twice[0]} and '{twice[0]}' were met; use numbers or texts for all of them"
        )
