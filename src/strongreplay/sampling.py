"""Ways to choose rows: reservoir sampling, the best ranked, at random, the first of each group, or herding.

Reservoir: Vitter, "Random Sampling with a Reservoir", 1985 (algorithm R). Item number n (from 0) is stored
in slot n while there are free slots; later it draws r from {0, ..., n} and overwrites slot r if r < capacity.
Each item uses exactly one draw, so the result does not depend on how the stream is split into batches.
"""

from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float64]
Slots = npt.NDArray[np.int64]


def reservoir_slots(num_seen: int, draws: Floats, capacity: int) -> Slots:
    """The slot of each new item, or a number >= capacity if algorithm R does not store it."""
    position = np.arange(num_seen, num_seen + len(draws))
    # draws are float64 in [0, 1): floor(draw * (n + 1)) is uniform on {0, ..., n} to 53 bits.
    chosen = (draws * (position + 1)).astype(np.int64)
    return np.where(position < capacity, position, chosen) if num_seen < capacity else chosen


def draw(generator: torch.Generator) -> float:
    """A uniform number in [0, 1) with 53 random bits."""
    return float(torch.rand(1, dtype=torch.float64, generator=generator).numpy()[0])


def next_entrant(start: int, capacity: int, generator: torch.Generator) -> int:
    """The first item, from number `start` on, that algorithm R stores in a full memory.

    Item n (from 0) is stored with probability capacity / (n + 1), so one draw gives the number skipped.
    """
    drawn, span = draw(generator), 1 + 4 * start // capacity  # four times the mean is nearly always enough
    while True:
        none_stored = np.cumprod(1 - capacity / np.arange(start + 1, start + span + 1))  # probabilities
        if (skipped := int(np.count_nonzero(none_stored > drawn))) < span:
            return start + skipped
        start, drawn = start + span, drawn / float(none_stored[-1])


def draw_distinct(population: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` distinct numbers below `population`, in random order; the time depends on `count` only."""
    if population > 4 * count:
        # Draws with repeats removed are a sample without replacement. Out of more than 4 * count values,
        # 1.5 * count draws practically always hold `count` distinct ones.
        draws = torch.randint(population, (count + count // 2 + 16,), generator=generator).numpy()
        first_places = np.unique(draws, return_index=True)[1]
        if len(first_places) >= count:
            return torch.from_numpy(draws[np.sort(first_places)[:count]])
    return torch.randperm(population, generator=generator)[:count]


def first_of_each(groups: Tensor, count: int) -> Tensor:
    """The rows of the first `count` members of every group, in stored order within a group."""
    rows = [torch.nonzero(groups == group).flatten()[:count] for group in groups.unique()]
    return torch.cat([groups.new_empty(0, dtype=torch.int64), *rows])


def herd(features: Tensor, count: int) -> Tensor:
    """At most `count` distinct rows; each brings the mean of the chosen rows closest to the mean of all.

    Welling, "Herding Dynamical Weights to Learn", 2009, as iCaRL uses it. The best rows come first, so a
    smaller selection is the beginning of a larger one.
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


class RowSlots:
    """Which slot of a memory each of the best samples has; samples arrive in any order and repeatedly."""

    def __init__(self, stored: list[int], preferred: list[int], capacity: int) -> None:
        self.wanted = set(preferred[:capacity])
        self.slots = {number: slot for slot, number in enumerate(stored) if number in self.wanted}
        taken = set(self.slots.values())
        unwanted = (slot for slot in range(len(stored)) if slot not in taken)
        self.free = chain(range(len(stored), capacity), unwanted)

    def of(self, number: int) -> int:
        """The slot of a sample, or -1 if it is not to be stored."""
        if number not in self.wanted:
            return -1
        if number not in self.slots:
            self.slots[number] = next(self.free)
        return self.slots[number]


def balanced_rows(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Random rows, as many of each class as the smallest class has."""
    smallest = int(labels.bincount()[labels.unique()].min())
    shuffled = torch.randperm(len(labels), generator=generator)
    chosen = [shuffled[labels[shuffled] == label][:smallest] for label in labels.unique()]
    return torch.cat(chosen).sort().values
