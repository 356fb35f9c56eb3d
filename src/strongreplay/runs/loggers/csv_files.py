"""CSVLogger: three kinds of tables in a folder for each run, readable by any program."""

import csv
import io
from pathlib import Path

from strongreplay.runs.config import RunConfig
from strongreplay.runs.loggers.base import Rows, RunLogger, Scalar
from strongreplay.storage import files

HEAD = ("name", "step", "value")


class CSVLogger(RunLogger):
    """Writes scalars.csv, a matrix for each scenario, and settings.csv with the final metrics."""

    def __init__(self, config: RunConfig, out: Path) -> None:
        super().__init__(config, out)
        self.folder = out / "csv.logs" / self.name
        self.file = self.folder / "scalars.csv"

    def open(self, first_step: int) -> None:
        """Rows after a resumed step are dropped; they come again."""
        kept = []
        if first_step and self.file.exists():
            rows = list(csv.reader(io.StringIO(self.file.read_text(encoding="utf-8"))))[1:]
            kept = [row for row in rows if len(row) == len(HEAD) and int(row[1]) <= first_step]
        files.write_text(self.file, files.csv_text([HEAD, *kept]))

    def write_scalars(self, scalars: list[Scalar]) -> None:
        files.append(self.file, files.csv_text(scalars).encode())

    def write_matrix(self, scenario: str, rows: Rows) -> None:
        texts = [["" if value is None else value for value in row] for row in rows]
        head = [f"task {number + 1}" for number in range(len(rows[0]))]
        files.write_text(self.folder / f"{scenario}.csv", files.csv_text([head, *texts]))

    def close(self, outcome: str, metrics: dict[str, float]) -> None:
        rows = [("key", "value"), ("run", self.name), ("outcome", outcome)]
        table = [*rows, *self.settings.items(), *metrics.items()]
        files.write_text(self.folder / "settings.csv", files.csv_text(table))
