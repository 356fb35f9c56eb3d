"""ScoreTable: the accuracies of a net on every task, before the first task and after each."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from strongreplay import metrics
from strongreplay.data.streams import Stream
from strongreplay.methods import MethodRow, scored_scenarios
from strongreplay.training.events import Scores

Predictor = Callable[[Tensor], Tensor]


@dataclass
class ScoreTable:
    """The scores of one net of a method, before the first task and after each task."""

    ask: Predictor | None  # None: the method's default predictor
    untrained: Scores = field(default_factory=dict)
    rows: list[Scores] = field(default_factory=list)


def scenarios_of(stream: Stream, method: MethodRow) -> tuple[str, ...]:
    """The scenarios that a run on the stream is scored in, of those that the method supports."""
    return tuple(name for name in scored_scenarios(stream.scenario) if name in method.scenarios)


def summarise(table: ScoreTable) -> dict[str, Any]:
    """The matrix of each scenario and the metrics computed from it."""
    summary, untrained = {}, table.untrained
    for scenario in untrained:
        matrix_rows = [row[scenario] for row in table.rows]
        matrix, before = metrics.as_matrix(matrix_rows), metrics.as_matrix([untrained[scenario]])[0]
        summary[scenario] = {
            "matrix": matrix_rows,
            "untrained": untrained[scenario],
            **metrics.compute_all(matrix, before),
        }
    return summary
