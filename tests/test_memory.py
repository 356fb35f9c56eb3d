"""The reservoir is algorithm R to the draw, and uniform by chi-square."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from strongreplay.errors import RunError
from strongreplay.memory import ChoosyMemory, Memory
from strongreplay.sampling import draw_distinct, next_entrant, reservoir_slots


class PaperCell(NamedTuple):
    images: Tensor
    labels: Tensor


def items(numbers: Tensor) -> PaperCell:
    return PaperCell(numbers.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2), numbers)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_by_one(count: int, capacity: int, draws: Tensor) -> list[int]:
    """Vitter's algorithm R, as a book has it."""
    kept: list[int] = []
    for n in range(count):
        if n < capacity:
            kept.append(n)
        elif (r := int(draws[n] * (n + 1))) < capacity:
            kept[r] = n
    return kept


@pytest.mark.parametrize("batch_size", [1, 7, 32, 200])
@pytest.mark.parametrize("capacity", [1, 10, 64])
def test_batches_equal_the_one_by_one_algorithm_on_the_same_draws(batch_size: int, capacity: int) -> None:
    memory = Memory(PaperCell, capacity, generator(3))
    for numbers in torch.arange(200).split(batch_size):
        memory.add(items(numbers))
    draws = torch.rand(200, dtype=torch.float64, generator=generator(3))
    assert memory.rows.labels.tolist() == one_by_one(200, capacity, draws)
    assert memory.rows.images[:, 0, 1, 1].tolist() == memory.rows.labels.tolist()
    assert memory.num_seen == 200


def chi_square(counts: npt.NDArray[np.float64], repeats: int, capacity: int) -> float:
    """Of inclusion counts, corrected for repeats of exactly `capacity` items; N - 1 degrees of freedom."""
    share = capacity / len(counts)
    expected = repeats * share
    statistic = ((counts - expected) ** 2).sum() / (expected * (1 - share)) * (len(counts) - 1) / len(counts)
    return float(statistic)


@pytest.mark.parametrize("batch_size", [5, 8, 50])
def test_inclusion_is_uniform(batch_size: int) -> None:
    counts, source = np.zeros(50), generator(1)
    for _ in range(4000):
        slots = np.full(10, -1)
        for start in range(0, 50, batch_size):
            size = min(batch_size, 50 - start)
            draws = torch.rand(size, dtype=torch.float64, generator=source)
            chosen = reservoir_slots(start, draws.numpy(), 10)
            for place, slot in enumerate(chosen):
                if slot < 10:
                    slots[slot] = start + place
        counts[slots] += 1
    assert chi_square(counts, 4000, 10) < 85.4  # 99.9 % of 49 degrees of freedom


@pytest.mark.slow
def test_the_chi_square_sees_the_usual_mistake() -> None:
    """Drawing from {0..n-1} instead of {0..n} favours late items; the statistic above must tell."""
    counts, source = np.zeros(50), generator(1)
    for _ in range(4000):
        slots = np.arange(10)
        for n in range(10, 50):
            if (r := int(torch.rand(1, dtype=torch.float64, generator=source) * n)) < 10:
                slots[r] = n
        counts[slots] += 1
    assert chi_square(counts, 4000, 10) > 85.4


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [1, 10])
def test_every_item_enters_with_its_own_probability_though_few_draws_are_made(capacity: int) -> None:
    """Counts of entries of item n are binomial with capacity / (n + 1), independent of each other."""
    counts, source, repeats = np.zeros(50), generator(1), 4000
    for _ in range(repeats):
        number = next_entrant(capacity, capacity, source)
        while number < 50:
            counts[number] += 1
            number = next_entrant(number + 1, capacity, source)
    share = capacity / np.arange(capacity + 1, 51)
    expected, spread = repeats * share, repeats * share * (1 - share)
    freedom = 50 - capacity
    statistic = float(((counts[capacity:] - expected) ** 2 / spread).sum())
    assert abs(statistic - freedom) < 3.3 * (2 * freedom) ** 0.5
    assert not counts[:capacity].any()


