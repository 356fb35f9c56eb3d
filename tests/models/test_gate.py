"""The gate: what an update may cost a class, and when the guard set decides."""

from strongreplay.models.gate import GUARD, HELD_OUT, Change, Verdict, compare, count_right


def test_the_gate_lets_through_what_equals_the_limit_and_nothing_more() -> None:
    labels = ["a"] * 10 + ["b"] * 10 + ["c"] * 10
    before = count_right(["a"] * 10 + ["b"] * 10 + ["a"] * 10, labels)
    after = count_right(["a"] * 9 + ["c"] + ["b"] * 9 + ["c"] * 11, labels)
    changes = tuple(compare(before, after, ["a", "b"], "guard"))
    assert [(change.label, change.before, change.after) for change in changes] == [
        ("a", 100, 90), ("b", 100, 90), ("c", None, 100)
    ]  # fmt: skip
    assert Verdict(changes, 10).passed
    assert [change.label for change in Verdict(changes, 9.9).fallen] == ["a", "b"]


def test_a_guard_set_decides_where_it_has_as_many_samples_as_were_held_out() -> None:
    def fallen(held: tuple[int, float], guard: tuple[int, float]) -> list[str]:
        changes = (Change("a", HELD_OUT, held[0], 100, held[1]), Change("a", GUARD, guard[0], 100, guard[1]))
        return [change.where for change in Verdict(changes, 10).fallen]

    assert fallen((25, 80), (100, 95)) == []
    assert fallen((25, 80), (10, 95)) == [HELD_OUT]
    assert fallen((25, 100), (10, 80)) == [GUARD]
    assert fallen((25, 80), (10, 70)) == [GUARD, HELD_OUT]
