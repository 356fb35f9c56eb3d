"""Labels and their columns: new ones come sorted behind the known, and kinds do not mix."""

import numpy as np
import pytest

from strongreplay.data.user_data import Chunk, Label, read_chunk
from strongreplay.errors import ConfigError, DataError
from strongreplay.models.labels import check_all_known, columns_of, settle_case, with_new_labels


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


def chunk_of(*labels: Label) -> Chunk:
    return read_chunk(np.zeros((len(labels), 2), np.float32), list(labels))


@pytest.mark.parametrize(("known", "arriving"), [([], ["cat", "Cat"]), (["CAT"], ["cat"]), (["ß"], ["SS"])])
def test_labels_that_differ_in_capitals_are_asked_about(known: list[Label], arriving: list[Label]) -> None:
    with pytest.raises(
        DataError, match=r"'\w+' and '\w+' differ in capitals only; .*--merge-case.*--keep-case"
    ) as told:
        settle_case(chunk_of(*arriving), known, None)
    assert all(f"'{label}'" in str(told.value) for label in {*known, *arriving})
    assert settle_case(chunk_of(*arriving), known, "keep").labels == tuple(arriving)
    merged = settle_case(chunk_of(*arriving), known, "merge").labels
    assert set(merged) == ({known[0]} if known else {"Cat"})


def test_known_labels_are_not_asked_about_again() -> None:
    for case in (None, "merge", "keep"):
        assert settle_case(chunk_of("cat", "Cat", 3), ["Cat", "cat"], case).labels == ("cat", "Cat", 3)
    assert settle_case(chunk_of("cafe\u0301"), ["cafe\u0301"], None).labels == (
        "cafe\u0301",
    )  # as it was learnt
    with pytest.raises(ConfigError, match="case must be merge or keep, got 'both'"):
        settle_case(chunk_of("a"), [], "both")


def test_a_fixed_set_of_classes_takes_no_other() -> None:
    check_all_known(["a", "b"], ["b", "b"])
    with pytest.raises(DataError, match="fixed to 2 classes and 'c' is none of them"):
        check_all_known(["a", "b"], ["a", "c"])
