"""One number over seeds: mean, sample deviation, number of runs, and the 95 % interval of the mean.

Every table, figure and page shows `mean ± half the interval`; on request the
deviation has a column of its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev
from typing import Literal

CONFIDENCE = 0.95
Spread = Literal["interval", "sd"]  # sd: columns of deviations beside the intervals


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean over runs. Deviation and count are None if unknown, as for some published numbers."""

    mean: float
    deviation: float | None
    count: int | None

    @property
    def half_width(self) -> float | None:
        """Half the width of Student's 95 % interval of the mean; None for a single run."""
        if self.deviation is None or self.count is None or self.count < 2:
            return None
        return student_quantile(self.count - 1) * self.deviation / sqrt(self.count)

    def text(self, count: bool = False) -> str:
        """Such as "84.21 ± 0.30", or "84.21 ± 0.30 (5)" with the number of runs."""
        text = f"{self.mean:.2f}" + ("" if self.half_width is None else f" ± {self.half_width:.2f}")
        return f"{text} ({self.count})" if count and self.count is not None else text

    def __str__(self) -> str:
        return self.text()


def summarise(values: Iterable[float | None]) -> Summary | None:
    """The summary of the values; None if there are none, such as the forgetting of joint training."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    return Summary(mean(numbers), stdev(numbers) if len(numbers) > 1 else None, len(numbers))


def student_quantile(freedom: float) -> float:
    """The 97.5 % point of Student's distribution."""
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
