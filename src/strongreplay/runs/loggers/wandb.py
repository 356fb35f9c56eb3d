"""WandbLogger: an offline run of Weights & Biases for each run, which `wandb sync` sends on."""

import io
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from PIL import Image

from strongreplay.runs.config import RunConfig
from strongreplay.runs.loggers.base import Rows, RunLogger, Scalar, matrix_png
from strongreplay.storage import files
from strongreplay.storage.records import fingerprint


class WandbLogger(RunLogger):
    def __init__(self, config: RunConfig, out: Path) -> None:
        super().__init__(config, out)
        self.folder, self.run = out / "wandb.logs", cast(Any, None)
        self.id = f"{fingerprint(config.to_dict())}-{config.seed}"

    def open(self, first_step: int) -> None:
        import wandb

        files.make_folder(self.folder)
        # Neither the console nor the machine is watched: a run has its record for that.
        quiet = wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True
        )
        self.run = wandb.init(
            mode="offline",
            dir=str(self.folder),
            project="strongreplay",
            group=str(Path(self.name).parent),
            name=self.name,
            id=self.id,
            resume="allow",
            reinit="create_new",
            config=self.settings,
            settings=quiet,
        )

    def write_scalars(self, scalars: list[Scalar]) -> None:
        for step, group in groupby(scalars, lambda one: one.step):
            self.run.log({one.name: one.value for one in group}, step=step)

    def write_matrix(self, scenario: str, rows: Rows) -> None:
        import wandb

        image = wandb.Image(Image.open(io.BytesIO(matrix_png(rows, scenario))))
        self.run.log({f"matrix/{scenario}": image}, step=self.step)

    def close(self, outcome: str, metrics: dict[str, float]) -> None:
        self.run.summary.update({f"final/{name}": value for name, value in metrics.items()})
        self.run.finish(exit_code=0 if outcome == "finished" else 1)
