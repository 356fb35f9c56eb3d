"""Pictures made with matplotlib, readable in black and white: every method has its own marker and dash as
well.
"""

from pathlib import Path

import numpy as np

from strongreplay.report.tables import Group

# Okabe and Ito's palette, told apart by colour-blind readers; yellow is left out because it fades on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
DASHES = ("-", "--", "-.", ":")
# A method looks the same in every picture; one that is not named here follows behind.
ORDER: tuple[str, ...] = (
    *("sgd", "ser", "er", "derpp", "der", "joint", "icarl", "ert", "gem", "agem", "fdr", "gss", "hal", "lwf"),
    *("oewc", "si", "clser", "tamil", "rm", "co2l", "lvt"),
)
TITLES = {"class-il": "Class-IL", "task-il": "Task-IL", "domain-il": "Domain-IL"}


def accuracy_curves(groups: list[Group], path: Path) -> Path:
    """Mean accuracy on the tasks seen so far after each task, a line a method, deviation as a band."""
    from matplotlib.figure import Figure  # no pyplot: no global state, no display needed

    settings = [setting for setting in TITLES if any(setting in g.records[0].settings for g in groups)]
    figure = Figure(figsize=(5.2 * len(settings), 4), layout="constrained")
    panels = figure.subplots(1, len(settings), squeeze=False, sharey=False)[0]
    for panel, setting in zip(panels, settings, strict=True):
        taken: set[int] = set()
        for group in groups:
            number = ORDER.index(group.method) if group.method in ORDER else len(ORDER)
            while number in taken:  # a variant of a method that is in the picture already
                number += len(ORDER)
            taken.add(number)
            draw_curve(panel, group, setting, number)
        panel.set(title=f"{groups[0].stream}, {TITLES[setting]}", xlabel="tasks learnt")
        panel.set_ylabel("accuracy on tasks seen so far (%)")
        num_tasks = max(len(group.records[0].matrix(setting)[-1]) for group in groups)
        panel.set_xticks(range(1, num_tasks + 1) if num_tasks <= 10 else range(2, num_tasks + 1, 2))
        panel.grid(alpha=0.3)
    panels[-1].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def draw_curve(panel: object, group: Group, setting: str, number: int) -> None:
    from matplotlib.axes import Axes

    assert isinstance(panel, Axes)
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    label = f"{group.name} (n={len(group.records)})"
    curves = np.array(group.curves(setting))  # (seeds, tasks)
    if curves.shape[1] == 1:  # joint training has no path, only an end
        panel.axhline(float(curves.mean()), color=colour, linestyle=":", label=label)
        return
    tasks, mean = np.arange(1, curves.shape[1] + 1), curves.mean(axis=0)
    panel.plot(tasks, mean, color=colour, marker=marker, linestyle=dash, label=label, markersize=5)
    if len(curves) > 1:
        deviation = curves.std(axis=0, ddof=1)
        panel.fill_between(
            tasks, mean - deviation, np.minimum(mean + deviation, 100), color=colour, alpha=0.15, linewidth=0
        )
