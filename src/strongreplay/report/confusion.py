"""The confusion matrix as a heat map."""

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from strongreplay.errors import printable
from strongreplay.report.page_text import shorten
from strongreplay.report.styles import INK

Name = str | int
MOST = 100  # classes; if there are more, those with the most errors are shown
MOST_NUMBERS = 20  # classes; with more, numbers in the cells are too small to read
LONGEST = 24  # letters of a name


def confusion_figure(names: Sequence[Name], pairs: Mapping[tuple[Name, Name], int], title: str) -> Figure:
    """One row per class: the share of its samples with each prediction."""
    shown = choose(names, pairs)
    places = {name: place for place, name in enumerate(shown)}
    counts = np.zeros((len(shown), len(shown)))
    totals = np.zeros(len(shown))
    for (label, answer), count in pairs.items():
        if label in places:
            totals[places[label]] += count
            if answer in places:
                counts[places[label], places[answer]] += count
    # A class without samples has NaN as share, not zero.
    shares = np.where(totals[:, None] > 0, 100 * counts / np.maximum(totals, 1)[:, None], np.nan)
    side = min(16.0, 3.2 + 0.42 * len(shown)) if len(shown) <= MOST_NUMBERS else 6.0 + 0.12 * len(shown)
    figure = Figure(figsize=(side + 1.2, side), layout="constrained")
    axes = figure.subplots()
    shades = matplotlib.colormaps["Blues"].with_extremes(bad="#e8e8e8")
    # The square root of the share, so that one error in fifty is visible.
    image = axes.imshow(shares, cmap=shades, norm=PowerNorm(0.5, 0, 100), interpolation="nearest")
    size = 9.0 if len(shown) <= MOST_NUMBERS else 7.5
    texts = [tick_text(str(name)) for name in shown]
    axes.set_xticks(range(len(shown)), texts, rotation=90, fontsize=size)
    axes.set_yticks(range(len(shown)), texts, fontsize=size)
    axes.tick_params(length=2)
    axes.set(xlabel="answer", ylabel="class")
    if len(shown) <= MOST_NUMBERS:
        for row, column in zip(*np.nonzero(counts), strict=True):
            ink = "white" if shares[row, column] > 40 else INK
            text = f"{counts[row, column]:.0f}"
            axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=7.5)
    left_out = (
        f"\nthe {len(shown)} of {len(names)} classes with the most mistakes"
        if len(shown) < len(names)
        else ""
    )
    axes.set_title(f"{title}{left_out}", fontsize=10)
    figure.colorbar(image, ax=axes, label="share of the class (%)", shrink=0.8)
    return figure


def choose(names: Sequence[Name], pairs: Mapping[tuple[Name, Name], int]) -> list[Name]:
    """All names, or those with the most errors, in the given order."""
    if len(names) <= MOST:
        return list(names)
    wrong = dict.fromkeys(names, 0)
    for (label, answer), count in pairs.items():
        if label != answer:
            wrong[label] += count
            wrong[answer] += count
    most = set(sorted(names, key=lambda name: -wrong[name])[:MOST])
    return [name for name in names if name in most]


def tick_text(name: str) -> str:
    """A short name, in which dollar signs do not start a formula of matplotlib."""
    return shorten(printable(name), LONGEST, "...").replace("$", r"\$")
