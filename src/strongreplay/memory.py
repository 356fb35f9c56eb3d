"""Memory: a fixed number of rows, a uniform sample of all rows added so far (reservoir sampling).

A kept model ranks its samples instead (`prefer`): the memory then holds the best ones, each in one row.
Random numbers are drawn on the CPU, which needs no device sync; a step that stores nothing writes nothing.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from strongreplay.errors import RunError
from strongreplay.sampling import RowSlots, Slots, draw_distinct, next_entrant, reservoir_slots

Row = TypeVar("Row", bound=tuple[Tensor, ...])


def as_words(rows: Tensor) -> Tensor:
    """View uint8 images as 64-bit words, if their size allows it: indexed writes are then 5 times faster."""
    if rows.dtype != torch.uint8 or rows[0].numel() % 8:
        return rows
    return rows.view(len(rows), -1).view(torch.int64)


def take_ids(ids: Tensor | None, rows: Tensor | slice) -> Tensor | None:
    """The ids of some rows, or none if rows have no ids."""
    return None if ids is None else ids[rows]


class Memory(nn.Module, Generic[Row]):
    """Rows of a named-tuple type, one tensor per field, allocated when the first rows are added.

    After `keep_ids`, which a kept model calls, the memory also stores the id of each row's sample.
    """

    num_seen: int  # rows added so far, whether stored or not

    def __init__(self, row_type: type[Row], capacity: int, generator: torch.Generator) -> None:
        super().__init__()
        if capacity < 0:
            raise ValueError(f"Memory: capacity must be >= 0, got {capacity}")
        self.row_type: Any = row_type  # Any: mypy does not know a NamedTuple's `_fields` and `_make`
        if hasattr(row_type, "ids"):
            raise ValueError("Memory: rows can't have a field `ids`; pass them beside: memory.add(rows, ids)")
        self.capacity = capacity
        self.generator = generator
        self.num_seen = 0
        self.num_filled = 0
        self.ragged = False  # whether some stored vectors are shorter than the column and padded with NaN
        self.keeps_ids = False
        self.preferred: list[int] | None = None  # ids, the best first; None: reservoir sampling
        self.row_slots: RowSlots | None = None
        self.capacity_for: Callable[[dict[str, int]], int] | None = None

    def __len__(self) -> int:
        return self.num_filled

    @property
    def num_bytes(self) -> int:
        """Bytes of all columns at full capacity."""
        return sum(column.nbytes for column in self.buffers())

    @property
    def ids(self) -> Tensor | None:
        """(N,) int64, the ids of the stored rows; None without `keep_ids` or before the first rows."""
        column = self._buffers.get("ids")
        return None if column is None else column[: self.num_filled]

    @property
    def rows(self) -> Row:
        """All stored rows, without a copy; there are no columns before the first rows are added."""
        columns = self._columns()
        if self.num_filled < self.capacity:  # slicing takes time in every step, and a full memory needs none
            columns = [column[: self.num_filled] for column in columns]
        return self._make(columns)

    def keep_ids(self) -> None:
        """Store the id of every row from now on; adding rows without ids is an error."""
        self.keeps_ids = True

    def fit(self, capacity_for: Callable[[dict[str, int]], int]) -> None:
        """Set the capacity from the bytes that a row takes in each column.

        Without rows the sizes are unknown; then the capacity is set when the first rows are added.
        """
        if columns := self._columns():
            self.resize(capacity_for(row_bytes(self._make(columns))))
        else:
            self.capacity_for = capacity_for

    def add(self, new: Row, ids: Tensor | None = None) -> None:
        """Offer rows to the memory, in order; it stores some of them."""
        self._allocate(new, ids)
        if self.preferred is not None:
            self._add_preferred(new, ids)
            return
        count = len(new[0])
        draws = torch.rand(count, dtype=torch.float64, generator=self.generator)
        slots = reservoir_slots(self.num_seen, draws.numpy(), self.capacity)
        if self.num_filled < min(self.num_seen, self.capacity):
            slots = self._close_gaps(slots)
        self.num_seen += count
        kept = np.flatnonzero(slots < self.capacity)
        if len(kept):
            self.num_filled = max(self.num_filled, 1 + int(slots[kept].max()))
            self._write(slots[kept], kept, new, ids)

    def prefer(self, ids: Tensor) -> None:
        """Rank samples, the best first: from now on the first `capacity` of them are stored, each in one row.

        A sample that is added again takes the place of its row, so that stored logits are the newest. Stored
        rows of other samples stay until their slot is needed; second rows of a sample are dropped now.
        """
        self.preferred, self.row_slots = ids.tolist(), None
        if self.ids is not None:
            first = np.unique(self.ids.numpy(), return_index=True)[1]
            if len(first) < self.num_filled:
                self.keep(torch.from_numpy(np.sort(first)))

    def _add_preferred(self, new: Row, ids: Tensor | None) -> None:
        assert self.preferred is not None
        given = self._with_ids(new, ids)[-1].tolist()  # ids are on the host
        if self.row_slots is None:
            stored = [] if self.ids is None else self.ids.tolist()
            self.row_slots = RowSlots(stored, self.preferred, self.capacity)
        slots = np.array([self.row_slots.of(number) for number in given], np.int64)
        self.num_seen += len(given)
        kept = np.flatnonzero(slots >= 0)
        if len(kept):
            self.num_filled = max(self.num_filled, 1 + int(slots[kept].max()))
            self._write(slots[kept], kept, new, ids)

    def sample(self, count: int) -> Row:
        """min(count, number stored) distinct rows, drawn uniformly."""
        chosen = draw_distinct(self.num_filled, min(count, self.num_filled), self.generator)
        return self.take(chosen)

    def put(self, slots: Tensor, new: Row, ids: Tensor | None = None) -> None:
        """Write rows into the given slots, used or next free; `num_seen` does not change."""
        self._allocate(new, ids)
        self._write(slots.numpy(), np.arange(len(slots)), new, ids)
        self.num_filled = max(self.num_filled, 1 + int(slots.max()))

    def append(self, new: Row, ids: Tensor | None = None) -> None:
        """Write rows into the next free slots."""
        self.put(torch.arange(self.num_filled, self.num_filled + len(new[0])), new, ids)

    def overwrite(self, slots: Tensor, new: Row, ids: Tensor | None = None) -> None:
        """Replace stored rows; the slots are on the columns' device, so there is no sync."""
        for column, values in zip(self._stored(), self._with_ids(new, ids), strict=True):
            column.index_copy_(0, slots, values)

    def take(self, chosen: Tensor) -> Row:
        """A copy of the given rows, in the given order."""
        return self._make([column.index_select(0, chosen.to(column.device)) for column in self._columns()])

    def keep(self, chosen: Tensor) -> None:
        """Keep the given rows, in the given order, and drop all others."""
        self.row_slots = None
        for column in self._stored():
            column[: len(chosen)] = column.index_select(0, chosen.to(column.device))
        self.num_filled = len(chosen)

    def make_room(self, count: int) -> None:
        """Drop rows until `count` slots are free; the others keep their order."""
        self.shrink(max(self.capacity - count, 0), self.generator)

    def shrink(self, count: int, generator: torch.Generator) -> None:
        """Keep at most `count` rows: those of the best samples if samples are ranked, else random ones."""
        if self.num_filled <= count:
            return
        if self.preferred is None or self.ids is None:
            chosen = draw_distinct(self.num_filled, count, generator)
        else:
            place = {number: rank for rank, number in enumerate(self.preferred)}
            ranks = [place.get(number, len(place)) for number in self.ids.tolist()]
            chosen = torch.from_numpy(np.argsort(ranks, kind="stable")[:count])
        self.keep(chosen.sort().values)

    def resize(self, capacity: int) -> None:
        """Change the capacity; rows that no longer fit are dropped at random."""
        self.make_room(self.capacity - capacity)
        added = capacity - self.capacity
        for name, column in list(self._buffers.items()):
            assert column is not None
            room = column.new_zeros((max(added, 0), *column.shape[1:]))
            self._buffers[name] = torch.cat([column[:capacity], room])
        self.capacity, self.row_slots = capacity, None

    def widen(self, name: str, width: int) -> None:
        """Make a column of vectors wider; stored vectors are padded with NaN."""
        column = self._buffers.get(name)
        if column is not None and column.shape[1] < width:
            added = column.new_full((len(column), width - column.shape[1]), torch.nan)
            self._buffers[name], self.ragged = torch.cat([column, added], 1), True

    def _close_gaps(self, slots: Slots) -> Slots:
        """If rows were removed, move each slot beyond the last row to the next free one."""
        slots, filled = slots.copy(), self.num_filled
        for place in np.flatnonzero(slots < self.capacity):
            slots[place] = min(slots[place], filled)
            filled = max(filled, slots[place] + 1)
        return slots

    def _write(self, slots: Slots, kept: Slots, new: Row, ids: Tensor | None) -> None:
        pairs = zip(self._stored(), self._with_ids(new, ids), strict=True)
        if len(slots) == 1:  # the usual case after many samples; a plain copy is faster
            for column, values in pairs:
                column[int(slots[0])] = values[int(kept[0])]
            return
        # If two rows of a batch get the same slot, the later one is stored, as if they were added one by one.
        last = len(slots) - 1 - np.unique(slots[::-1], return_index=True)[1]
        places, sources = torch.from_numpy(slots[last]), torch.from_numpy(kept[last])
        for column, values in pairs:
            chosen = values.index_select(0, sources.to(values.device))
            as_words(column)[places.to(column.device)] = as_words(chosen)

    def _columns(self) -> list[Tensor]:
        """The columns of the row type; none before the first rows are added."""
        if not self._buffers:
            return []
        return [self._buffers[name] for name in self.row_type._fields]  # type: ignore[misc]

    def _stored(self) -> list[Tensor]:
        """All columns: those of the row type, then the ids, if they are stored."""
        ids = self._buffers.get("ids")
        return self._columns() if ids is None else [*self._columns(), ids]

    def _with_ids(self, new: Row, ids: Tensor | None) -> tuple[Tensor, ...]:
        if not self.keeps_ids:
            return new
        if ids is None:
            raise RunError(
                "memory: rows were added without ids, but a kept model needs the ids of its samples; "
                "pass them with the rows, as in memory.add(rows, batch.ids)"
            )
        return (*new, ids)

    def _make(self, columns: list[Tensor]) -> Row:
        made: Row = self.row_type._make(columns)
        return made

    def _allocate(self, like: Row, ids: Tensor | None) -> None:
        if self._buffers:
            return
        if self.capacity_for is not None:
            self.capacity, self.capacity_for = self.capacity_for(row_bytes(like)), None
        names = (*self.row_type._fields, "ids") if self.keeps_ids else self.row_type._fields
        for name, values in zip(names, self._with_ids(like, ids), strict=True):
            # register_buffer would refuse the name `ids`, because it is a property.
            self._buffers[name] = values.new_zeros((self.capacity, *values.shape[1:]))

    def get_extra_state(self) -> dict[str, Any]:
        return {
            "num_seen": self.num_seen,
            "num_filled": self.num_filled,
            "generator": self.generator.get_state(),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.num_seen, self.num_filled = counter_of(state, "num_seen"), counter_of(state, "num_filled")
        self.row_slots = None
        self.generator.set_state(state["generator"].cpu())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # A new memory has no columns yet; they get the shapes of the saved ones.
        saved = [state_dict[prefix + name] for name in self.row_type._fields if prefix + name in state_dict]
        if saved:
            self._allocate(self._make(saved), state_dict.get(f"{prefix}ids"))
            floats = [values for values in saved if values.is_floating_point() and values.dim() == 2]
            self.ragged = any(bool(values.isnan().any()) for values in floats)
        super()._load_from_state_dict(state_dict, prefix, *args)


def counter_of(state: dict[str, Any], name: str) -> int:
    """A number of rows in a saved state, which may come from anywhere."""
    value = state[name]
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} of a memory must be a number of rows, got {value!r:.40}")
    return value


