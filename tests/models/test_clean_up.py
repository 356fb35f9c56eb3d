"""An update that was killed between its commit and its clean-up is finished by the next command."""

from pathlib import Path

import pytest
from support.kept_models import ser, teach, write_folder

from strongreplay.models.clean_up import stopped_update
from strongreplay.models.store import CANDIDATE, WORK, Store
from strongreplay.storage.state import write_checkpoint


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A model as a process leaves it that is killed after its commit: candidate and checkpoints stay."""
    state = tmp_path / "model"
    teach(state, write_folder(tmp_path / "january", (0, 1), 0, 20))
    refused = teach(state, write_folder(tmp_path / "march", (3,), 0, 20), max_drop=-200.0, level=1.0)
    assert refused.version is None
    store = Store(state)
    _, parts = store.read(CANDIDATE)
    made = teach(state, write_folder(tmp_path / "february", (1, 2), 30, 20), max_drop=200.0).version
    assert made is not None
    about = store.read(parts=())[0].about
    store.rollback("v1", {"act": "rollback"})
    store.stage(parts, about | {"lesson": "another"}, {"act": "refuse"})
    store.commit(store.read("v2")[1], about, {"act": "learn"})
    write_checkpoint(state / WORK, {"x": 1}, {"lesson": about["lesson"], "step": 3})
    return state


@pytest.mark.parametrize("data", ["february", "april"])
def test_the_next_update_finishes_it(data: str, killed: Path, tmp_path: Path) -> None:
    store = Store(killed)
    assert CANDIDATE in store.names()
    assert stopped_update(store) is None  # nothing is left to go on with
    folder = tmp_path / data if data == "february" else write_folder(tmp_path / data, (4,), 0, 20)
    outcome = teach(killed, folder, max_drop=200.0)
    assert outcome.version is not None
    assert outcome.version.name == ("v3" if data == "february" else "v4")
    assert not (killed / WORK).exists()
    assert CANDIDATE not in store.names()
    assert store.verify() == []


def test_an_update_that_is_not_done_still_asks_for_its_command(killed: Path, tmp_path: Path) -> None:
    write_checkpoint(killed / WORK, {"x": 1}, {"lesson": "not done", "step": 3})
    store = Store(killed)
    assert stopped_update(store) is not None
    said = ser("learn", killed, "--data", write_folder(tmp_path / "april", (4,), 0, 20))
    assert said.code == 1
    assert "finish it with the same command" in " ".join(said.err.split())
