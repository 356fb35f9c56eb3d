"""The guard set: unknown classes are left out, and samples that are learnt too are reported."""

import pytest
import torch

from strongreplay.data.user_data import Chunk
from strongreplay.errors import DataError
from strongreplay.models.guard import usable_guard

IMAGES = torch.arange(3, dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 1, 4, 4).contiguous()
GUARD = Chunk(IMAGES, ("a", "b", "c"), ("0.png", "1.png", "2.png"))


def test_a_guard_of_known_classes_is_used_as_it_is() -> None:
    guard, notes = usable_guard(GUARD, {"a", "b", "c"}, [IMAGES + 9])
    assert guard is GUARD
    assert notes == []


def test_unknown_classes_are_left_out_and_said() -> None:
    guard, notes = usable_guard(GUARD, {"b"}, [])
    assert guard.sources == ("1.png",)
    assert notes == ["guard: 2 unknown classes are left out (a, c)"]


def test_a_guard_without_any_known_class_is_refused() -> None:
    with pytest.raises(DataError, match="got only a, b, c; look at the labels, or leave the guard out"):
        usable_guard(GUARD, {"d"}, [])


def test_pictures_that_are_learnt_too_are_said() -> None:
    _, notes = usable_guard(GUARD, {"a", "b", "c"}, [IMAGES + 9, IMAGES[1:]])
    assert notes == [
        "guard: 2 of 3 samples are in the training data too, such as 1.png; they flatter the result"
    ]
