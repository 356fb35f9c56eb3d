"""Draw the two figures of the explanations: why nets forget, and what SER does.

    python examples/explain.py docs/explain

Writes `answers.png` and `terms.png` into the folder. Embedded digits, five tasks of two digits each, an MLP,
memory 50, 10 epochs, learning rate 0.1, 5 seeds; about half a minute on one core.
"""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from scipy import stats

from strongreplay import SER, SGD, Problem, build_net, build_stream, derive_generator, evaluate, train_task
from strongreplay.methods.ser import SERConfig

matplotlib.use("agg")
import matplotlib.pyplot as plt

SHADES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")  # one for each task
LOSSES: dict[str, Any] = {  # what is in the loss
    "new samples": SGD,
    "+ replay": ("current", "replay"),
    "+ backward consistency": ("current", "replay", "backward"),
    "+ forward consistency": ("current", "replay", "backward", "forward"),
}


class Course(NamedTuple):
    shares: np.ndarray  # (5, 5) after each task: how many images of the first task get a class of each task
    moved: np.ndarray  # (5,) distance of their logits to those just after the first task
    accuracy: float  # on all tasks in the end, in per cent


@torch.no_grad()
def ask(net: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return net.eval()(inputs)


def learn(loss: Any, seed: int, epochs: int) -> Course:
    stream = build_stream("split-digits", seed=seed)
    net = build_net("mlp", stream.input_shape, stream.num_classes, derive_generator(seed, "net"))
    view = stream.train_view(derive_generator(seed, "views"))
    problem = Problem(stream.num_classes, len(stream), view, stream.test_view, seed)
    method = SGD(net, problem) if loss is SGD else SER(net, problem, SERConfig(memory_size=50, terms=loss))
    first, order, answers = stream.test_view(stream.test(0).inputs), derive_generator(seed, "order"), []
    for task in stream:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        train_task(method, task, view, optimizer, epochs=epochs, batch_size=16, generator=order)
        answers.append(ask(net, first))
    shares = [torch.bincount(logits.argmax(1) // 2, minlength=5) / len(first) for logits in answers]
    moved = [(logits - answers[0]).norm(dim=1).mean() for logits in answers]
    classes = tuple(range(stream.num_classes))
    right = [evaluate(method, stream.test(t), stream.test_view, classes)[0] for t in range(len(stream))]
    return Course(torch.stack(shares).numpy(), torch.stack(moved).numpy(), float(np.mean(right)))


def draw_answers(plain: list[Course], ser: list[Course], path: Path) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
    for axes, title, courses in zip(panels, ("plain training", "SER"), (plain, ser), strict=True):
        shares, base = 100 * np.mean([course.shares for course in courses], 0), np.zeros(5)
        for task, shade in enumerate(SHADES):
            label = f"{2 * task} or {2 * task + 1}"
            axes.bar(range(1, 6), shares[:, task], 0.75, bottom=base, color=shade, label=label)
            base += shares[:, task]
        axes.set(title=title, xlabel="tasks learnt", xticks=range(1, 6))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("answers to images of 0 and 1 (%)")
    figure.legend(*panels[0].get_legend_handles_labels(), title="answer", loc="outside right center")
    figure.savefig(path, dpi=160)


def draw_terms(courses: dict[str, list[Course]], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", width_ratios=[1, 1.1])
    greys = ("#777777", "#009E73", "#0072B2", "#D55E00")
    for place, (name, found) in enumerate(courses.items()):
        left.plot(range(1, 6), np.mean([c.moved for c in found], 0), color=greys[place], marker="o", ms=4)
        scores = np.array([course.accuracy for course in found])
        half = stats.t.ppf(0.975, len(scores) - 1) * scores.std(ddof=1) / len(scores) ** 0.5
        right.barh(place, scores.mean(), 0.65, color=greys[place], xerr=half, capsize=3)
        right.text(1, place, f"{scores.mean():.1f} ± {half:.1f}", color="white", va="center", fontsize=8)
        far = np.mean([course.moved[-1] for course in found])
        print(f"{name}: accuracy {scores.mean():.1f} ± {half:.1f} %, answers moved by {far:.1f}")
    left.set(xlabel="tasks learnt", ylabel="how far answers to 0 and 1 have moved", xticks=range(1, 6))
    right.set(xlabel="accuracy on all ten digits in the end (%)", yticks=range(4), yticklabels=courses)
    right.invert_yaxis()
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160)


def main(folder: Path, seeds: int, epochs: int) -> None:
    courses = {name: [learn(loss, seed, epochs) for seed in range(seeds)] for name, loss in LOSSES.items()}
    every = list(courses.values())
    draw_answers(every[0], every[-1], folder / "answers.png")
    draw_terms(courses, folder / "terms.png")


if __name__ == "__main__":
    parser = ArgumentParser(description="Draw why nets forget, and what SER does.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("."))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10, help="of each task")
    main(**vars(parser.parse_args()))
