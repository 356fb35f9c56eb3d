"""A budget: how it is read, and how replay and judgement share it."""

import pytest

from strongreplay.errors import ConfigError
from strongreplay.models.budget import Budget
from strongreplay.models.settings import make_settings


@pytest.mark.parametrize(
    ("text", "samples", "size"),
    [
        (500, 500, None),
        ("500", 500, None),
        ("20MB", None, 20_000_000),
        ("1.5 KiB", None, 1536),
        ("7b", None, 7),
    ],
)
def test_a_budget_is_read(text: int | str, samples: int | None, size: int | None) -> None:
    assert Budget.parse(text) == Budget(samples, size)


@pytest.mark.parametrize(
    "text", ["", "-1", "1.5", "MB", "5 TB", "5 MBs", "nan", "9" * 5000, "9" * 5000 + "MB", "\udcff"]
)
def test_what_is_no_budget_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 500 or 20MB"):
        Budget.parse(text)
    with pytest.raises(ConfigError, match="such as 500 or 20MB"):
        make_settings({"learner.memory": text})


def test_a_fifth_of_a_budget_is_for_samples_to_judge_by() -> None:
    assert (Budget(500).replay_room(100, True), Budget(500).held_room(50, True)) == (400, 100)
    assert (Budget(500).replay_room(100, False), Budget(500).held_room(50, False)) == (500, 0)
    budget = Budget(bytes=1000)
    assert (budget.replay_room(100, True), budget.held_room(50, True)) == (8, 4)
    assert (budget.replay_room(100, False), budget.held_room(50, False)) == (10, 0)
    with pytest.raises(ConfigError, match="1,000 bytes has no room for one sample of 801"):
        budget.replay_room(801, True)
