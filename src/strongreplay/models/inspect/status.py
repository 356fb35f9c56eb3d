"""The status of a kept model: its classes, its memory and its versions."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from strongreplay.data.user_data import Label
from strongreplay.methods import METHODS
from strongreplay.models.budget import Budget
from strongreplay.models.check import refuses_misfits
from strongreplay.models.clean_up import stopped_update
from strongreplay.models.gate import Change, Tally
from strongreplay.models.learn import verdict_of
from strongreplay.models.memory_view import KINDS, Remembered, read_parts, samples_of
from strongreplay.models.store import CANDIDATE, Store, Version


@dataclass(frozen=True, slots=True)
class ClassStatus:
    label: Label
    learnt_in: str | None  # a version
    samples: int  # learnt so far, in the stored versions
    replay: int  # samples in the memory
    held_out: int
    bytes: int
    accuracy: float | None  # per cent
    judged_by: int  # number of samples for `accuracy`
    measured_in: str | None  # the version that measured `accuracy`


@dataclass(frozen=True, slots=True)
class KeptSamples:
    samples: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    budget: str
    room: int  # largest number of samples
    stored_as: str
    keeps: str  # what the method keeps, if it keeps no samples to replay; else empty
    is_features: bool  # samples are features of a frozen backbone, not images
    replay: KeptSamples
    held_out: KeptSamples


@dataclass(frozen=True, slots=True)
class VersionStatus:
    version: str
    written: str
    parent: str | None
    bytes: int
    shared_bytes: int  # bytes of files that other versions use too


@dataclass(frozen=True, slots=True)
class CandidateStatus:
    """A refused update that can still be accepted."""

    written: str
    parent: str | None
    data: str | None
    fallen: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class StoppedUpdate:
    written: str
    step: int | None


@dataclass(frozen=True, slots=True)
class ModelStatus:
    version: str
    written: str
    parent: str | None
    data: str | None  # the data that the user gave for this version
    net: Mapping[str, Any]
    method: str
    shape: tuple[int, ...]
    num_updates: int
    classes: tuple[ClassStatus, ...]
    known_since: str | None  # the oldest stored ancestor, if older ones were removed
    memory: MemoryStatus
    versions: tuple[VersionStatus, ...]
    bytes: int
    candidate: CandidateStatus | None
    stopped: StoppedUpdate | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON, with the keys that `ser status --json` prints."""
        plain = asdict(self, dict_factory=lambda pairs: {RENAMED.get(key, key): v for key, v in pairs})
        plain["memory"]["held-out"] = plain["memory"].pop("held_out")
        for key in ("keeps", "is_features"):  # left out if empty or false
            if not plain["memory"][key]:
                del plain["memory"][key]
        for change in (plain["candidate"] or {"fallen": ()})["fallen"]:
            for key in ("count", "lost", "gained"):
                del change[key]
        return plain


RENAMED = {"parent": "from", "num_updates": "lessons"}  # the keys of version 0.1


@refuses_misfits
def read_status(
    store: Store, name: str | None = None, tell: Callable[[str], None] = lambda text: None
) -> ModelStatus:
    """The status of the version in use, or of another. `tell` gets a message for each damaged version."""
    version, parts = read_parts(store, name)
    versions, model, samples = store.versions(tell), parts["model"], samples_of(parts)
    line, plan = list_ancestors(versions, version.name), model["plan"]
    entries = store.manifest(version.name)["parts"]
    replay, held_out = (
        KeptSamples(
            samples=sum(sample.kind == kind for sample in samples),
            bytes=entries[part]["bytes"] if part in entries else 0,
        )
        for part, kind in KINDS.items()
    )
    budget = str(Budget.parse(plan["learner"]["memory"]))
    return ModelStatus(
        version=version.name,
        written=version.written,
        parent=version.parent,
        data=find_data(store.history(), version.name),
        net={key: value for key, value in plan["net"].items() if value is not None},
        method=plan["learner"]["method"],
        shape=tuple(model["shape"]),
        num_updates=model["lessons"],
        classes=tuple(describe_classes(model, line, samples)),
        known_since=line[0].name if line and line[0].parent else None,
        memory=MemoryStatus(
            budget,
            model["capacity"],
            plan["learner"]["store"],
            what_is_kept(plan["learner"]["method"]),
            plan["net"].get("tune") in ("nothing", "head"),
            replay,
            held_out,
        ),
        versions=tuple(
            VersionStatus(one.name, one.written, one.parent, one.size, one.size - (one.own_size or 0))
            for one in versions
        ),
        bytes=count_bytes(store.folder),
        candidate=read_candidate(store),
        stopped=find_stopped(store),
    )


