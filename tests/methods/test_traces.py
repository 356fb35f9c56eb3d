"""ER, DER++ and SER do what they did when their traces were written: no change moves them unnoticed.

A step of these was held against the authors' code, to the bit (`docs/results.md`); the traces keep it so.
Another processor rounds in another order, hence a tolerance: 1e-12 in float64.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.traces import SETTINGS, repeat

TRACES = json.loads((Path(__file__).parents[1] / "fixtures" / "traces.json").read_text())


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_draws_and_weights_come_out(name: str) -> None:
    given, expected = TRACES["given"], TRACES["found"][name]
    found = repeat(name, given)
    assert found["draws"] == expected["draws"]
    for got, wanted, start in zip(found["weights"], expected["weights"], given["weights"], strict=True):
        assert distance(got, wanted) <= 1e-12
        assert distance(wanted, start) > 1e-4  # it has moved


@pytest.mark.parametrize(("name", "replaying"), [("er", 7), ("derpp", 7), ("ser", 4)])
def test_a_trace_reaches_replay(name: str, replaying: int) -> None:
    """All steps but the first replay; SER does so from the second task on. DER++ draws twice a step."""
    draws = [step for step in TRACES["found"][name]["draws"] if step]
    assert len(draws) == replaying
    assert {len(step) for step in draws} == {6 if name == "derpp" else 3}


def test_a_trace_tells_settings_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight of a term that is off by a hundredth is far outside the tolerance."""
    monkeypatch.setitem(SETTINGS, "ser", SETTINGS["ser"] | {"beta": 0.202})
    found = repeat("ser", TRACES["given"])["weights"]
    assert max(map(distance, found, TRACES["found"]["ser"]["weights"])) > 1e-7


def distance(first: Any, second: Any) -> float:
    return float((as_tensor(first) - as_tensor(second)).abs().max())


def as_tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)
