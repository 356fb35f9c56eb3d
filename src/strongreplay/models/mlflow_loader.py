"""What MLflow calls to load an exported model: inputs are a table of images, answers a list of labels."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import torch

from strongreplay.data.images import BadImage, decode_bytes
from strongreplay.data.user_data import read_inputs
from strongreplay.errors import DataError
from strongreplay.models.hand_over import read_hub_folder
from strongreplay.training.devices import find_device


class MLflowModel:
    def __init__(self, folder: Path) -> None:
        self.model = read_hub_folder(folder, find_device("auto"))

    def predict(self, data: Any, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Label and probability of each sample.

        `data` is a table with a column `image` (bytes of an image file, or the same as base64 text), or an
        array of samples.
        """
        scores = self.model.scores(self.read(data)).double().softmax(1)
        values, columns = scores.max(1)
        return [
            {"label": self.model.labels[column], "probability": value}
            for column, value in zip(columns.tolist(), values.tolist(), strict=True)
        ]

    def read(self, data: Any) -> torch.Tensor:
        if not hasattr(data, "columns"):
            return read_inputs(np.asarray(data), shape=self.model.shape)
        if "image" not in data.columns:
            return read_inputs(data.to_numpy(), shape=self.model.shape)
        images = []
        for row, content in enumerate(data["image"]):
            try:
                content = base64.b64decode(content, validate=True) if isinstance(content, str) else content
                images.append(torch.from_numpy(decode_bytes(bytes(content), self.model.shape)))
            except (BadImage, ValueError, TypeError) as error:
                raise DataError(f"image #{row} {error}; give the bytes of an image file") from None
        return torch.stack(images)


def _load_pyfunc(data_path: str) -> MLflowModel:
    """MLflow looks this name up."""
    return MLflowModel(Path(data_path))
