"""Differences between two versions of a kept model."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from strongreplay.data.archives import OnProgress
from strongreplay.data.user_data import Label
from strongreplay.models.check import refuses_misfits
from strongreplay.models.gate import HELD_OUT, Change, compare, mark_answers
from strongreplay.models.memory_view import KINDS, all_images, digests_of, read_parts, samples_of
from strongreplay.models.parts import FROZEN, TO_ANSWER, model_of
from strongreplay.models.settings import OWN
from strongreplay.models.store import Store
from strongreplay.storage.records import flatten

CPU = torch.device("cpu")
NOT_WEIGHTS = ("running_mean", "running_var", "num_batches_tracked")  # of batch norm
Parts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """Samples of one class that only one of the two versions keeps."""

    label: Label
    replay_came: int
    replay_went: int
    held_out_came: int
    held_out_went: int


@dataclass(frozen=True, slots=True)
class LayerChange:
    layer: str
    change: float | None  # norm of the change divided by the norm before


@dataclass(frozen=True, slots=True)
class VersionDiff:
    first: str
    second: str
    new_classes: tuple[Label, ...]
    gone_classes: tuple[Label, ...]
    accuracy: tuple[Change, ...]  # of each class that both versions know, the largest loss first
    accuracy_note: str | None  # why `accuracy` is empty
    memory: tuple[MemoryChange, ...]
    weights: tuple[LayerChange, ...]  # the largest change first
    new_rows: int  # added to the head
    settings: Mapping[str, tuple[Any, Any]]  # those that differ

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        for change in plain["accuracy"]:
            del change["where"]
        return plain


@refuses_misfits
def diff_versions(
    store: Store, first: str, second: str, progress: OnProgress = lambda what, done, total: None
) -> VersionDiff:
    """Compare two versions. Accuracy is measured on held-out samples of either that neither replays."""
    wanted = (*TO_ANSWER, FROZEN, *KINDS)
    old, new = (read_parts(store, name, wanted)[1] for name in (first, second))
    old_labels, new_labels = (dict.fromkeys(parts["model"]["labels"]) for parts in (old, new))
    plans = [flatten(parts["model"]["plan"]) for parts in (old, new)]
    pairs = {key: (plans[0].get(key), plans[1].get(key)) for key in dict.fromkeys([*plans[0], *plans[1]])}
    accuracy, note = compare_accuracy(old, new, progress)
    return VersionDiff(
        first=first,
        second=second,
        new_classes=tuple(label for label in new_labels if label not in old_labels),
        gone_classes=tuple(label for label in old_labels if label not in new_labels),
        accuracy=tuple(accuracy),
        accuracy_note=note,
        memory=tuple(compare_memory(old, new)),
        weights=tuple(compare_weights(old["net"], new["net"])),
        new_rows=len(new["net"]["head.bias"]) - len(old["net"]["head.bias"]),
        settings={key: pair for key, pair in pairs.items() if pair[0] != pair[1]},
    )


def compare_accuracy(old: Parts, new: Parts, progress: OnProgress) -> tuple[list[Change], str | None]:
    """Changes of the classes that both versions know, the largest loss first; or why there are none."""
    if old["model"]["shape"] != new["model"]["shape"]:
        return [], "the two take samples of different shapes"
    if OWN in [parts["model"]["plan"]["net"]["name"] for parts in (old, new)]:
        return [], "accuracy is not measured: a net of its user's own answers in Python alone"
    images, labels = common_held_out(old, new)
    if not labels:
        return [], "no sample is held out of a class that both know"
    tallies, done = [], 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress("judging", done, 2 * len(labels))

    for parts in (old, new):
        model = model_of({part: parts[part] for part in (*TO_ANSWER, FROZEN) if part in parts}, CPU)
        tallies.append(mark_answers(model.answers(images, advance), labels))
    changes = compare(tallies[0], tallies[1], labels, HELD_OUT)
    return sorted(changes, key=lambda change: -change.drop), None


def common_held_out(old: Parts, new: Parts) -> tuple[Tensor, list[Label]]:
    """Samples held out by one version and not replayed by the other, once each, of classes that both know."""
    both = {*old["model"]["labels"]} & {*new["model"]["labels"]}
    found = [
        list(zip(samples_of(each), digests_of(each), all_images(each), strict=True)) for each in (old, new)
    ]
    replayed = {name for rows in found for sample, name, _ in rows if sample.kind == "replay"}
    chosen = {
        name: (image, sample.label)
        for rows in found
        for sample, name, image in rows
        if name not in replayed and sample.label in both
    }
    images = [image for image, _ in chosen.values()]
    return torch.stack(images) if images else torch.empty(0), [label for _, label in chosen.values()]


def compare_memory(old: Parts, new: Parts) -> list[MemoryChange]:
    """Classes with samples that only one version keeps; two copies of an image are two samples."""
    before, after = map(count_pictures, (old, new))
    came, went = Counter[tuple[Label, str]](), Counter[tuple[Label, str]]()
    for counts, rest in ((came, after - before), (went, before - after)):
        for (_, label, kind), count in rest.items():
            counts[label, kind] += count
    labels = dict.fromkeys([*old["model"]["labels"], *new["model"]["labels"]])
    return [
        MemoryChange(
            label, came[label, "replay"], went[label, "replay"], came[label, HELD_OUT], went[label, HELD_OUT]
        )
        for label in labels
        if any(counts[label, kind] for counts in (came, went) for kind in KINDS.values())
    ]


def count_pictures(parts: Parts) -> Counter[tuple[str, Label, str]]:
    """The number of samples by image, label and use; a sample in several rows counts once."""
    rows = zip(digests_of(parts), samples_of(parts), strict=True)
    samples = {(digest, one.label, one.kind, one.id) for digest, one in rows}
    return Counter((digest, label, kind) for digest, label, kind, _ in samples)


def compare_weights(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> list[LayerChange]:
    """The change of each layer, the largest first. Rows that only one version has are ignored."""
    squares: dict[str, list[float]] = {}
    for key, before in old.items():
        layer, _, name = key.rpartition(".")
        after = new.get(key)
        if name in NOT_WEIGHTS or after is None or after.shape[1:] != before.shape[1:]:
            continue
        rows = min(len(before), len(after)) if before.dim() else None
        first, second = (
            tensor.double() if rows is None else tensor[:rows].double() for tensor in (before, after)
        )
        entry = squares.setdefault(layer, [0.0, 0.0])
        entry[0] += (second - first).square().sum().item()
        entry[1] += first.square().sum().item()
    changes = [
        LayerChange(layer, (moved / norm) ** 0.5 if norm else None)
        for layer, (moved, norm) in squares.items()
    ]
    return sorted(changes, key=lambda one: -(one.change or 0.0))
