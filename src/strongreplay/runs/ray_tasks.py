"""What happens on the nodes of a Ray cluster: the task that makes a run and reports to the driver's inbox."""

import os
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from strongreplay.errors import DataError
from strongreplay.runs.jobs import RunOptions
from strongreplay.runs.ray_inbox import Key
from strongreplay.runs.workers import ReportingListener, attempt_anything
from strongreplay.storage import files
from strongreplay.storage.lock import locked
from strongreplay.storage.records import record_path
from strongreplay.training.events import Scores

Packed = dict[str, bytes]  # files by their path below the folder of records


class InboxListener(ReportingListener):
    """Reports a run to the driver; asks for a stop if the driver does, or if it is gone."""

    def __init__(self, inbox: Any, key: Key, asks: bool, out: Path | None) -> None:
        self.inbox, self.key, self.asks, self.out = inbox, key, asks, out
        self.stopping = False

    def send(self, kind: str, *rest: Any) -> None:
        self.stopping |= bool(self.call(self.inbox.send, kind, *rest))

    def call(self, method: Any, *values: Any) -> Any:
        import ray

        try:
            return ray.get(method.remote(self.key, *values))
        except ray.exceptions.RayError:
            self.stopping = True
            return None

    def wants_stop(self) -> bool:
        return self.stopping

    def on_task(self, index: int, scores: Scores) -> None:
        if self.asks and self.call(self.inbox.judge, index, scores) is not True:
            self.stopping = True

    def on_checkpoint(self, path: Path) -> None:
        if self.out:  # a folder that the driver does not see
            self.send("files", pack(path, self.out))


def make_run_there(
    held: dict[str, Any], source: str, options: RunOptions, threads: int, key: Key, asks: bool, mark: str,
    folder: str, kept: Packed, inbox: Any,
) -> tuple[str, str, Packed]:  # fmt: skip
    """The task: makes a run on a node; returns how it ended, a message, and files that the driver lacks."""
    import ray

    with suppress(OSError):  # a user's own files are named by their path from the driver's folder
        os.chdir(folder)
    torch.set_num_threads(threads)
    is_shared, out = Path(mark).exists(), options.out
    if not is_shared:
        out = Path(tempfile.gettempdir()) / f"ser-{uuid4().hex}"
        unpack(kept, out)
    try:
        listener = InboxListener(inbox, key, asks, None if is_shared else out)
        listener.send("node", ray.get_runtime_context().get_node_id())
        if key[1] > 1:  # a process of a lost node may still be about to end
            with locked(record_path(out, held).with_suffix(".state"), wait=True):
                pass
        how, text = attempt_anything(held, source, replace(options, out=out), listener)
        return how, text, {} if is_shared else pack(out, out)
    finally:
        if not is_shared:
            files.remove_quietly(out)


def pack(place: Path, base: Path) -> Packed:
    found = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    return {path.relative_to(base).as_posix(): path.read_bytes() for path in found if path.name != "lock"}


def unpack(packed: Packed, base: Path) -> None:
    """Write files; the manifest of a checkpoint last, so that it is whole once it is there."""
    for name in sorted(packed, key=lambda name: name.endswith("manifest.json")):
        path = base / name
        if not path.resolve().is_relative_to(base.resolve()):
            raise DataError(f"{name}: a node sent a file for another folder; refused")
        files.write_bytes(path, packed[name])
