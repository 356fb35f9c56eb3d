"""Labels and their columns: new ones come sorted behind the known, and kinds do not mix."""

import pytest

from strongreplay.data.user_data import Label
from strongreplay.errors import DataError
from strongreplay.models.labels import check_all_known, columns_of, with_new_labels


def test_new_labels_come_sorted_behind_the_known_ones() -> None:
    assert with_new_labels([], ["b", "a", "b"]) == ["a", "b"]
    assert with_new_labels(["z", "b"], ["c", "b", "a"]) == ["z", "b", "a", "c"]
    assert with_new_labels([7], ["x", 3]) == [7, 3, "x"]
    assert with_new_labels(["a"], ["a"]) == ["a"]


def test_every_label_has_the_column_of_its_place() -> None:
    columns = columns_of(["c", "z", "c"], ["z", "b", "c"])
    assert columns.tolist() == [2, 0, 2]


@pytest.mark.parametrize(("known", "arriving"), [([1], ["1"]), (["1"], [1]), ([], [1, "1"])])
def test_a_number_and_the_same_number_as_text_do_not_mix(known: list[Label], arriving: list[Label]) -> None:
    with pytest.raises(DataError, match="both 1 and '1' occur"):
        with_new_labels(known, arriving)


def test_a_fixed_set_of_classes_takes_no_other() -> None:
    check_all_known(["a", "b"], ["b", "b"])
    with pytest.raises(DataError, match="fixed to 2 classes and 'c' is none of them"):
        check_all_known(["a", "b"], ["a", "c"])
