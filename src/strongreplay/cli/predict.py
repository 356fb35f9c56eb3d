"""ser predict: ask a model that is kept in a folder."""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.cli.update_output import printable
from strongreplay.errors import DataError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from torch import Tensor, device

    from strongreplay.data.user_data import Label
    from strongreplay.models.model import Model

ARRAYS = (".npz", ".npy")
PATIENCE = 2.0  # seconds until a person wonders

State = Annotated[Path, typer.Argument(metavar="STATE", help="Folder of the model, as made by: ser learn")]
Named = Annotated[str | None, typer.Option(help="v2, or candidate.", show_default="the version in use")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps ...")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads.", show_default="PyTorch's choice")]


def predict_command(
    state: State,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="Images, folders of images at any depth, .npz or .npy arrays; - reads paths from stdin, "
            "one a line.",
        ),
    ],
    top: Annotated[int, typer.Option(min=1, help="So many of the likeliest classes.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    version: Named = None,
    device: Device = "auto",
    threads: Threads = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples read and answered at once.")] = 256,
) -> None:
    """Print path, label and probability of each sample, with tabs between them.

    Backslashes and what cannot be printed are escaped. What cannot be read is
    told on stderr, the rest goes on, and the exit code is 1.
    """
    from strongreplay.models.load import load_model
    from strongreplay.models.store import Store

    _, model = load_model(Store(state), version, choose_device(device, threads))
    write = json_line if as_json else text_line
    files, faults = find_files(paths)
    num_faults = len(faults)
    tell_faults(faults)
    try:
        with Bar(len(files)) as bar:
            for batch in read_batches(files, model.shape, batch_size):
                tell_faults(batch.faults)
                num_faults += len(batch.faults)
                if batch.names:
                    answers = ask(model, batch.inputs, top)
                    typer.echo("\n".join(map(write, batch.names, answers)))
                bar.advance(batch.files)
    except BrokenPipeError:  # nobody reads any more, as after: | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at its end
    if num_faults:
        raise typer.Exit(1)


def choose_device(name: str, threads: int | None) -> "device":
    import torch

    from strongreplay.training.devices import find_device

    if threads:
        torch.set_num_threads(threads)
    return find_device(name)


@dataclass(frozen=True, slots=True)
class Answers:
    """A batch that was read."""

    names: list[str]
    inputs: "Tensor"
    faults: list[str]
    files: float  # how many, with a part of one for a part of an array


def find_files(paths: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Every file in order, and what is wrong with those that lead nowhere."""
    from strongreplay.data.user_data import find_images

    found: list[Path] = []
    faults: list[str] = []
    for path in paths:
        given = stdin_lines() if path == "-" else [path]
        for each in given:
            try:
                found += find_images([Path(each)])
            except DataError as error:
                faults.append(str(error))
    return found, faults


def stdin_lines() -> list[str]:
    """As bytes first: a file's name need not be valid text."""
    lines = sys.stdin.buffer.read().split(b"\n")
    return [os.fsdecode(line.removesuffix(b"\r")) for line in lines if line.strip()]


def read_batches(files: Sequence[Path], shape: tuple[int, ...], batch_size: int) -> Iterator[Answers]:
    """Never more than a batch in memory, except of an .npz file, which is read whole."""
    from strongreplay.data.user_data import stream_images

    for is_array, group in groupby(files, lambda path: path.suffix.lower() in ARRAYS):
        some = list(group)
        if is_array:
            for path in some:
                yield from read_array(path, shape, batch_size)
            continue
        for read, images, faults in stream_images(some, shape, batch_size):
            told = [reason for _, reason in faults]
            yield Answers([str(path) for path in read], images, told, len(read) + len(faults))


def read_array(path: Path, shape: tuple[int, ...], batch_size: int) -> Iterator[Answers]:
    from torch import empty

    from strongreplay.data.user_data import open_array, read_inputs

    start, stop = 0, 0
    try:
        array = open_array(path)
        count = len(array) if array.ndim else 0
        for start in range(0, max(1, count), batch_size):
            stop = min(count, start + batch_size)
            inputs = read_inputs(array[start:stop] if array.ndim else array, shape=shape)
            yield Answers([f"{path}#{row}" for row in range(start, stop)], inputs, [], (stop - start) / count)
    except DataError as error:
        where = f"{path}, rows {start} to {stop - 1}: " if stop else ""
        yield Answers([], empty(0), [f"{where}{error}"], 0)


def ask(model: "Model", inputs: "Tensor", top: int) -> "list[list[tuple[Label, float]]]":
    """The likeliest classes of each sample with their probabilities."""
    probabilities = model.scores(inputs).double().softmax(1)
    values, columns = probabilities.topk(min(top, len(model.labels)), dim=1)
    return [
        [(model.labels[column], value) for column, value in zip(*row, strict=True)]
        for row in zip(columns.tolist(), values.tolist(), strict=True)
    ]


def json_line(path: str, found: "list[tuple[Label, float]]") -> str:
    label, probability = found[0]
    return json.dumps({"path": path, "label": label, "probability": probability, "top": found})


def text_line(path: str, found: "list[tuple[Label, float]]") -> str:
    cells = [cell for label, value in found for cell in (one_line(str(label)), f"{value:.4f}")]
    return "\t".join([one_line(path), *cells])


def one_line(text: str) -> str:
    """Without tabs, ends of line and the like, and so that it can be undone."""
    return printable(text.replace("\\", "\\\\"))


def tell_faults(faults: Sequence[str]) -> None:
    for text in faults:
        typer.secho(f"error: {printable(text)}", fg="red", err=True)


class Bar:
    """On a terminal, unless the answers themselves are seen there."""

    def __init__(self, total: float) -> None:
        self.total, self.done = total, 0.0
        self.progress: Progress | None = None
        self.task: TaskID | None = None
        self.next = time.monotonic() + PATIENCE
        self.wanted = sys.stderr.isatty() and not sys.stdout.isatty()

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *error: object) -> None:
        if self.progress:
            self.progress.stop()

    def advance(self, files: float) -> None:
        self.done += files
        if self.wanted and self.progress is None and time.monotonic() > self.next:
            from rich.console import Console
            from rich.progress import Progress

            console = Console(stderr=True)
            # The answers go where they belong and not through the bar's console.
            self.progress = Progress(console=console, transient=True, redirect_stdout=False)
            self.task = self.progress.add_task("answering", total=self.total)
            self.progress.start()
        if self.progress and self.task is not None:
            self.progress.update(self.task, completed=self.done)
