"""MLflowLogger: a run of MLflow for each run, in a database beside the records or on the user's server."""

import io
import logging
import time
from pathlib import Path
from typing import Any

from PIL import Image

from strongreplay.runs.config import RunConfig
from strongreplay.runs.loggers.base import Rows, RunLogger, Scalar, matrix_png
from strongreplay.storage import files

MOST = 500  # metrics of one call
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
TAG = "strongreplay.run"


class MLflowLogger(RunLogger):
    def __init__(self, config: RunConfig, out: Path) -> None:
        super().__init__(config, out)
        self.client, self.id = make_client(out), ""

    @staticmethod
    def prepare(out: Path) -> None:
        """Make the database before several processes use it."""
        make_client(out).search_experiments(max_results=1)

    def open(self, first_step: int) -> None:
        """After a resume, go on in the same run; steps since the checkpoint come again, with equal values."""
        experiment, found = self.experiment(), []
        if first_step:
            found = self.client.search_runs([experiment], f"tags.`{TAG}` = '{self.name}'", max_results=1)
        if found:
            self.id = found[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            return
        made = self.client.create_run(experiment, run_name=self.name, tags={TAG: self.name})
        self.id = made.info.run_id
        for key, value in self.settings.items():
            self.client.log_param(self.id, key, value)

    def experiment(self) -> str:
        name = self.config.stream
        if found := self.client.get_experiment_by_name(name):
            return str(found.experiment_id)
        place = None if uses_server() else (self.out / "mlflow.logs" / "artifacts").absolute().as_uri()
        try:
            return str(self.client.create_experiment(name, artifact_location=place))
        except Exception:  # another process may have made it in the meantime
            if found := self.client.get_experiment_by_name(name):
                return str(found.experiment_id)
            raise

    def write_scalars(self, scalars: list[Scalar]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(one.name.replace(",", ""), one.value, now, one.step) for one in scalars]
        for start in range(0, len(metrics), MOST):
            self.client.log_batch(self.id, metrics=metrics[start : start + MOST])

    def write_matrix(self, scenario: str, rows: Rows) -> None:
        image = Image.open(io.BytesIO(matrix_png(rows, scenario)))
        self.client.log_image(self.id, image, f"matrix/{scenario}.png")

    def close(self, outcome: str, metrics: dict[str, float]) -> None:
        self.write_scalars([Scalar(f"final/{name}", self.step, value) for name, value in metrics.items()])
        self.client.set_terminated(self.id, status=STATUS[outcome])


def uses_server() -> bool:
    from mlflow.tracking import is_tracking_uri_set

    asked: Any = is_tracking_uri_set  # it has no types
    return bool(asked())  # by the environment or by a program


def make_client(out: Path) -> Any:
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)  # hides its messages about creating tables
    if uses_server():
        return MlflowClient()
    folder = (out / "mlflow.logs").absolute()
    files.make_folder(folder)
    return MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
