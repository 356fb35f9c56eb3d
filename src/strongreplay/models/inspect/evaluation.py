"""Evaluate a version on labelled data, by class, and compare it with another version."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from strongreplay.data.archives import OnProgress
from strongreplay.data.labels import normalise
from strongreplay.data.layouts import choose_test_data
from strongreplay.data.read_options import STRICT, ReadOptions
from strongreplay.data.user_data import Chunk, Label, read_chunk
from strongreplay.models.features import FOLDER, FeatureCache
from strongreplay.models.load import load_model
from strongreplay.models.model import Model
from strongreplay.models.store import Store

NO_VERSION = "none"  # as `against`: compare with no other version


@dataclass(frozen=True, slots=True)
class Answers:
    """The predictions of one version."""

    version: str
    known: Mapping[Label, int]  # the labels of the version and their columns
    pairs: Mapping[tuple[Label, Label], int]  # (label, prediction) -> count

    def right(self, label: Label) -> int:
        return self.pairs.get((label, label), 0)


@dataclass(frozen=True, eq=False)
class Evaluation(Mapping[Label, tuple[int, int]]):
    """Maps each class to (correct predictions, samples); also holds the predictions of another version."""

    answers: Answers
    other: Answers | None = None
    note: str | None = None  # which part of the data it is, and why there is no other version

    def __getitem__(self, label: Label) -> tuple[int, int]:
        count = self.counts[label]
        return self.answers.right(label), count

    def __iter__(self) -> Iterator[Label]:
        return iter(self.counts)

    def __len__(self) -> int:
        return len(self.counts)

    @cached_property
    def counts(self) -> dict[Label, int]:
        """Samples of each class."""
        found: dict[Label, int] = {}
        for (label, _), count in self.answers.pairs.items():
            found[label] = found.get(label, 0) + count
        return found

    @property
    def unknown(self) -> list[Label]:
        """The classes of the data that the version does not know; all their samples count as errors."""
        return [label for label in self.counts if label not in self.answers.known]

    @property
    def old(self) -> list[Label]:
        """The classes of the data that the other version knows."""
        return [label for label in self.counts if self.other and label in self.other.known]

    @property
    def accuracy(self) -> float:
        """Per cent of all samples."""
        return per_cent_right(self.answers, self.counts)

    def before(self, label: Label) -> float | None:
        """Accuracy of the other version on a class, in per cent; None if it does not know the class."""
        if self.other is None or label not in self.other.known:
            return None
        return per_cent_right(self.other, {label: self.counts[label]})

    def after(self, label: Label) -> float:
        return per_cent_right(self.answers, {label: self.counts[label]})

    def old_accuracies(self) -> tuple[float, float] | None:
        """On the classes that the other version knows: the accuracy of the other version, and of this one."""
        counts = {label: self.counts[label] for label in self.old}
        if self.other is None or not counts:
            return None
        return per_cent_right(self.other, counts), per_cent_right(self.answers, counts)

    def mistakes(self) -> list[tuple[Label, Label, int]]:
        """(label, wrong prediction, count), the most frequent first."""
        wrong = [(label, answer, n) for (label, answer), n in self.answers.pairs.items() if label != answer]
        return sorted(wrong, key=lambda entry: -entry[2])

    def to_dict(self) -> dict[str, Any]:
        before, after = self.old_accuracies() or (None, None)
        return {
            "version": self.answers.version,
            "against": self.other.version if self.other else None,
            "samples": sum(self.counts.values()),
            "accuracy": self.accuracy,
            "accuracy_old": after,
            "accuracy_old_before": before,
            "unknown": self.unknown,
            "classes": [
                {
                    "label": label,
                    "samples": count,
                    "right": right,
                    "accuracy": self.after(label),
                    "before": self.before(label),
                }
                for label, (right, count) in self.items()
            ],
            "confusion": [[label, answer, count] for (label, answer), count in self.answers.pairs.items()],
        }


def per_cent_right(answers: Answers, counts: Mapping[Label, int]) -> float:
    return 100 * sum(map(answers.right, counts)) / sum(counts.values())


def evaluate_versions(
    store: Store,
    data: object,
    version: str | None,
    against: str | None,
    device: torch.device,
    progress: OnProgress | None = None,
    options: ReadOptions = STRICT,
) -> Evaluation:
    """Evaluate a version, and compare it with `against`, by default the version it was learnt from.

    Of a folder with train/, val/ and test/, the part test is evaluated, or else val.
    """
    found, model = load_model(store, version, device)
    data, chosen = choose_test_data(data)
    other, notes = against or found.parent, [chosen, *model.notes]
    if against is None and other is not None and other not in store.names():
        notes.append(f"{other}, from which {found.name} was learnt, is not kept any more")
        other = None
    beside = load_model(store, other, device) if other not in (None, NO_VERSION) else None
    if reader := model.reader:
        reader.cache = FeatureCache(store.folder / FOLDER, reader.backbone.key)  # read, not written
    chunk = read_chunk(data, shape=model.shape, progress=progress, transform=model.reader, options=options)
    answers = collect_answers(found.name, model, chunk, progress)
    others = collect_answers(beside[0].name, beside[1], chunk, progress) if beside else None
    return Evaluation(answers, others, "; ".join(filter(None, notes)) or None)


def collect_answers(version: str, model: Model, chunk: Chunk, progress: OnProgress | None = None) -> Answers:
    """Predict a chunk. Folder names such as "1" count as numbers if the model learnt numbers."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress("answering", done, len(chunk))

    answers = model.answers(chunk.inputs, advance)
    known = {normalise(str(label)): label for label in model.labels}
    labels = (known.get(str(label), label) for label in chunk.labels)
    return Answers(
        version,
        {label: k for k, label in enumerate(model.labels)},
        Counter(zip(labels, answers, strict=True)),
    )
