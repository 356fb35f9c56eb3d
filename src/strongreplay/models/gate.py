"""The gate: the change of accuracy of each class by an update, and whether the update is accepted."""

from collections.abc import Sequence
from dataclasses import dataclass

from strongreplay.data.user_data import Label

HELD_OUT, GUARD = "held-out", "guard"
Tally = dict[Label, tuple[int, int]]  # class -> (correct predictions, samples)


@dataclass(frozen=True, slots=True)
class Change:
    """Accuracy of one class in per cent, on the same samples, before and after an update."""

    label: Label
    where: str  # HELD_OUT or GUARD
    count: int
    before: float | None  # None: the class was unknown before the update
    after: float

    @property
    def drop(self) -> float:
        return 0.0 if self.before is None else self.before - self.after


@dataclass(frozen=True, slots=True)
class Verdict:
    changes: tuple[Change, ...]
    max_drop: float

    @property
    def fallen(self) -> tuple[Change, ...]:
        """The old classes whose accuracy fell by more than the limit, the worst first."""
        guarded = {change.label: change.count for change in self.changes if change.where == GUARD}
        # A rounding error must not make a drop fail that equals the limit.
        found = [change for change in self.changes if change.drop > self.max_drop + 1e-9]
        # The guard set decides for a class if it has at least as many samples of it.
        found = [
            change for change in found if change.where == GUARD or change.count > guarded.get(change.label, 0)
        ]
        return tuple(sorted(found, key=lambda change: -change.drop))

    @property
    def passed(self) -> bool:
        return not self.fallen


def count_right(answers: Sequence[Label], labels: Sequence[Label]) -> Tally:
    counts: dict[Label, list[int]] = {}
    for answer, label in zip(answers, labels, strict=True):
        entry = counts.setdefault(label, [0, 0])
        entry[0] += answer == label
        entry[1] += 1
    return {label: (right, count) for label, (right, count) in counts.items()}


def compare(before: Tally, after: Tally, known: Sequence[Label], where: str) -> list[Change]:
    """The change of each class; classes not in `known` are new and have no accuracy before."""
    changes, known_labels = [], set(known)
    for label, (right, count) in after.items():
        earlier = 100 * before[label][0] / count if label in known_labels and label in before else None
        changes.append(Change(label, where, count, earlier, 100 * right / count))
    return changes
