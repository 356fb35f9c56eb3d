"""The gate: what an update may cost a class, on what evidence, and when the guard set decides."""

from itertools import product

import pytest
from scipy.stats import binomtest

from strongreplay.models.gate import (
    GUARD,
    HELD_OUT,
    LEVEL,
    Change,
    Tally,
    Verdict,
    compare,
    guessed,
    mark_answers,
)


def change(label: str, count: int, lost: int, gained: int = 0, where: str = HELD_OUT) -> Change:
    """All other answers are right before and after."""
    right = count - gained
    return Change(
        label, where, count, 100 * right / count, 100 * (right - lost + gained) / count, lost, gained
    )


def test_the_gate_lets_through_what_equals_the_limit_and_nothing_more() -> None:
    labels = ["a"] * 10 + ["b"] * 10 + ["c"] * 10
    before = mark_answers(["a"] * 10 + ["b"] * 10 + ["a"] * 10, labels)
    after = mark_answers(["a"] * 9 + ["c"] + ["b"] * 9 + ["c"] * 11, labels)
    changes = tuple(compare(before, after, ["a", "b"], "guard"))
    assert [(change.label, change.before, change.after) for change in changes] == [
        ("a", 100, 90), ("b", 100, 90), ("c", None, 100)
    ]  # fmt: skip
    assert [(change.lost, change.gained) for change in changes] == [(1, 0), (1, 0), (None, None)]
    assert Verdict(changes, 10, level=1).passed
    assert [change.label for change in Verdict(changes, 9.9, level=1).fallen] == ["a", "b"]


def test_a_guard_set_decides_where_it_has_as_many_samples_as_were_held_out() -> None:
    def fallen(held: tuple[int, float], guard: tuple[int, float]) -> list[str]:
        changes = (Change("a", HELD_OUT, held[0], 100, held[1]), Change("a", GUARD, guard[0], 100, guard[1]))
        return [change.where for change in Verdict(changes, 10, level=1).fallen]

    assert fallen((25, 80), (100, 95)) == []
    assert fallen((25, 80), (10, 95)) == [HELD_OUT]
    assert fallen((25, 100), (10, 80)) == [GUARD]
    assert fallen((25, 80), (10, 70)) == [GUARD, HELD_OUT]


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (1, 0), (3, 1), (5, 0), (5, 2), (2, 6)])
def test_chance_is_the_share_of_coin_tosses_with_as_many_losses(lost: int, gained: int) -> None:
    tosses = list(product((0, 1), repeat=lost + gained))
    expected = sum(sum(toss) >= lost for toss in tosses) / len(tosses)
    assert change("a", 20, lost, gained).chance == pytest.approx(expected)


def test_one_of_six_answers_is_no_evidence_and_five_of_six_are() -> None:
    one, five = (Verdict((change("a", 6, lost),), 10) for lost in (1, 5))
    assert one.passed
    assert [each.label for each in one.doubtful] == ["a"]
    assert [each.label for each in five.fallen] == ["a"]
    assert Verdict((change("a", 6, 1),), 10, level=1).fallen  # the limit alone


def test_a_loss_within_the_limit_passes_on_whatever_evidence() -> None:
    certain = change("a", 1000, 90)
    assert certain.chance < 1e-9
    assert Verdict((certain,), 10).passed


def test_all_old_classes_together_fall_where_no_single_one_has_samples_enough() -> None:
    few = tuple(change(label, 4, 2) for label in "abcde")
    verdict = Verdict((*few, Change("new", HELD_OUT, 4, None, 0.0)), 10)
    assert verdict.fallen == ()
    assert [(each.count, each.before, each.after, each.lost) for each in verdict.together] == [
        (20, 100, 50, 10)
    ]
    assert not verdict.passed
    assert Verdict(few[:2], 10).passed  # 4 of 8 answers: a chance of 1 in 16


def test_a_new_class_no_better_than_a_guess_is_not_learnt() -> None:
    fresh: Tally = {"a": (0, 10), "b": (2, 10), "c": (3, 10), "old": (0, 9)}
    assert guessed(["a", "b", "c", "unjudged"], fresh, 5) == (["a", "b"], [])
    assert guessed(["a"], {"a": (10, 10)}, 1) == ([], [])


@pytest.mark.parametrize(
    ("right", "count", "num_labels", "missed", "unsure"),
    [
        (1, 2, 2, False, True),  # guesses have both right with probability 1/4
        (0, 4, 2, False, True),  # 1/16
        (0, 5, 2, True, False),  # 1/32
        (0, 1, 20, True, False),  # 1/20, which is the level
        (0, 1, 19, False, True),
        (2, 2, 2, False, False),  # better than a guess, whatever that is worth
        (3, 10, 3, True, False),  # no better than a third
        (4, 10, 3, False, False),
    ],
)
def test_few_samples_do_not_tell_whether_a_class_was_learnt(
    right: int, count: int, num_labels: int, missed: bool, unsure: bool
) -> None:
    assert guessed(["a"], {"a": (right, count)}, num_labels) == (["a"] * missed, ["a"] * unsure)
    perfect = binomtest(count, count, 1 / num_labels, alternative="greater").pvalue
    assert not missed or perfect <= LEVEL
    assert not unsure or perfect > LEVEL
