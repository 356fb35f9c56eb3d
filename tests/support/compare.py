"""Equality of trees of tensors to the bit."""

from typing import Any

import torch


def assert_same(first: Any, second: Any, where: str = "") -> None:
    """Two trees of tensors and plain values, equal to the bit."""
    assert type(first) is type(second), where
    if isinstance(first, torch.Tensor):
        unset = first.isnan() & second.isnan() if first.is_floating_point() else torch.zeros(())
        assert first.shape == second.shape, where
        assert ((first == second) | (unset != 0)).all(), where
    elif isinstance(first, dict):
        assert first.keys() == second.keys(), where
        for key in first:
            assert_same(first[key], second[key], f"{where}/{key}")
    elif isinstance(first, list | tuple):
        assert len(first) == len(second), where
        for number, (a, b) in enumerate(zip(first, second, strict=True)):
            assert_same(a, b, f"{where}/{number}")
    else:
        assert first == second, where
