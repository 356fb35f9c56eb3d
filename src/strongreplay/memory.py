"""Memory: columns of tensors that hold a bounded, uniform sample of everything presented so far.

Reservoir: Vitter, "Random Sampling with a Reservoir", 1985 (algorithm R). Item number n (from 0) is stored
at slot n while there is room; afterwards it draws r from {0, ..., n} and overwrites slot r if r < capacity.
Each item uses exactly one draw, so the same stream gives the same memory however it is cut into batches.

Draws are made on the host: they cost no device sync, and a step in which nothing is stored costs no write
at all.
"""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Row = TypeVar("Row", bound=tuple[Tensor, ...])
Floats = npt.NDArray[np.float64]
Slots = npt.NDArray[np.int64]


def reservoir_slots(num_seen: int, draws: Floats, capacity: int) -> Slots:
    """The slot of each arriving item, or a number >= capacity where algorithm R skips it."""
    position = np.arange(num_seen, num_seen + len(draws))
    # draws are float64 in [0, 1): floor(draw * (n + 1)) is uniform on {0, ..., n} to 53 bits.
    chosen = (draws * (position + 1)).astype(np.int64)
    return np.where(position < capacity, position, chosen) if num_seen < capacity else chosen


def draw(generator: torch.Generator) -> float:
    """A number in [0, 1), to 53 bits."""
    return float(torch.rand(1, dtype=torch.float64, generator=generator).numpy()[0])


def next_entrant(start: int, capacity: int, generator: torch.Generator) -> int:
    """The first item, from number `start` on, that algorithm R lets into a full memory.

    Item n (from 0) enters with probability capacity / (n + 1), so one draw tells how many are passed over.
    """
    drawn, span = draw(generator), 1 + 4 * start // capacity  # nearly always found within four times the mean
    while True:
        nobody_yet = np.cumprod(1 - capacity / np.arange(start + 1, start + span + 1))
        if (passed := int(np.count_nonzero(nobody_yet > drawn))) < span:
            return start + passed
        start, drawn = start + span, drawn / float(nobody_yet[-1])


