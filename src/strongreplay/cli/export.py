"""ser export: a kept model as one ONNX file, or as a folder for a model hub or MLflow."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from strongreplay.cli.commands import KEEP, Command
from strongreplay.cli.options import StateFolder, VersionName
from strongreplay.cli.text import count_of, format_bytes, join_names, print_line, print_note
from strongreplay.errors import ConfigError
from strongreplay.models.export_usage import text_beside

CHECKED = 100  # samples of the memory on which PyTorch and the file must agree


def export_command(
    state: StateFolder,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The file or folder to write, such as model.onnx.")
    ],
    form: Annotated[
        Literal["onnx", "hub", "mlflow"],
        typer.Option(
            "--format",
            help="onnx: one file; hub: a folder with safetensors, config.json, labels and a model card; "
            "mlflow: a model folder of MLflow.",
        ),
    ] = "onnx",
    version: VersionName = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing ONNX file.")] = False,
) -> None:
    """Write a model as ONNX: all between an RGB image of any size and a label, in one file.

    The file is written only if onnxruntime gives the same logits as PyTorch;
    a text beside it, such as model.onnx.md, says how to use it.
    With --format hub or mlflow, write a folder instead.

    Example: ser export kept model.onnx, or: ser export kept card/ --format hub
    """
    if form != "onnx":
        export_folder(state, out, form, version)
        return
    if out.is_dir():
        raise ConfigError(f"{out}: a folder is there; name a file, such as model.onnx")
    for path in (out, text_beside(out)):
        if os.path.lexists(path) and not force:
            raise ConfigError(
                f"{path}: the file exists already; choose another name, or replace it with --force"
            )

    import torch
    from rich.console import Console

    from strongreplay.models.deployment import export_model
    from strongreplay.models.export import require_packages
    from strongreplay.models.memory_view import KINDS, all_images, read_parts
    from strongreplay.models.parts import FROZEN, TO_ANSWER, model_of
    from strongreplay.models.store import Store

    require_packages()
    found, parts = read_parts(Store(state), version, (*TO_ANSWER, FROZEN, *KINDS))
    model = model_of({part: tree for part, tree in parts.items() if part not in KINDS}, torch.device("cpu"))
    for note in model.notes:
        print_note(note)
    with Console(stderr=True).status("writing and checking"):
        images = all_images(parts)[:CHECKED]
        exported = export_model(model, out, images, version=found.name, written=found.written)
    print_line(f"{exported.path}: {found.name}, {format_bytes(exported.bytes)}, opset {exported.opset}")
    print_line(f"labels: {join_names(model.labels)}; all are in the metadata")
    print_line(
        f"onnxruntime and PyTorch differ by at most {exported.max_difference:.1e} on "
        f"{count_of(exported.num_checked, 'sample')}",
    )
    print_line(f"{text_beside(exported.path).name} beside it says how to use it")


def export_folder(state: Path, out: Path, form: str, version: str | None) -> None:
    from strongreplay.models.hand_over import write_hub_folder, write_mlflow_folder
    from strongreplay.models.store import Store

    write = write_hub_folder if form == "hub" else write_mlflow_folder
    found = write(Store(state), version, out)
    print_line(f"{out}: {found.name}, {', '.join(sorted(path.name for path in out.iterdir()))}")


COMMAND = Command("export", export_command, KEEP, 90)
