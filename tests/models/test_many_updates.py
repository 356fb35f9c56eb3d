"""An update after many others takes no more room than an early one."""

from pathlib import Path

import pytest
from support.kept_models import some_digits, teach

from strongreplay.models.store import Store


@pytest.mark.slow
def test_a_model_does_not_grow_with_its_updates(tmp_path: Path) -> None:
    state, sizes = tmp_path / "model", list[int]()
    for number in range(14):
        images, labels = some_digits((0, 1, 2), 4 * number, 4)
        given = {"learner.memory": 12} if not number else {}
        teach(state, (images, labels), settings=given, accept=True, keep=2 if number == 5 else None)
        held = [path for path in state.rglob("*") if path.is_file() and path.name != "history.jsonl"]
        sizes.append(sum(path.stat().st_size for path in held))
    assert [version.name for version in Store(state).versions()] == ["v13", "v14"]
    assert max(sizes[7:]) < 1.1 * min(sizes[7:])
    assert len(list((state / "objects").iterdir())) <= 2 * 5  # parts with tensors
