"""RunLogger: turns the events of a run into scalars, matrices, settings and final metrics.

A logger for another program defines `open`, `write_scalars`, `write_matrix` and `close`.
"""

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from strongreplay.metrics import as_matrix
from strongreplay.protocol import Terms
from strongreplay.runs.config import RunConfig
from strongreplay.storage.records import RunRecord, flatten, format_setting, read_record, record_path
from strongreplay.training.events import Listener, Outcome, Position, RunInfo, Scores

Rows = list[list[float | None]]  # of an accuracy matrix
MOST_NUMBERS = 10  # tasks; with more, numbers in the cells are too small to read


class Scalar(NamedTuple):
    name: str  # such as loss/replay
    step: int  # of the whole run
    value: float


class RunLogger(Listener):
    """Steps are kept as they come, on the device, and read at the end of an epoch or at a checkpoint."""

    def __init__(self, config: RunConfig, out: Path) -> None:
        self.config, self.path = config, record_path(out, config.to_dict())
        self.name = record_path(Path(), config.to_dict()).with_suffix("").as_posix()
        self.out, self.step = out, 0
        self.steps: list[tuple[str, int, torch.Tensor]] = []

    # What a program needs

    def open(self, first_step: int) -> None:
        """The run begins; after a resume it goes on after `first_step` steps, and later scalars are void."""
        raise NotImplementedError

    def write_scalars(self, scalars: list[Scalar]) -> None:
        raise NotImplementedError

    def write_matrix(self, scenario: str, rows: Rows) -> None:
        """The final accuracy matrix of a scenario, such as class-il."""
        raise NotImplementedError

    def close(self, outcome: str, metrics: dict[str, float]) -> None:
        """The run ended as `outcome` says; if it is recorded, these are its final metrics."""
        raise NotImplementedError

    # Events

    def on_start(self, run: RunInfo) -> None:
        self.step = run.steps_done
        self.open(run.steps_done)

    def on_step(self, position: Position, terms: Terms) -> None:
        self.step = position.steps_done
        place = "loss of step" if position.phase == "main" else f"loss of step, {position.phase}"
        self.steps += [(f"{place}/{name}", self.step, term) for name, term in terms.items()]

    def on_epoch(self, position: Position, terms: dict[str, float], rate: float, seconds: float) -> None:
        of_phase = "" if position.phase == "main" else f", {position.phase}"
        means = [Scalar(f"loss{of_phase}/{name}", self.step, value) for name, value in terms.items()]
        further = [Scalar(f"epoch{of_phase}/rate", self.step, rate)]
        further += [Scalar(f"epoch{of_phase}/seconds", self.step, seconds)]
        self.write_scalars([*self.take_steps(), *means, *further])

    def on_checkpoint(self, path: Path) -> None:
        self.write_scalars(self.take_steps())

    def on_task(self, index: int, scores: Scores) -> None:
        scalars = []
        for scenario, row in scores.items():
            known = [(task, value) for task, value in enumerate(row, 1) if value is not None]
            scalars += [Scalar(f"{scenario}/task {task}", self.step, value) for task, value in known]
            learnt = [value for task, value in known if task <= index + 1]
            scalars.append(Scalar(f"{scenario}/tasks so far", self.step, sum(learnt) / len(learnt)))
        self.write_scalars(scalars)

    def on_end(self, outcome: Outcome) -> None:
        if steps := self.take_steps():
            self.write_scalars(steps)
        record = self.record() if outcome.kind == "finished" else None
        for scenario in record.scenarios if record else ():
            assert record
            self.write_matrix(scenario, record.matrix(scenario))
        self.close(outcome.kind, metrics_of(record) if record else {})

    def take_steps(self) -> list[Scalar]:
        """The scalars of all steps since the last call, read from the device at once."""
        steps, self.steps = self.steps, []
        values = torch.stack([term for _, _, term in steps]).tolist() if steps else []
        return [Scalar(name, step, value) for (name, step, _), value in zip(steps, values, strict=True)]

    def record(self) -> RunRecord | None:
        """A finished run writes its record before its last event."""
        return read_record(self.path) if self.path.exists() else None

    @property
    def settings(self) -> dict[str, str]:
        """All settings as texts in the form of the command line."""
        return {key: format_setting(value) for key, value in flatten(self.config.to_dict()).items()}


def metrics_of(record: RunRecord) -> dict[str, float]:
    """Every metric of every scenario, such as class-il/average_accuracy."""
    found = {
        f"{scenario}/{name}": value
        for scenario in record.scenarios
        for name, value in record.results["accuracy"][scenario].items()
        if name not in ("matrix", "untrained")
    }
    return {name: value for name, value in found.items() if value is not None}


def matrix_png(rows: Rows, title: str) -> bytes:
    """An accuracy matrix as a picture, with numbers in the cells of short ones."""
    import matplotlib
    from matplotlib.figure import Figure

    matrix = as_matrix(rows)
    figure = Figure(figsize=(4, 3.4), layout="constrained")
    panel = figure.subplots()
    shown = panel.imshow(matrix, vmin=0, vmax=100, cmap=matplotlib.colormaps["cividis"])
    for (row, column), value in np.ndenumerate(matrix):
        if len(matrix) <= MOST_NUMBERS and np.isfinite(value):
            ink = "black" if value > 50 else "white"
            panel.text(column, row, f"{value:.0f}", color=ink, ha="center", va="center", fontsize="small")
    panel.set(title=title, xlabel="task", ylabel="after learning task")
    panel.set_xticks(range(matrix.shape[1]), [str(number + 1) for number in range(matrix.shape[1])])
    panel.set_yticks(range(len(matrix)), [str(number + 1) for number in range(len(matrix))])
    figure.colorbar(shown, label="accuracy (%)")
    held = io.BytesIO()
    figure.savefig(held, format="png", dpi=100)
    return held.getvalue()
