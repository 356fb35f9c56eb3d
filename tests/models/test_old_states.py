"""The state of a stopped update that version 0.1 wrote: its rows get the ids of the samples they hold."""

import torch

from strongreplay.models.old_states import with_ids


def images(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()


def test_rows_are_found_among_kept_samples_and_then_in_the_chunk() -> None:
    kept, chunk = (images(1, 2), torch.tensor([11, 12])), (images(2, 3, 3), torch.tensor([20, 21, 22]))
    state = {"memory.images": images(3, 2, 1, 0), "net.weight": torch.zeros(2)}
    found = with_ids(state, [kept, chunk])
    assert found["memory.ids"].tolist() == [21, 12, 11, -1]
    assert found["net.weight"] is state["net.weight"]
    assert "memory.ids" not in state


def test_a_state_with_ids_or_without_a_memory_stays_as_it_is() -> None:
    for state in ({"net.weight": 1}, {"memory.images": images(1), "memory.ids": torch.tensor([7])}):
        assert with_ids(state, []) is state
