"""Hand a version over as a folder that others can load: weights, configuration, labels and a model card.

`hub`: model.safetensors, config.json, labels.json and README.md (the card). `mlflow`: the same inside a model
folder of MLflow, with a loader that needs strongreplay and executes no pickle.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as pack_tensors

from strongreplay import __version__
from strongreplay.errors import ConfigError, DataError
from strongreplay.models.check import check_parts
from strongreplay.models.model import Model
from strongreplay.models.model_card import write_card
from strongreplay.models.parts import FROZEN, TO_ANSWER, model_of
from strongreplay.models.store import Store, Version
from strongreplay.storage import files
from strongreplay.storage.state import MALFORMED, pack, unpack

FORMAT = 1
TENSORS, CONFIG, LABELS, CARD = "model.safetensors", "config.json", "labels.json", "README.md"
JSON_LIMIT, TENSOR_LIMIT = 64_000_000, 8_000_000_000  # bytes
REMEDY = "export the model again"
FLAVOUR = "strongreplay.models.mlflow_loader"


def write_hub_folder(store: Store, version: str | None, folder: Path) -> Version:
    """Write a version as a folder for a model hub; an error leaves no folder."""
    found, parts = store.read(version, TO_ANSWER, (FROZEN,))
    model = model_of(parts, torch.device("cpu"))  # check that the model loads before writing it
    plain, tensors = pack(dict(parts))
    config = {
        "library_name": "strongreplay",
        "format": FORMAT,
        "package": __version__,
        "version": found.name,
        "written": found.written,
        "pipeline_tag": "image-classification" if len(model.shape) == 3 else "tabular-classification",
        "id2label": {str(column): label for column, label in enumerate(model.labels)},
        "input_shape": list(model.shape),
        "image_mean": model.mean,
        "image_std": model.std,
        "parts": plain,
    }
    contents = {
        TENSORS: pack_tensors(tensors, metadata={"format": "pt"}),
        CONFIG: json.dumps(config, indent=1).encode(),
        LABELS: json.dumps(list(model.labels), indent=1, ensure_ascii=False).encode(),
        CARD: write_card(model, found).encode(),
    }
    refuse_existing(folder)
    with files.new_folder(folder) as beside:
        for name, data in contents.items():
            with files.new_file(beside / name) as file:
                file.write(data)
    return found


def write_mlflow_folder(store: Store, version: str | None, folder: Path) -> Version:
    """Write a version as an MLflow model that `mlflow.pyfunc.load_model` loads."""
    try:
        import mlflow.pyfunc
    except ModuleNotFoundError as error:  # mlflow-skinny alone lacks pandas
        raise ConfigError(f"{error.name} is missing; pip install mlflow-skinny pandas") from None
    refuse_existing(folder)
    hub = files.name_beside(folder)
    try:
        found = write_hub_folder(store, version, hub)
        with files.new_folder(folder) as beside:
            mlflow.pyfunc.save_model(
                beside,
                loader_module=FLAVOUR,
                data_path=str(hub),
                pip_requirements=[f"strongreplay=={__version__}"],
                metadata={"version": found.name, "written": found.written},
            )
    finally:
        files.remove_quietly(hub)
    return found


def read_hub_folder(folder: Path, device: torch.device) -> Model:
    """The model of a folder that `write_hub_folder` wrote; nothing in it is executed or trusted."""
    try:
        config: dict[str, Any] = files.parse_json(files.read_bytes(folder / CONFIG, JSON_LIMIT, REMEDY))
        if config["format"] > FORMAT:
            raise DataError(
                f"{folder}: format {config['format']} is newer than {FORMAT}; update strongreplay"
            )
        data = files.read_bytes(folder / TENSORS, TENSOR_LIMIT, REMEDY)
        parts = unpack(config["parts"], parse_tensors(data))
    except MALFORMED as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{folder}: not an exported model ({type(error).__name__}: {error}); {REMEDY}"
        ) from None
    check_parts(parts, folder)
    return model_of(parts, device)


def refuse_existing(folder: Path) -> None:
    if os.path.lexists(folder):
        raise ConfigError(f"{folder}: exists already; choose another name")
