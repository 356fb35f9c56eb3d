"""TensorBoardLogger: an event file for each run, for `tensorboard --logdir OUT/tensorboard.logs`.

TensorBoard's own writer has a thread, whose errors come late and as tracebacks; here its records are appended
at the end of an epoch, like every file of this package.
"""

import io
import os
import time
from pathlib import Path
from typing import Any

from strongreplay.runs.config import RunConfig
from strongreplay.runs.loggers.base import Rows, RunLogger, Scalar, matrix_png
from strongreplay.storage import files


class TensorBoardLogger(RunLogger):
    def __init__(self, config: RunConfig, out: Path) -> None:
        super().__init__(config, out)
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        self.Event, self.SessionLog, self.Summary = Event, SessionLog, Summary
        self.folder = out / "tensorboard.logs" / self.name
        self.file = self.folder / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"

    def open(self, first_step: int) -> None:
        """After a resume, TensorBoard drops what earlier files have from the next step on."""
        if not first_step:
            files.remove_quietly(self.folder)
        files.make_folder(self.folder)
        begin = self.SessionLog(status=self.SessionLog.START)
        self.write([{"file_version": "brain.Event:2"}, {"session_log": begin, "step": first_step + 1}])

    def write_scalars(self, scalars: list[Scalar]) -> None:
        self.write(
            {
                "step": one.step,
                "summary": self.Summary(value=[self.Summary.Value(tag=one.name, simple_value=one.value)]),
            }
            for one in scalars
        )

    def write_matrix(self, scenario: str, rows: Rows) -> None:
        image = self.Summary.Image(encoded_image_string=matrix_png(rows, scenario))
        held = self.Summary(value=[self.Summary.Value(tag=f"matrix/{scenario}", image=image)])
        self.write([{"step": self.step, "summary": held}])

    def close(self, outcome: str, metrics: dict[str, float]) -> None:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        self.write_scalars([Scalar(f"final/{name}", self.step, value) for name, value in metrics.items()])
        settings = hparams_pb(self.settings | {"outcome": outcome}, trial_id=self.name)
        self.write([{"summary": settings}])

    def write(self, events: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        held, now = io.BytesIO(), time.time()
        writer = RecordWriter(held)
        for event in events:
            writer.write(self.Event(wall_time=now, **event).SerializeToString())
        files.append(self.file, held.getvalue())
