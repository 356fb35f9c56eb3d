"""Columns that came after a sample was stored are filled with the net's own answers, by hand."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from strongreplay.memory import Memory
from strongreplay.models.complete import complete_logits
from strongreplay.protocol import derive_generator

NAN = torch.nan


class Sample(NamedTuple):
    images: Tensor
    logits: Tensor


class Image(NamedTuple):
    images: Tensor


class Multiples(nn.Module):
    """Answers x with x, 2x, 3x, ...; in training mode with nothing of use."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.arange(1.0, num_classes + 1))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.factors * (NAN if self.training else 1)


def stub(memory: Memory[Any], num_classes: int) -> Any:
    net = Multiples(num_classes).train()
    return SimpleNamespace(
        memory=memory, method=SimpleNamespace(net=net), test_view=lambda images: images.float() / 10
    )


def grown_memory() -> Memory[Any]:
    """The images 10, 20 and 40; the first two were stored when there was one class, the last with three."""
    memory = Memory(Sample, 4, derive_generator(0, "memory"))
    memory.add(Sample(torch.tensor([[10.0], [20.0]]), torch.tensor([[5.0], [7.0]])))
    memory.widen("logits", 3)
    memory.add(Sample(torch.tensor([[40.0]]), torch.tensor([[0.5, 0.25, 0.125]])))
    return memory


@pytest.mark.parametrize("num_classes", [3, 5])  # the head may have grown further
def test_later_columns_are_the_answers_of_the_net_and_the_others_stay(num_classes: int) -> None:
    memory = grown_memory()
    assert memory.ragged
    complete_logits(stub(memory, num_classes))
    assert memory.rows.logits.tolist() == [[5.0, 2.0, 3.0], [7.0, 4.0, 6.0], [0.5, 0.25, 0.125]]
    assert not memory.ragged


def test_without_gaps_without_rows_and_without_logits_nothing_changes() -> None:
    memory = grown_memory()
    complete_logits(stub(memory, 3))
    before = memory.rows.logits.clone()
    complete_logits(stub(memory, 2))  # too narrow a net is not asked
    assert torch.equal(memory.rows.logits, before)
    complete_logits(stub(Memory(Sample, 4, derive_generator(0, "memory")), 3))
    images = Memory(Image, 4, derive_generator(0, "memory"))
    images.add(Image(torch.ones(2, 1)))
    images.ragged = True
    complete_logits(stub(images, 3))
    assert images.rows.images.tolist() == [[1.0], [1.0]]
