"""Which rows are chosen: by a reservoir, at random, first of each group, or by herding.

Reservoir: Vitter, "Random Sampling with a Reservoir", 1985 (algorithm R). Item number n (from 0) is stored
at slot n while there is room; afterwards it draws r from {0, ..., n} and overwrites slot r if r < capacity.
Each item uses exactly one draw, so the same stream gives the same memory however it is cut into batches.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

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