def row_bytes(rows: Any) -> dict[str, int]:
    """The bytes that one row takes in each column."""
    sizes = (prod(values.shape[1:]) * values.element_size() for values in rows)
    return dict(zip(rows._fields, sizes, strict=True))


class RingMemory(Memory[Row]):
    """A ring buffer per task: equally many slots for each, which hold the last rows of the task."""

    def __init__(self, row_type: type[Row], capacity: int, generator: torch.Generator, run_size: int) -> None:
        super().__init__(row_type, capacity, generator)
        if not 1 <= run_size <= capacity:
            raise ValueError(f"RingMemory: run_size must lie in 1..{capacity}, got {run_size}")
        self.run_size, self.num_slots = run_size, capacity - capacity % run_size
        self.run_start = self.seen_before = 0

    def begin_run(self) -> None:
        """Start the next task: the rows added from now on belong to it."""
        self.run_start, self.seen_before = len(self), self.num_seen

    def add(self, new: Row, ids: Tensor | None = None) -> None:
        place = torch.arange(len(new[0])) + (self.num_seen - self.seen_before)
        # If there are more tasks than rings, the next task starts again at the first slot.
        self.put((self.run_start + place % self.run_size) % self.num_slots, new, ids)
        self.num_seen += len(place)

    def get_extra_state(self) -> dict[str, Any]:
        return super().get_extra_state() | {"run_start": self.run_start, "seen_before": self.seen_before}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.run_start, self.seen_before = counter_of(state, "run_start"), counter_of(state, "seen_before")


class ChoosyMemory(Memory[Row]):
    """A memory for methods that choose which row to replace: `entrants` lists which new rows are stored.

    It draws random numbers only for rows that are stored.
    """

    entrant: int | None = None  # number of the next row to be stored

    def entrants(self, count: int) -> Iterator[int]:
        """Positions, among `count` new rows, of those to store in a full memory; the first rows fill it."""
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
        self.entrant = None if state["entrant"] is None else counter_of(state, "entrant")
