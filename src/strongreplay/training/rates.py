"""Learning rates as pure functions of the position in a task, so there is no state to save."""

from collections.abc import Callable, Sequence
from math import cos, pi

Rate = Callable[[int, float], float]  # the epoch, from 0, and the finished part of it


def stepped(lr: float, milestones: Sequence[int], decay: float) -> Rate:
    """`lr`, multiplied by `decay` after each milestone."""

    def rate(epoch: int, part: float) -> float:
        found = lr
        for milestone in milestones:
            found *= decay if epoch >= milestone else 1.0
        return found

    return rate


def cosine(lr: float, floor: float, epochs: int, warmup: int, warm_epochs: int) -> Rate:
    """Half a cosine wave from `lr` to `floor`; the first epoch is already below `lr`.

    The warm-up rises linearly from 0.01, step by step, to the value that a wave over `warm_epochs` has then.
    """

    def wave(epoch: int, length: int) -> float:
        return floor + (lr - floor) * (1 + cos(pi * epoch / length)) / 2

    def rate(epoch: int, part: float) -> float:
        if epoch < warmup:
            return 0.01 + (epoch + part) / warmup * (wave(warmup, warm_epochs) - 0.01)
        return wave(epoch + 1, epochs)

    return rate


def restarts(lr: float, floor: float) -> Rate:
    """A tenth of `lr` for one epoch, then cosine waves down to `floor`, over 1, 2, 4, ... epochs."""

    def rate(epoch: int, part: float) -> float:
        if epoch == 0:
            return lr / 10
        length = 1 << (epoch.bit_length() - 1)  # waves begin at epochs 1, 2, 4, 8, ...
        return floor + (lr - floor) * (1 + cos(pi * (epoch - length) / length)) / 2

    return rate
