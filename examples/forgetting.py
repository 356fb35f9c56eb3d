"""Draw what forgetting looks like: accuracy on the first two digits while eight others are learnt.

    python examples/forgetting.py docs/results/forgetting.png

Plain training (SGD), replay (ER) and Strong Experience Replay (SER) on the embedded digits, memory 50,
5 seeds, published settings; about half a minute on one core. Lines are means, bands 95 % intervals.
"""

from argparse import ArgumentParser

import matplotlib
import numpy as np
from scipy import stats

from strongreplay import resolve, run

matplotlib.use("agg")
import matplotlib.pyplot as plt

METHODS = {"sgd": ("plain training", "#777777"), "er": ("ER", "#009E73"), "ser": ("SER", "#D55E00")}


def first_task(method: str, seed: int, settings: dict[str, int]) -> list[float]:
    """Accuracy on the first task after each task, in Class-IL."""
    memory_size = None if method == "sgd" else 50
    record = run(resolve("split-digits", method, memory_size, seed, settings))
    return [float(row[0] or 0) for row in record.matrix("class-il")]


def main(path: str, seeds: int, epochs: int | None) -> None:
    settings = {"train.epochs": epochs} if epochs else {}
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for method, (label, colour) in METHODS.items():
        scores = np.array([first_task(method, seed, settings) for seed in range(seeds)])
        mean, tasks = scores.mean(0), range(1, scores.shape[1] + 1)
        half = stats.t.ppf(0.975, seeds - 1) * scores.std(0, ddof=1) / seeds**0.5
        axes.plot(tasks, mean, color=colour, marker="o", label=label)
        axes.fill_between(tasks, mean - half, np.minimum(mean + half, 100), color=colour, alpha=0.15)
        axes.annotate(
            label, (tasks[-1], mean[-1]), (8, 0), textcoords="offset points", color=colour, va="center"
        )
        print(f"{label}: {mean[-1]:.1f} ± {half[-1]:.1f} % at the end (95 % interval, {seeds} seeds)")
    axes.set(
        xlabel="tasks learnt", ylabel="accuracy on the first task (%)", ylim=(-3, 103), xticks=[1, 2, 3, 4, 5]
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160)


if __name__ == "__main__":
    parser = ArgumentParser(description="Draw accuracy on the first task while others are learnt.")
    parser.add_argument("path", nargs="?", default="forgetting.png")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="of each task; without it, as published")
    main(**vars(parser.parse_args()))