def draw_distinct(population: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` distinct numbers below `population`, in random order; the cost depends on `count` alone."""
    if population > 4 * count:
        # Reading draws in order and passing over repeats is sampling without replacement; half as many again
        # from more than 4 * count values practically always hold `count` different ones.
        draws = torch.randint(population, (count + count // 2 + 16,), generator=generator).numpy()
        first_places = np.unique(draws, return_index=True)[1]
        if len(first_places) >= count:
            return torch.from_numpy(draws[np.sort(first_places)[:count]])
    return torch.randperm(population, generator=generator)[:count]


def first_of_each(groups: Tensor, count: int) -> Tensor:
    """The rows that hold the first `count` members of every group, in stored order within a group."""
    rows = [torch.nonzero(groups == group).flatten()[:count] for group in groups.unique()]
    return torch.cat([groups.new_empty(0, dtype=torch.int64), *rows])


def herd(features: Tensor, count: int) -> Tensor:
    """Different rows, at most `count`, each chosen to bring the mean so far closest to the mean of all.

    Welling, "Herding Dynamical Weights to Learn", 2009, as iCaRL uses it: the best comes first, so a shorter
    choice is the beginning of a longer one.
    """
    mean, chosen_sum = features.mean(0), torch.zeros_like(features[:1])
    taken = torch.zeros_like(features[:, 0])
    picks = [torch.empty(0, dtype=torch.int64, device=features.device)]
    for number in range(1, min(count, len(features)) + 1):
        distances = (mean - (features + chosen_sum) / number).square().sum(1)
        pick = (distances + taken).argmin(0, keepdim=True)
        taken[pick] = torch.inf
        chosen_sum = chosen_sum + features[pick]
        picks.append(pick)
    return torch.cat(picks)


def as_words(rows: Tensor) -> Tensor:
    """Images as 64-bit words where their bytes divide into them: an indexed write is then 5 times quicker."""
    if rows.dtype != torch.uint8 or rows[0].numel() % 8:
        return rows
    return rows.view(len(rows), -1).view(torch.int64)


class Memory(nn.Module, Generic[Row]):
    """Rows of a named-tuple type, one tensor a field, allocated when the first rows arrive."""

    num_seen: int  # items presented so far, kept or not

    def __init__(self, row_type: type[Row], capacity: int, generator: torch.Generator) -> None:
        super().__init__()
        if capacity < 0:
            raise ValueError(f"Memory: capacity must be >= 0, got {capacity}")
        self.row_type: Any = (
            row_type  # a NamedTuple class: its `_fields` and `_make` are not in the bound's type
        )
        self.capacity = capacity
        self.generator = generator
        self.num_seen = 0
        self.num_filled = 0
        self.ragged = False  # rows of vectors that were shorter when they came end in NaN

    def __len__(self) -> int:
        return self.num_filled

    @property
    def num_bytes(self) -> int:
        """Bytes of all columns at full capacity."""
        return sum(column.nbytes for column in self.buffers())

    @property
    def rows(self) -> Row:
        """Everything stored, without a copy; before the first rows arrive there are no columns to show."""
        columns = self._columns()
        if self.num_filled < self.capacity:  # a full one needs no cutting, which takes time in every step
            columns = [column[: self.num_filled] for column in columns]
        return self._make(columns)

    def add(self, arriving: Row) -> None:
        """Present rows to the reservoir, in order."""
        self._allocate(arriving)
        count = len(arriving[0])
        draws = torch.rand(count, dtype=torch.float64, generator=self.generator)
        slots = reservoir_slots(self.num_seen, draws.numpy(), self.capacity)
        if self.num_filled < min(self.num_seen, self.capacity):
            slots = self._close_gaps(slots)
        self.num_seen += count
        kept = np.flatnonzero(slots < self.capacity)
        if len(kept):
            self.num_filled = max(self.num_filled, 1 + int(slots[kept].max()))
            self._write(slots[kept], kept, arriving)

    def sample(self, count: int) -> Row:
        """min(count, stored) different rows, uniformly."""
        chosen = draw_distinct(self.num_filled, min(count, self.num_filled), self.generator)
        return self.take(chosen)

    def put(self, slots: Tensor, arriving: Row) -> None:
        """Write rows into chosen slots, the next free ones included; nothing is drawn or counted as seen."""
        self._allocate(arriving)
        self._write(slots.numpy(), np.arange(len(slots)), arriving)
        self.num_filled = max(self.num_filled, 1 + int(slots.max()))

    def append(self, arriving: Row) -> None:
        """Write rows into the next free slots."""
        self.put(torch.arange(self.num_filled, self.num_filled + len(arriving[0])), arriving)

    def take(self, chosen: Tensor) -> Row:
        """A copy of chosen rows, in the order asked for."""
        return self._make([column.index_select(0, chosen.to(column.device)) for column in self._columns()])

    def keep(self, chosen: Tensor) -> None:
        """Chosen rows stay, in the order given, and the rest is forgotten."""
        for column in self._columns():
            column[: len(chosen)] = column.index_select(0, chosen.to(column.device))
        self.num_filled = len(chosen)

    def make_room(self, count: int) -> None:
        """Forget rows at random until `count` more have room; the rest stays in order."""
        room = max(self.capacity - count, 0)
        if self.num_filled > room:
            self.keep(draw_distinct(self.num_filled, room, self.generator).sort().values)

    def resize(self, capacity: int) -> None:
        """Room for more or fewer; what has no room any more is forgotten at random."""
        self.make_room(self.capacity - capacity)
        added = capacity - self.capacity
        for name, column in list(self._buffers.items()):
            assert column is not None
            room = column.new_zeros((max(added, 0), *column.shape[1:]))
            self._buffers[name] = torch.cat([column[:capacity], room])
        self.capacity = capacity

    def widen(self, name: str, width: int) -> None:
        """Longer vectors from now on; those stored keep their length, and NaN stands for the rest."""
        column = self._buffers.get(name)
        if column is not None and column.shape[1] < width:
            added = column.new_full((len(column), width - column.shape[1]), torch.nan)
            self._buffers[name], self.ragged = torch.cat([column, added], 1), True

    def _close_gaps(self, slots: Slots) -> Slots:
        """Where rows were taken out, an item drawn for a slot behind the last row comes next after it."""
        slots, filled = slots.copy(), self.num_filled
        for place in np.flatnonzero(slots < self.capacity):
            slots[place] = min(slots[place], filled)
            filled = max(filled, slots[place] + 1)
        return slots

    def _write(self, slots: Slots, kept: Slots, arriving: Row) -> None:
        if len(slots) == 1:  # nearly always, once a reservoir has seen much; a plain copy is quicker
            for column, values in zip(self._columns(), arriving, strict=True):
                column[int(slots[0])] = values[int(kept[0])]
            return
        # Two rows of one batch may meet in a slot; the later one stays, as if they had come one by one.
        last = len(slots) - 1 - np.unique(slots[::-1], return_index=True)[1]
        places, sources = torch.from_numpy(slots[last]), torch.from_numpy(kept[last])
        for column, values in zip(self._columns(), arriving, strict=True):
            chosen = values.index_select(0, sources.to(values.device))
            as_words(column)[places.to(column.device)] = as_words(chosen)

    def _columns(self) -> list[Tensor]:
        return [self._buffers[name] for name in self.row_type._fields]  # type: ignore[misc]

    def _make(self, columns: list[Tensor]) -> Row:
        made: Row = self.row_type._make(columns)
        return made

    def _allocate(self, like: Row) -> None:
        if not self._buffers:
            for name, values in zip(self.row_type._fields, like, strict=True):
                self.register_buffer(name, values.new_zeros((self.capacity, *values.shape[1:])))

    def get_extra_state(self) -> dict[str, Any]:
        return {
            "num_seen": self.num_seen,
            "num_filled": self.num_filled,
            "generator": self.generator.get_state(),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.num_seen, self.num_filled = state["num_seen"], state["num_filled"]
        self.generator.set_state(state["generator"].cpu())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # A fresh memory has no columns yet; those of the state tell their shapes.
        saved = [state_dict[prefix + name] for name in self.row_type._fields if prefix + name in state_dict]
        if saved:
            self._allocate(self._make(saved))
            floats = [values for values in saved if values.is_floating_point() and values.dim() == 2]
            self.ragged = any(bool(values.isnan().any()) for values in floats)
        super()._load_from_state_dict(state_dict, prefix, *args)


class RingMemory(Memory[Row]):
    """Runs of equally many slots, one a task, each holding the last rows that its task presented."""

    def __init__(self, row_type: type[Row], capacity: int, generator: torch.Generator, run_size: int) -> None:
        super().__init__(row_type, capacity, generator)
        if not 1 <= run_size <= capacity:
            raise ValueError(f"RingMemory: run_size must lie in 1..{capacity}, got {run_size}")
        self.run_size, self.num_slots = run_size, capacity - capacity % run_size
        self.run_start = self.seen_before = 0

    def begin_run(self) -> None:
        """The rows that follow belong to the next task."""
        self.run_start, self.seen_before = len(self), self.num_seen

    def add(self, arriving: Row) -> None:
        place = torch.arange(len(arriving[0])) + (self.num_seen - self.seen_before)
        # More tasks than runs begin anew at the first slot.
        self.put((self.run_start + place % self.run_size) % self.num_slots, arriving)
        self.num_seen += len(place)

    def get_extra_state(self) -> dict[str, Any]:
        return super().get_extra_state() | {"run_start": self.run_start, "seen_before": self.seen_before}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.run_start, self.seen_before = state["run_start"], state["seen_before"]


class ChoosyMemory(Memory[Row]):
    """Once full it says who enters, for a method that chooses who leaves; nothing is drawn for the others."""

    entrant: int | None = None  # number of the next item that enters

    def entrants(self, count: int) -> Iterator[int]:
        """Places of those that enter, among so many presented; the first ones fill what is free."""
        first, self.num_seen = self.num_seen, self.num_seen + count
        if not self.capacity:
            return
        if self.entrant is None:
            self.entrant = next_entrant(self.capacity, self.capacity, self.generator)
        while self.entrant < self.num_seen:
            yield self.entrant - first
            self.entrant = next_entrant(self.entrant + 1, self.capacity, self.generator)

    def get_extra_state(self) -> dict[str, Any]:
        return super().get_extra_state() | {"entrant": self.entrant}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.entrant = state["entrant"]