@pytest.mark.parametrize("batch_size", [1, 7, 200])
def test_entrants_do_not_depend_on_how_the_stream_is_cut_or_on_a_reload(batch_size: int) -> None:
    whole = ChoosyMemory(PaperCell, 10, generator(3))
    expected = list(whole.entrants(200))
    found, memory = [], ChoosyMemory(PaperCell, 10, generator(3))
    for numbers in torch.arange(200).split(batch_size):
        found += [place + int(numbers[0]) for place in memory.entrants(len(numbers))]
        state, memory = memory.get_extra_state(), ChoosyMemory(PaperCell, 10, generator(0))
        memory.set_extra_state(state)
    assert found == expected
    assert expected[0] >= 10
    assert list(ChoosyMemory(PaperCell, 0, generator(3)).entrants(200)) == []


def test_samples_are_distinct_uniform_and_at_most_what_is_there() -> None:
    memory = Memory(PaperCell, 50, generator(5))
    memory.add(items(torch.arange(3)))
    assert sorted(memory.sample(10).labels.tolist()) == [0, 1, 2]
    memory.add(items(torch.arange(3, 50)))
    counts = np.zeros(50)
    for _ in range(4000):
        labels = memory.sample(10).labels.numpy()
        assert len(np.unique(labels)) == 10
        counts[labels] += 1
    assert chi_square(counts, 4000, 10) < 85.4


@pytest.mark.parametrize("population", [5, 21, 1000])
def test_draw_distinct_in_both_regimes(population: int) -> None:
    source, counts = generator(2), np.zeros(population)
    for _ in range(3000):
        drawn = draw_distinct(population, 5, source).numpy()
        assert len(np.unique(drawn)) == 5
        counts[drawn] += 1
    first = [int(draw_distinct(population, 5, source)[0]) for _ in range(3000)]
    assert abs(np.mean(first) - (population - 1) / 2) < 4 * population / np.sqrt(12 * 3000)
    if population > 5:
        assert chi_square(counts, 3000, 5) < population - 1 + 5 * np.sqrt(2 * (population - 1))


def test_put_append_take_and_keep() -> None:
    memory = Memory(PaperCell, 6, generator())
    memory.append(items(torch.arange(4)))
    memory.append(items(torch.tensor([7])))
    memory.put(torch.tensor([1, 5]), items(torch.tensor([11, 15])))
    assert memory.rows.labels.tolist() == [0, 11, 2, 3, 7, 15]
    assert memory.take(torch.tensor([5, 0])).labels.tolist() == [15, 0]
    memory.keep(torch.tensor([4, 0, 1]))
    assert memory.rows.labels.tolist() == [7, 0, 11]
    assert memory.num_seen == 0
    with pytest.raises(IndexError):
        memory.append(items(torch.arange(4)))


def test_stored_rows_are_copies() -> None:
    memory = Memory(PaperCell, 4, generator())
    arriving = PaperCell(torch.ones(4, 1, 2, 2, dtype=torch.uint8), torch.arange(4))
    memory.add(arriving)
    arriving.images.zero_()
    taken = memory.sample(4)
    assert taken.images.min() == 1
    taken.images.zero_()
    assert memory.rows.images.min() == 1


def test_it_stores_bytes_and_counts_them() -> None:
    class Row(NamedTuple):
        images: Tensor
        labels: Tensor
        logits: Tensor

    memory = Memory(Row, 200, generator())
    memory.add(
        Row(
            torch.zeros(8, 3, 32, 32, dtype=torch.uint8),
            torch.zeros(8, dtype=torch.int64),
            torch.zeros(8, 10),
        )
    )
    assert memory.rows.images.dtype == torch.uint8
    assert memory.num_bytes == 200 * (3072 + 8 + 40)
    assert memory.num_bytes < 0.7e6


def test_a_memory_of_nothing_keeps_nothing() -> None:
    memory = Memory(PaperCell, 0, generator())
    memory.add(items(torch.arange(9)))
    assert len(memory) == 0
    assert len(memory.sample(5).labels) == 0
    with pytest.raises(ValueError, match="capacity must be >= 0, got -1"):
        Memory(PaperCell, -1, generator())


