"""The gate: the change of accuracy of each class by an update, and whether the update is accepted.

An old class has fallen if it lost more points than the limit and the loss is no matter of chance: the same
samples are answered before and after the update, and an exact McNemar test compares how many answers became
wrong and how many right. All old classes together are judged in the same way.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from strongreplay.data.user_data import Label

HELD_OUT, GUARD = "held-out", "guard"
LEVEL = 0.05  # a loss that chance explains with a higher probability is no evidence
ALL_OLD = "all old classes"
Tally = dict[Label, tuple[int, int]]  # class -> (correct predictions, samples)
Marks = dict[
    Label, list[bool]
]  # class -> whether each sample's prediction is correct, in the order of samples


@dataclass(frozen=True, slots=True)
class Change:
    """Accuracy of one class in per cent, on the same samples, before and after an update."""

    label: Label
    where: str  # HELD_OUT or GUARD
    count: int
    before: float | None  # None: the class was unknown before the update
    after: float
    lost: int | None = None  # answers that were right and are wrong now; None: not counted
    gained: int | None = None

    @property
    def drop(self) -> float:
        return 0.0 if self.before is None else self.before - self.after

    @property
    def chance(self) -> float:
        """The probability of such a loss, or a larger one, if losses and gains were equally likely.

        This is the exact one-sided McNemar test. 1 if the changed answers were not counted.
        """
        if self.lost is None or self.gained is None:
            return 1.0
        from scipy.stats import binom  # takes a third of a second, and most commands judge nothing

        return float(binom.sf(self.lost - 1, self.lost + self.gained, 0.5))


@dataclass(frozen=True, slots=True)
class Verdict:
    changes: tuple[Change, ...]
    max_drop: float
    level: float = LEVEL  # 1: the limit decides alone

    @property
    def fallen(self) -> tuple[Change, ...]:
        """The old classes that lost more than the limit, on evidence; the worst first."""
        return tuple(change for change in self.over_limit if change.chance <= self.level)

    @property
    def together(self) -> tuple[Change, ...]:
        """All old classes as one, if they lost more than the limit, on evidence."""
        found = filter(self.is_over, together_of(self.deciding))
        return tuple(change for change in found if change.chance <= self.level)

    @property
    def doubtful(self) -> tuple[Change, ...]:
        """The old classes that lost more than the limit on samples too few to exclude chance."""
        return tuple(change for change in self.over_limit if change.chance > self.level)

    @property
    def over_limit(self) -> list[Change]:
        return sorted(filter(self.is_over, self.deciding), key=lambda change: -change.drop)

    @property
    def deciding(self) -> list[Change]:
        """The changes that count: the guard set decides for a class if it has as many samples of it."""
        guarded = {change.label: change.count for change in self.changes if change.where == GUARD}
        return [
            change
            for change in self.changes
            if change.where == GUARD or change.count > guarded.get(change.label, 0)
        ]

    @property
    def passed(self) -> bool:
        return not (self.fallen or self.together)

    def reason(self) -> str:
        """Why the update was refused: the worst loss."""
        worst = (*self.fallen, *self.together)[0]
        name = worst.label if worst.label == ALL_OLD else f"class {worst.label!r}"
        return (
            f"{name} fell from {worst.before:.1f} to {worst.after:.1f} % on {worst.count} "
            f"{worst.where} samples, more than {self.max_drop:g} points"
        )

    def is_over(self, change: Change) -> bool:
        # A rounding error must not make a drop fail that equals the limit.
        return change.drop > self.max_drop + 1e-9


def together_of(changes: Sequence[Change]) -> list[Change]:
    """All old classes as one, on the held-out samples and on the guard set, where there are two or more."""
    found = []
    for where in (HELD_OUT, GUARD):
        old = [
            (change, change.before, change.lost, change.gained)
            for change in changes
            if change.where == where and change.before is not None
        ]
        lost = [lost for _, _, lost, _ in old if lost is not None]
        gained = [gained for _, _, _, gained in old if gained is not None]
        if len(old) < 2 or not len(lost) == len(gained) == len(old):
            continue
        count = sum(change.count for change, *_ in old)
        before = sum(before * change.count for change, before, *_ in old) / count
        after = sum(change.after * change.count for change, *_ in old) / count
        found.append(Change(ALL_OLD, where, count, before, after, sum(lost), sum(gained)))
    return found


def mark_answers(answers: Sequence[Label], labels: Sequence[Label]) -> Marks:
    marks: Marks = {}
    for answer, label in zip(answers, labels, strict=True):
        marks.setdefault(label, []).append(answer == label)
    return marks


def accuracy_of(marks: Iterable[Sequence[bool]]) -> float:
    """In per cent, over all samples."""
    right = [mark for each in marks for mark in each]
    return 100 * sum(right) / len(right)


def count_right(marks: Marks) -> Tally:
    return {label: (sum(right), len(right)) for label, right in marks.items()}


def compare(before: Marks, after: Marks, known: Sequence[Label], where: str) -> list[Change]:
    """The change of each class; classes not in `known` are new and have no accuracy before."""
    changes, known_labels = [], set(known)
    for label, now in after.items():
        accuracy, then = 100 * sum(now) / len(now), before.get(label)
        if label not in known_labels or then is None:
            changes.append(Change(label, where, len(now), None, accuracy))
            continue
        pairs = list(zip(then, now, strict=True))
        lost, gained = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
        changes.append(Change(label, where, len(now), 100 * sum(then) / len(now), accuracy, lost, gained))
    return changes


def guessed(
    new: Sequence[Label], fresh: Mapping[Label, tuple[int, int]], num_labels: int
) -> tuple[list[Label], list[Label]]:
    """The new classes whose held-out samples are recognised no better than by a guess among all classes.

    The first were not learnt. The second have too few samples to tell: by an exact binomial test at LEVEL,
    guesses might have had all of them right.
    """
    judged = ((label, *fresh[label]) for label in new if label in fresh)
    missed, unsure = list[Label](), list[Label]()
    for label, right, count in judged:
        if num_labels > 1 and right * num_labels <= count:
            (missed if num_labels**-count <= LEVEL else unsure).append(label)
    return missed, unsure
