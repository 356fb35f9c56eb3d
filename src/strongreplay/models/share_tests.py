"""Whether new data are given other classes than the held-out samples: a G-test, and one test a class."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strongreplay.data.user_data import Label


@dataclass(frozen=True, slots=True)
class ShareChange:
    """The share of a predicted class among held-out and among new samples."""

    label: Label
    before: float
    now: float
    p: float  # of Fisher's exact test, after Holm's correction for the number of classes


def compare_shares(
    labels: Sequence[Label], before: Sequence[int], now: Sequence[int]
) -> tuple[float | None, list[ShareChange]]:
    """The p-value of the G-test over all classes, and a test of each class, the lowest p-value first.

    The first is None if there is only one class among the answers.
    """
    from scipy.stats import chi2_contingency, fisher_exact

    total_before, total_now = sum(before), sum(now)
    seen = [(old, new) for old, new in zip(before, now, strict=True) if old + new]
    together = None
    if len(seen) > 1 and total_before and total_now:
        together = float(chi2_contingency(list(zip(*seen, strict=True)), lambda_="log-likelihood").pvalue)
    tests = [
        float(fisher_exact(np.array([[old, total_before - old], [new, total_now - new]])).pvalue)
        for old, new in zip(before, now, strict=True)
    ]
    changes = [
        ShareChange(label, old / max(1, total_before), new / max(1, total_now), p)
        for label, old, new, p in zip(labels, before, now, holm(tests), strict=True)
    ]
    return together, sorted(changes, key=lambda change: (change.p, -abs(change.now - change.before)))


def holm(values: Sequence[float]) -> list[float]:
    """p-values corrected by Holm's method, in the given order."""
    found, highest = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - rank) * values[place]))
        found[place] = highest
    return found
