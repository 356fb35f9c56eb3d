"""Hand-made matrices."""

import numpy as np
import pytest

from strongreplay import metrics

FALLING = metrics.as_matrix([[90], [50, 80], [40, 60, 70]])
RISING = metrics.as_matrix([[50], [60, 70], [65, 75, 80]])


def test_a_matrix_that_falls() -> None:
    assert metrics.average_accuracy(FALLING) == pytest.approx(56.6667, abs=1e-4)
    assert metrics.forgetting(FALLING) == 35
    assert metrics.forgetting_reference(FALLING) == 35
    assert metrics.backward_transfer(FALLING) == -35


def test_a_matrix_that_rises_tells_the_two_definitions_apart() -> None:
    assert metrics.forgetting(RISING) == -5
    assert metrics.forgetting_reference(RISING) == 0
    assert metrics.backward_transfer(RISING) == 10


def test_entries_above_the_diagonal_count_for_forward_transfer_only() -> None:
    matrix = metrics.as_matrix([[90, 30, None], [50, 80, 40], [40, 60, 70]])
    assert metrics.forward_transfer(matrix, np.array([10.0, 10, 20])) == 20
    assert metrics.forgetting(matrix) == 35  # a zero-shot 30 on task 2 is not a best result
    zero_shot_is_best = metrics.as_matrix([[90, 99, None], [50, 80, 40], [40, 60, 70]])
    assert metrics.forgetting(zero_shot_is_best) == 35


def test_accuracy_after_each_task() -> None:
    assert metrics.accuracy_curve(FALLING) == [90, 65, pytest.approx(56.6667, abs=1e-4)]


def test_average_incremental_accuracy_is_the_mean_of_the_curve() -> None:
    assert metrics.average_incremental_accuracy(FALLING) == pytest.approx((90 + 65 + 170 / 3) / 3)


def test_every_metric_is_none_where_its_rows_are_missing() -> None:
    untrained, found = np.array([10.0, 10, 20]), metrics.compute_all(FALLING, np.array([10.0, 10, 20]))
    assert list(found) == list(metrics.METRICS)
    assert found["average_incremental_accuracy"] == metrics.average_incremental_accuracy(FALLING)
    assert found["forgetting"] == 35
    assert found["forward_transfer"] is None  # nothing was measured above the diagonal
    joint = metrics.compute_all(metrics.as_matrix([[90, 80, 70]]), untrained)
    assert {name for name, value in joint.items() if value is not None} == {"average_accuracy"}
    unfinished = metrics.compute_all(metrics.as_matrix([[90, None, None], [50, 80, None]]), untrained)
    assert set(unfinished.values()) == {None}


def test_joint_training_has_one_row() -> None:
    joint = metrics.as_matrix([[90, 80, 70]])
    assert metrics.average_accuracy(joint) == 80
    assert metrics.accuracy_curve(joint) == [80]
    assert metrics.forgetting(joint) is metrics.backward_transfer(joint) is None
    assert metrics.forward_transfer(joint, np.zeros(3)) is metrics.forgetting_reference(joint) is None


def test_nothing_is_changed_in_place() -> None:
    before = FALLING.copy()
    metrics.forgetting(FALLING), metrics.forgetting_reference(FALLING), metrics.accuracy_curve(FALLING)
    assert np.array_equal(before, FALLING, equal_nan=True)
