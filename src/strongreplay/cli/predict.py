"""ser predict: classify samples with a kept model."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

import typer

from strongreplay.cli.commands import KEEP, Command
from strongreplay.cli.options import Device, StateFolder, Threads, VersionName, choose_device
from strongreplay.cli.text import print_line, print_note, printable
from strongreplay.errors import DataError
from strongreplay.progress import Bar

if TYPE_CHECKING:
    from torch import Tensor

    from strongreplay.data.user_data import Label
    from strongreplay.models.model import Model

ARRAYS = (".npz", ".npy")
PIECE = 1 << 16  # bytes read from stdin at once


def predict_command(
    state: StateFolder,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="Images, folders of images at any depth, .npz or .npy arrays; - reads paths from stdin, "
            "one per line, and answers each line as it comes.",
        ),
    ],
    top: Annotated[int, typer.Option(min=1, help="How many of the most likely classes to print.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    version: VersionName = None,
    device: Device = "auto",
    threads: Threads = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per batch.")] = 256,
) -> None:
    """Print path, label and probability of each sample, with tabs between them.

    Backslashes and characters that cannot be printed are escaped. If some files
    cannot be read, they are reported on stderr, the others are classified, and
    the exit code is 1. Of those named on stdin, stdout gets the path with an empty
    label too (with --json: error), so that a program that asks always gets an answer.

    Example: ser predict kept photo.jpg, or: find photos -name '*.jpg' | ser predict kept -
    """
    from strongreplay.models.load import load_model
    from strongreplay.models.store import Store

    _, model = load_model(Store(state), version, choose_device(device, threads))
    for note in model.notes:
        print_note(note)
    write = json_line if as_json else text_line
    num_faults = 0
    try:
        for group, is_asked in path_groups(paths):
            files, faults = find_files(group)
            report = partial(report_faults, write if is_asked else None)
            num_faults += report(faults)
            done = 0.0
            with Bar(beside_output=True) as bar:
                for batch in read_batches(files, model.shape, batch_size):
                    num_faults += report(batch.faults)
                    if batch.names:
                        answers = predict(model, batch.inputs, top)
                        typer.echo("\n".join(map(write, batch.names, answers)))
                    done += batch.files
                    bar("answering", done, len(files))
    except BrokenPipeError:  # the reader closed the pipe, such as | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python reports it at exit
    if num_faults:
        raise typer.Exit(1)


class Fault(NamedTuple):
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class LoadedBatch:
    """Samples that were read, and those that could not be."""

    names: list[str]
    inputs: "Tensor"
    faults: list[Fault]
    files: float  # number of files; a part of an array counts as a fraction


def path_groups(paths: Sequence[str]) -> Iterator[tuple[list[str], bool]]:
    """The given paths as one group; for -, a group for each piece of stdin, so that answers come at once.

    With each group, whether it came from stdin.
    """
    given: list[str] = []
    for path in paths:
        if path != "-":
            given.append(path)
            continue
        if given:
            yield given, False
            given = []
        for group in stdin_groups():
            yield group, True
    if given:
        yield given, False


def stdin_groups() -> Iterator[list[str]]:
    """The lines that have arrived on stdin, read as bytes, because file names may be invalid Unicode."""
    rest, stdin = b"", cast(BufferedReader, sys.stdin.buffer)
    while piece := stdin.read1(PIECE):
        *lines, rest = (rest + piece).split(b"\n")
        if names := file_names(lines):
            yield names
    if names := file_names([rest]):
        yield names


def file_names(lines: Sequence[bytes]) -> list[str]:
    return [os.fsdecode(line.removesuffix(b"\r")) for line in lines if line.strip()]


def find_files(paths: Sequence[str]) -> tuple[list[Path], list[Fault]]:
    """Every file in order, and a fault for each path without a file."""
    from strongreplay.data.user_data import find_images

    found: list[Path] = []
    faults: list[Fault] = []
    for path in paths:
        try:
            found += find_images([Path(path)])
        except DataError as error:
            faults.append(Fault(path, str(error)))
    return found, faults


def read_batches(files: Sequence[Path], shape: tuple[int, ...], batch_size: int) -> Iterator[LoadedBatch]:
    """Read one batch at a time; only an .npz file is read completely."""
    from strongreplay.data.user_data import stream_images

    for is_array, group in groupby(files, lambda path: path.suffix.lower() in ARRAYS):
        some = list(group)
        if is_array:
            for path in some:
                yield from read_array(path, shape, batch_size)
            continue
        for read, images, faults in stream_images(some, shape, batch_size):
            found = [Fault(str(path), reason) for path, reason in faults]
            yield LoadedBatch([str(path) for path in read], images, found, len(read) + len(faults))


def read_array(path: Path, shape: tuple[int, ...], batch_size: int) -> Iterator[LoadedBatch]:
    from torch import empty

    from strongreplay.data.convert import as_batch
    from strongreplay.data.user_data import open_array, read_inputs

    start, stop = 0, 0
    try:
        array = as_batch(open_array(path), shape, str(path))
        count = len(array) if array.ndim else 0
        for start in range(0, max(1, count), batch_size):
            stop = min(count, start + batch_size)
            inputs = read_inputs(array[start:stop] if array.ndim else array, shape=shape)
            yield LoadedBatch(
                [f"{path}#{row}" for row in range(start, stop)], inputs, [], (stop - start) / count
            )
    except DataError as error:
        where = f"{path}, rows {start} to {stop - 1}: " if stop else ""
        yield LoadedBatch([], empty(0), [Fault(str(path), f"{where}{error}")], 0)


def predict(model: "Model", inputs: "Tensor", top: int) -> "list[list[tuple[Label, float]]]":
    """The most likely classes of each sample, with their probabilities."""
    probabilities = model.scores(inputs).double().softmax(1)
    values, columns = probabilities.topk(min(top, len(model.labels)), dim=1)
    return [
        [(model.labels[column], value) for column, value in zip(*row, strict=True)]
        for row in zip(columns.tolist(), values.tolist(), strict=True)
    ]


def json_line(path: str, found: "list[tuple[Label, float]]", error: str = "") -> str:
    if error:
        return json.dumps({"path": path, "error": error})
    label, probability = found[0]
    return json.dumps({"path": path, "label": label, "probability": probability, "top": found})


def text_line(path: str, found: "list[tuple[Label, float]]", error: str = "") -> str:
    cells = [cell for label, value in found for cell in (one_line(str(label)), f"{value:.4f}")]
    return "\t".join([one_line(path), *(["", ""] if error else cells)])


def one_line(text: str) -> str:
    """Escape tabs, line breaks and the like so that they can be restored."""
    return printable(text.replace("\\", "\\\\"))


def report_faults(write: Callable[..., str] | None, faults: Sequence[Fault]) -> int:
    """Print faults, with `write` also as lines on stdout; returns how many there are."""
    print_faults(faults)
    if write and faults:
        typer.echo("\n".join(write(fault.path, [], fault.reason) for fault in faults))
    return len(faults)


def print_faults(faults: Sequence[Fault]) -> None:
    for fault in faults:
        print_line(f"error: {printable(fault.reason)}", err=True, fg="red")


COMMAND = Command("predict", predict_command, KEEP, 20)
