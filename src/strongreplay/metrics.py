"""METRICS: all metrics computed from an accuracy matrix, one row each. Nothing is changed in place.

A new metric is a function and a row here: records, commands, tables and verdicts read this table.

A matrix has a row for each task learnt and a column for each task tested: entry [i, t] is the accuracy in
per cent on task t after learning task i, NaN if it was not measured. Forward transfer uses the entries above
the diagonal; measures of forgetting use those on and below it. Joint training has a single row, because it
learns all tasks at once. Pure numpy.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]


def as_matrix(rows: list[list[float | None]]) -> Matrix:
    """A matrix from rows of any length; null and missing entries become NaN."""
    matrix = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for index, row in enumerate(rows):
        matrix[index, : len(row)] = [np.nan if value is None else value for value in row]
    return matrix


def average_accuracy(matrix: Matrix) -> float:
    """Mean accuracy over all tasks after the last one: (1/T) sum_t a[T, t]."""
    return float(np.mean(matrix[-1]))


def average_incremental_accuracy(matrix: Matrix) -> float:
    """Mean over all tasks of the accuracy after each: (1/T) sum_i (1/i) sum_{t <= i} a[i, t]."""
    return float(np.mean(accuracy_curve(matrix)))


def accuracy_curve(matrix: Matrix) -> list[float]:
    """Mean accuracy over the tasks seen so far, after each task."""
    learnt_at_once = matrix.shape[1] - len(matrix)  # 0, except for the single row of joint training
    return [float(np.mean(row[: index + 1 + learnt_at_once])) for index, row in enumerate(matrix)]


def _past(matrix: Matrix, rows: slice) -> Matrix:
    """Entries on and below the diagonal, for every task except the last; all others are NaN."""
    lower = np.where(np.tri(*matrix.shape) > 0, matrix, np.nan)
    return lower[rows, : matrix.shape[1] - 1]


def forgetting(matrix: Matrix) -> float | None:
    """As in the paper: mean over t < T of max over i in {t, ..., T-1} of a[i, t] - a[T, t]; can be < 0."""
    if len(matrix) < 2:
        return None
    best = np.nanmax(_past(matrix, slice(0, -1)), axis=0)
    return float(np.mean(best - matrix[-1, :-1]))


def forgetting_reference(matrix: Matrix) -> float | None:
    """As in the reference code: the maximum includes the final row, so it is never negative."""
    if len(matrix) < 2:
        return None
    best = np.nanmax(_past(matrix, slice(None)), axis=0)
    return float(np.mean(best - matrix[-1, :-1]))


def backward_transfer(matrix: Matrix) -> float | None:
    """Mean over tasks t < T of a[T, t] - a[t, t]."""
    if len(matrix) < 2:
        return None
    return float(np.mean(matrix[-1, :-1] - np.diag(matrix)[:-1]))


def forward_transfer(matrix: Matrix, untrained: Matrix) -> float | None:
    """Mean over tasks t > 1 of a[t-1, t] - b[t]; b[t] is the accuracy of the untrained net."""
    if len(matrix) < 2:
        return None
    return float(np.mean(np.diag(matrix, 1) - untrained[1:]))


@dataclass(frozen=True, slots=True)
class Metric:
    """A number computed from an accuracy matrix."""

    label: str  # as tables print it
    better: Literal["higher", "lower"]
    about: str
    compute: Callable[[Matrix, Matrix], float | None]  # from the matrix and the accuracies before training
    needs_all_rows: bool = True  # one row per task, which joint training and unfinished runs do not have

    @property
    def sign(self) -> Literal[1, -1]:
        """What a value is multiplied by so that more is better."""
        return 1 if self.better == "higher" else -1

    def best_of(self, values: Iterable[float]) -> float:
        return max(values, key=lambda value: self.sign * value)


METRICS: dict[str, Metric] = {
    "average_accuracy": Metric(
        "accuracy",
        "higher",
        "mean over all tasks after the last one",
        lambda matrix, untrained: None if np.isnan(matrix[-1]).any() else average_accuracy(matrix),
        needs_all_rows=False,
    ),
    "forgetting": Metric(
        "forgetting",
        "lower",
        "mean over all tasks except the last of the best accuracy before the end minus that at the end",
        lambda matrix, untrained: forgetting(matrix),
    ),
    "forgetting_reference": Metric(
        "forgetting (reference)",
        "lower",
        "forgetting as in the reference code, whose best accuracy includes the end; never negative",
        lambda matrix, untrained: forgetting_reference(matrix),
    ),
    "backward_transfer": Metric(
        "backward transfer",
        "higher",
        "mean over all tasks except the last of the accuracy at the end minus that just after the task",
        lambda matrix, untrained: backward_transfer(matrix),
    ),
    "forward_transfer": Metric(
        "forward transfer",
        "higher",
        "mean over all tasks except the first of the accuracy just before the task minus the untrained one",
        forward_transfer,
    ),
    "average_incremental_accuracy": Metric(
        "incremental accuracy",
        "higher",
        "mean over all tasks of the mean accuracy on the tasks so far, just after each task",
        lambda matrix, untrained: average_incremental_accuracy(matrix),
    ),
}


def compute(name: str, matrix: Matrix, untrained: Matrix) -> float | None:
    """The named metric; none if the matrix has too few rows for it."""
    metric = METRICS[name]
    if metric.needs_all_rows and len(matrix) != matrix.shape[1]:
        return None
    value = metric.compute(matrix, untrained)
    return None if value is None or np.isnan(value) else value


def compute_all(matrix: Matrix, untrained: Matrix) -> dict[str, float | None]:
    return {name: compute(name, matrix, untrained) for name in METRICS}
