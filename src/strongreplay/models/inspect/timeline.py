"""The accuracy of every class over the versions, and the classes that need attention."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from strongreplay.data.user_data import Label
from strongreplay.models.gate import Tally
from strongreplay.models.inspect.status import ClassStatus, count_judged, list_ancestors
from strongreplay.models.store import Version

FEW = 20  # learnt samples; a class with fewer is marked
FALL = 5.0  # points of accuracy below the best ancestor; a class with a larger fall is marked


@dataclass(frozen=True, slots=True)
class MeasuredAccuracy:
    """The accuracy of a class in a version, in per cent, and the number of samples it was measured on."""

    version: str
    accuracy: float
    judged_by: int


@dataclass(frozen=True, slots=True)
class ClassLine:
    label: Label
    samples: int
    replay: int
    held_out: int
    points: tuple[
        MeasuredAccuracy, ...
    ]  # the oldest first; versions that did not measure the class are left out
    marks: tuple[str, ...]  # why the class needs attention

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_timeline(
    versions: Sequence[Version], in_use: str, classes: Sequence[ClassStatus]
) -> list[ClassLine]:
    """A line for each class of the version in use, over all stored versions."""
    tallies = {version.name: count_judged(version.about) for version in versions}
    line = [version.name for version in list_ancestors(versions, in_use)]
    found = []
    for one in classes:
        points = tuple(points_of(tallies, one.label))
        marks = find_marks(one, [point for point in points if point.version in line])
        found.append(ClassLine(one.label, one.samples, one.replay, one.held_out, points, tuple(marks)))
    return found


def points_of(tallies: Mapping[str, Tally], label: Label) -> list[MeasuredAccuracy]:
    return [
        MeasuredAccuracy(name, 100 * tally[label][0] / tally[label][1], tally[label][1])
        for name, tally in tallies.items()
        if tally.get(label, (0, 0))[1]
    ]


def find_marks(one: ClassStatus, points: Sequence[MeasuredAccuracy]) -> list[str]:
    marks = []
    if one.samples < FEW:
        marks.append(f"few samples: {one.samples}")
    if not one.held_out:
        marks.append("no held-out samples")
    best = max(points, key=lambda point: point.accuracy, default=None)
    if best and (fall := best.accuracy - points[-1].accuracy) > FALL:
        marks.append(f"fell by {fall:.1f} points since {best.version}")
    return marks