@pytest.mark.parametrize("seen", [0, 4, 60])
def test_state_round_trip_continues_to_the_bit(seen: int) -> None:
    memory = Memory(PaperCell, 10, generator(7))
    if seen:
        memory.add(items(torch.arange(seen)))
    other = Memory(PaperCell, 10, generator(8))
    other.load_state_dict(memory.state_dict())
    for each in (memory, other):
        each.add(items(torch.arange(60, 120)))
    assert torch.equal(memory.rows.labels, other.rows.labels)
    assert torch.equal(memory.sample(5).labels, other.sample(5).labels)
    assert memory.num_seen == other.num_seen == seen + 60


@pytest.mark.parametrize("value", [-1, 2.5, "7", True])
@pytest.mark.parametrize("name", ["num_seen", "num_filled", "entrant"])
def test_counters_of_a_state_are_numbers_of_rows(name: str, value: object) -> None:
    memory = ChoosyMemory(PaperCell, 10, generator())
    with pytest.raises(ValueError, match=f"{name} of a memory must be a number of rows"):
        memory.set_extra_state(memory.get_extra_state() | {name: value})


def test_ids_stay_beside_their_rows_through_every_change() -> None:
    memory = Memory(PaperCell, 10, generator(3))
    memory.keep_ids()

    def all_beside() -> bool:
        assert memory.ids is not None
        return memory.ids.tolist() == [1000 + label for label in memory.rows.labels.tolist()]

    for numbers in torch.arange(60).split(7):
        memory.add(items(numbers), numbers + 1000)
        assert all_beside()
    memory.keep(torch.tensor([8, 1, 5]))
    memory.append(items(torch.tensor([70, 71])), torch.tensor([1070, 1071]))
    memory.put(torch.tensor([0]), items(torch.tensor([72])), torch.tensor([1072]))
    memory.overwrite(torch.tensor([3]), items(torch.tensor([73])), torch.tensor([1073]))
    assert memory.rows.labels.tolist()[3:] == [73, 71]
    assert all_beside()
    memory.resize(20)
    assert all_beside()
    memory.make_room(18)
    assert all_beside()
    other = Memory(PaperCell, 20, generator())
    other.keep_ids()
    other.load_state_dict(memory.state_dict())
    assert torch.equal(other.ids, memory.ids)  # type: ignore[arg-type]


def test_ids_change_no_draw_and_only_a_memory_that_keeps_them_asks_for_them() -> None:
    plain, named = Memory(PaperCell, 10, generator(3)), Memory(PaperCell, 10, generator(3))
    named.keep_ids()
    for numbers in torch.arange(60).split(7):
        plain.add(items(numbers), numbers)
        named.add(items(numbers), numbers)
    assert torch.equal(plain.rows.labels, named.rows.labels)
    assert torch.equal(plain.sample(5).labels, named.sample(5).labels)
    assert plain.ids is None
    assert "ids" not in plain.state_dict()
    with pytest.raises(RunError, match=r"memory\.add\(rows, batch\.ids\)"):
        named.add(items(torch.arange(3)))

    class Clash(NamedTuple):
        images: Tensor
        ids: Tensor

    with pytest.raises(ValueError, match="can't have a field `ids`"):
        Memory(Clash, 10, generator())


def test_the_capacity_may_follow_from_the_bytes_of_a_row() -> None:
    memory, asked = Memory(PaperCell, 1, generator()), list[dict[str, int]]()

    def capacity_for(row: dict[str, int]) -> int:
        asked.append(row)
        return 120 // sum(row.values())

    memory.fit(capacity_for)
    assert asked == []  # nobody knows the columns yet
    memory.add(items(torch.arange(30)))
    assert asked == [{"images": 4, "labels": 8}]
    assert len(memory) == memory.capacity == 10
    memory.fit(lambda row: 60 // sum(row.values()))
    assert len(memory) == memory.capacity == 5
