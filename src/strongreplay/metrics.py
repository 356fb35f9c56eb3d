"""From an accuracy matrix to numbers. Pure numpy; nothing is changed in place.

A matrix has a row for each task learnt and a column for each task tested: entry [i, t] is the accuracy in
per cent on task t after learning task i, NaN where it was not measured. Entries above the diagonal are
forward transfer; the measures of forgetting read on and below it only. Joint training has one row, its
tasks all learnt at once.
"""

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]


def as_matrix(rows: list[list[float | None]]) -> Matrix:
    """A matrix from rows of any length, null and missing entries as NaN."""
    matrix = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for index, row in enumerate(rows):
        matrix[index, : len(row)] = [np.nan if value is None else value for value in row]
    return matrix


def average_accuracy(matrix: Matrix) -> float:
    """Mean accuracy over all tasks after the last one: (1/T) sum_t a[T, t]."""
    return float(np.mean(matrix[-1]))


def accuracy_curve(matrix: Matrix) -> list[float]:
    """Mean accuracy over the tasks seen so far, after each task."""
    learnt_at_once = matrix.shape[1] - len(matrix)  # 0, but for the single row of joint training
    return [float(np.mean(row[: index + 1 + learnt_at_once])) for index, row in enumerate(matrix)]


def _past(matrix: Matrix, rows: slice) -> Matrix:
    """Rows on and below the diagonal, for every task but the last; the rest NaN."""
    lower = np.where(np.tri(*matrix.shape) > 0, matrix, np.nan)
    return lower[rows, : matrix.shape[1] - 1]


def forgetting(matrix: Matrix) -> float | None:
    """The paper's: mean over t < T of max over i in {t, ..., T-1} of a[i, t] - a[T, t]; may be negative."""
    if len(matrix) < 2:
        return None
    best = np.nanmax(_past(matrix, slice(0, -1)), axis=0)
    return float(np.mean(best - matrix[-1, :-1]))


def forgetting_reference(matrix: Matrix) -> float | None:
    """As the reference code counts it: the maximum includes the final row, so it is never negative."""
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
    """Mean over tasks t > 1 of a[t-1, t] - b[t], b[t] the accuracy of the net before any training."""
    if len(matrix) < 2:
        return None
    return float(np.mean(np.diag(matrix, 1) - untrained[1:]))