def what_is_kept(method: str) -> str:
    """Of a built-in method without a memory of samples, what it keeps instead."""
    row = METHODS.get(method)
    return row.keeps if row is not None and not row.has_memory else ""


def count_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # another process may be writing
            total += path.stat().st_size if path.is_file() else 0
    return total


def list_ancestors(versions: Sequence[Version], name: str) -> list[Version]:
    """A version and its stored ancestors, the oldest first."""
    known = {version.name: version for version in versions}
    line: list[Version] = []
    place: str | None = name
    while place in known:
        line.append(known.pop(place))
        place = line[-1].parent
    return line[::-1]


def find_data(history: Sequence[Mapping[str, Any]], name: str) -> str | None:
    """The data that the user gave for a version."""
    lines = [line for line in history if line.get("version") == name and line.get("data")]
    return next((line["data"] for line in lines if line.get("act") in ("learn", "accept")), None)


def describe_classes(
    model: Mapping[str, Any], line: Sequence[Version], samples: Sequence[Remembered]
) -> list[ClassStatus]:
    has_fixed_classes = model["plan"]["learner"]["classes"] is not None
    kept, sizes = Counter((sample.label, sample.kind) for sample in samples), Counter[Label]()
    for sample in samples:
        sizes[sample.label] += sample.bytes
    learnt: list[Counter[Label]] = [Counter(dict(map(tuple, one.about["chunk"]["samples"]))) for one in line]
    known = learnt if has_fixed_classes else [set(one.about["labels"]) for one in line]
    tallies = [(one.name, count_judged(one.about)) for one in reversed(line)]
    found = []
    for label in model["labels"]:
        right, count, measured_in = next(
            ((*counts[label], name) for name, counts in tallies if label in counts), (0, 0, None)
        )
        found.append(
            ClassStatus(
                label=label,
                learnt_in=next(
                    (v.name for v, labels in zip(line, known, strict=True) if label in labels), None
                ),
                samples=sum(counts[label] for counts in learnt),
                replay=kept[label, "replay"],
                held_out=kept[label, "held-out"],
                bytes=sizes[label],
                accuracy=100 * right / count if count else None,
                judged_by=count,
                measured_in=measured_in,
            )
        )
    return found


def count_judged(about: Mapping[str, Any]) -> Tally:
    """class -> (correct predictions, samples), on held-out samples, or else on the guard set."""
    guard: Tally = {}
    held: Tally = {}
    for change in about["changes"]:
        counts = round(change["after"] * change["count"] / 100), change["count"]
        (held if change["where"] == "held-out" else guard)[change["label"]] = counts
    for label, right, count in about["fresh"]:
        before = held.get(label, (0, 0))
        held[label] = before[0] + right, before[1] + count
    return guard | held


def read_candidate(store: Store) -> CandidateStatus | None:
    if CANDIDATE not in store.names():
        return None
    version, _ = store.read(CANDIDATE, parts=())
    refused = [line for line in store.history() if line.get("act") == "refuse"]
    data = refused[-1].get("data") if refused else None
    return CandidateStatus(version.written, version.parent, data, verdict_of(version.about).fallen)


def find_stopped(store: Store) -> StoppedUpdate | None:
    manifest = stopped_update(store)
    return StoppedUpdate(manifest["written"], manifest.get("step")) if manifest else None
