"""learn: updates a model in a folder with new data. `ser learn` calls it.

Every minute a checkpoint is written to the store's `work` folder, so that repeating the command resumes a
killed update. The version in use changes only after a new one is complete and has passed the gate.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any

import torch

from strongreplay.data.layouts import split_data
from strongreplay.data.read_options import ReadOptions
from strongreplay.data.user_data import Chunk, Label, read_chunk
from strongreplay.errors import ConfigError
from strongreplay.models.build import first_model
from strongreplay.models.choice import NetChoice
from strongreplay.models.clean_up import finish_last_update
from strongreplay.models.cost import describe_cost
from strongreplay.models.features import FOLDER, FeatureCache
from strongreplay.models.gate import LEVEL, Change, Verdict, guessed
from strongreplay.models.labels import settle_case
from strongreplay.models.memory_view import first_free_id
from strongreplay.models.model import Model
from strongreplay.models.parts import model_of, parts_of, sample_bytes
from strongreplay.models.settings import check_used, make_settings
from strongreplay.models.store import CANDIDATE, WORK, Store, Version
from strongreplay.models.update import Report, Update, update_checkpoints
from strongreplay.storage import files
from strongreplay.storage.records import fingerprint
from strongreplay.training.events import Listener, Listeners
from strongreplay.training.trainer import report_loading

MAX_DROP = 10.0  # points


@dataclass(frozen=True, slots=True)
class LearnRequest:
    """The data to learn, and the options."""

    data: object
    guard: object = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # such as learner.memory or train.epochs
    side: int | None = None
    channels: int | None = None
    max_drop: float = MAX_DROP
    level: float = LEVEL  # of the test that a loss is no chance; 1: the limit decides alone
    accept: bool = False  # ignore the gate
    again: bool = False  # learn the same data again
    restart: bool = False  # discard a stopped update
    keep: int | None = None  # number of versions; None: as said before, or store.KEEP
    allow_outside: bool = False  # read files that links or absolute paths name outside of the folder
    skip_bad: bool = False  # go on without files that cannot be read
    case: str | None = None  # labels that differ in capitals only: merge, keep, or None, which asks


@dataclass(frozen=True, slots=True)
class LearnOutcome:
    """The new version, or one with the same data, or None if the update was refused."""

    version: Version | None
    report: Report | None
    seconds: float = 0.0


def learn(
    folder: Path, order: LearnRequest, device: torch.device, listeners: Iterable[Listener] = ()
) -> LearnOutcome:
    """Update the model in a folder; the first update creates it."""
    store = Store(folder)
    with store.locked():
        finish_last_update(store)
        return StoredUpdate(store, order, device, Listeners(listeners)).go()


class StoredUpdate:
    """An update of a model in a store."""

    def __init__(self, store: Store, order: LearnRequest, device: torch.device, listener: Listeners) -> None:
        self.store, self.order, self.listener = store, order, listener
        self.parts = split_data(order.data)
        for note in self.parts.notes:
            listener.on_message(note)
        self.options = ReadOptions(order.allow_outside, order.skip_bad, listener.on_message)
        self.work, self.base = store.folder / WORK, store.parent()
        self.version: Version | None = None
        if self.base:
            self.version, parts = store.read()
            self.model = model_of(parts, device)
            self.model.next_id = first_free_id(store)
            self.model.settings = self.model.settings.changed(order.settings)
            for note in self.model.notes:
                listener.on_message(note)
            if reader := self.model.reader:
                reader.cache = FeatureCache(store.folder / FOLDER, reader.backbone.key)
                reader.tell = listener.on_message
            self.chunk = self.read(self.parts.train)
        else:
            make_settings(order.settings)  # faults are told before the data are read
            choice = NetChoice(order.settings, device, listener.on_message, store.folder / FOLDER, order.side)
            chunk = read_chunk(
                self.parts.train,
                side=order.side,
                channels=order.channels,
                progress=report_loading(listener),
                choose=choice,
                options=self.options,
            )
            self.chunk = settle_case(chunk, choice.settings.get("learner.classes") or (), order.case)
            settings = make_settings(choice.settings)
            self.model = first_model(settings, self.chunk, device, backbone=choice.backbone)
            if choice.reader:
                self.model.reader = choice.reader
        check_used(order.settings, self.model.settings, len(self.model.stored_shape) == 1)
        self.name = fingerprint(
            {"base": self.base, "chunk": self.chunk.fingerprint, **self.model.settings.to_dict()}
        )

    def read(self, data: object, known: Sequence[Label] = ()) -> Chunk:
        model, order = self.model, self.order
        given = {"side": order.side, "channels": order.channels}
        held = dict(zip(("channels", "side"), model.shape, strict=False)) if len(model.shape) == 3 else {}
        for key, value in given.items():
            if value not in (None, held.get(key)):
                raise ConfigError(f"{key} was fixed as {held.get(key)} when the model was made, got {value}")
        chunk = read_chunk(
            data,
            shape=model.shape,
            progress=report_loading(self.listener),
            transform=model.reader,
            options=self.options,
        )
        return settle_case(chunk, [*model.labels, *dict.fromkeys(known)], order.case)

    def go(self) -> LearnOutcome:
        order, store, before = self.order, self.store, self.version
        if before and before.about["chunk"]["fingerprint"] == self.chunk.fingerprint and not order.again:
            return LearnOutcome(before, None)
        held = order.guard if order.guard is not None else self.parts.val
        guard = self.read(held, self.chunk.labels) if held is not None else None
        judged_by = guard.fingerprint if guard else None
        if waiting := self.waiting(judged_by):
            return waiting
        self.listener.on_message(f"read {self.describe_chunk()}")
        self.keep_features()
        began = time.perf_counter()
        if order.restart:
            files.remove_quietly(self.work)
        checkpoints = update_checkpoints(self.work, self.name)
        update = Update(self.model, self.chunk, guard, listeners=[self.listener], checkpoints=checkpoints)
        self.listener.on_message(
            describe_cost(self.model, len(update.task.train), before.about if before else {})
        )
        report = update.run(order.max_drop, order.level, order.accept)
        seconds = time.perf_counter() - began
        about = describe(self.model, self.chunk, report, self.name, seconds) | {"guard": judged_by}
        about |= store.policy(order.keep)
        passed = report.verdict.passed or order.accept
        act = {
            "act": "learn",
            "data": source_of(order.data),
            "samples": len(self.chunk),
            "accepted": order.accept,
        }
        if passed:
            version = store.commit(parts_of(self.model), about, act)
            store.drop_candidate()
            store.prune(order.keep)
        else:
            version = None
            store.stage(parts_of(self.model), about, act | {"act": "refuse"})
        files.remove_quietly(self.work)
        return LearnOutcome(version, report, seconds)

    def keep_features(self) -> None:
        """Tell how features were made, and keep them for the next reading of the same images."""
        if reader := self.model.reader:
            if text := reader.report():
                self.listener.on_message(text)
            if reader.cache:
                reader.cache.write()

    def describe_chunk(self) -> str:
        labels, known = list(dict.fromkeys(self.chunk.labels)), set(self.model.labels)
        new = [str(label) for label in labels if label not in known]
        more = ", ..." if len(new) > 5 else ""
        named = f" ({', '.join(new[:5])}{more})" if new else ""
        samples = f"{len(self.chunk)} sample{'' if len(self.chunk) == 1 else 's'}"
        classes = f"{len(labels)} class{'' if len(labels) == 1 else 'es'}"
        return f"{samples} of {classes}, {len(new)} of them new{named}"

    def waiting(self, judged_by: str | None) -> LearnOutcome | None:
        """The outcome of the same update if it was refused before with the same guard set; else None."""
        if CANDIDATE not in self.store.names():
            return None
        candidate, _ = self.store.read(CANDIDATE, parts=())
        same = (candidate.about["lesson"], candidate.about.get("guard")) == (self.name, judged_by)
        if not same or self.order.again:
            return None
        verdict = verdict_of(candidate.about, self.order.max_drop, self.order.level)
        report = Report(
            verdict, {}, (), 0, 0, [], ("the candidate of the same data, which was refused before",)
        )
        if not (verdict.passed or self.order.accept):
            return LearnOutcome(None, report)
        return LearnOutcome(self.store.accept({"act": "accept", "data": source_of(self.order.data)}), report)


def source_of(data: object) -> str:
    return Path(data).name if isinstance(data, str | Path) else type(data).__name__


def describe(model: Model, chunk: Chunk, report: Report, lesson: str, seconds: float) -> dict[str, Any]:
    """The description of a version, which can be read without loading it."""
    samples: dict[Any, int] = {}
    for label in chunk.labels:
        samples[label] = samples.get(label, 0) + 1
    return {
        "lesson": lesson,
        "number": model.num_updates,
        "labels": list(model.labels),
        "new_labels": list(report.new_labels),
        "chunk": {
            "fingerprint": chunk.fingerprint,
            "samples": [[label, count] for label, count in samples.items()],
            "learnt": report.num_learnt,
            "held_out": report.num_held,
        },
        "changes": [asdict(change) for change in report.verdict.changes],
        "fresh": [[label, *counts] for label, counts in report.fresh.items()],
        "max_drop": report.verdict.max_drop if isfinite(report.verdict.max_drop) else None,
        "level": report.verdict.level,
        "notes": list(report.notes),
        "terms": report.terms,
        "seconds": seconds,
        "bytes": sample_bytes(model),
        "net": model.settings.net.name,
        "method": model.settings.learner.method,
    }


def verdict_of(
    about: Mapping[str, Any], max_drop: float | None = None, level: float | None = None
) -> Verdict:
    """The verdict on an update, from its description; `max_drop` and `level` replace its own."""
    changes = tuple(Change(**change) for change in about["changes"])
    limit = about["max_drop"] if max_drop is None else max_drop
    # Version 0.1 had no test: the limit decided alone.
    level = about.get("level", 1.0) if level is None or "level" not in about else level
    return Verdict(changes, inf if limit is None else limit, level)


def guessed_labels(about: Mapping[str, Any]) -> tuple[list[Label], list[Label]]:
    """The new classes that an update did not learn, and those with too few samples to tell."""
    fresh = {label: (right, count) for label, right, count in about["fresh"]}
    return guessed(about["new_labels"], fresh, len(about["labels"]))
