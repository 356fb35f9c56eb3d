"""LiveModel: the version in use of a kept model; follows `ser learn` and `ser rollback` without a restart."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from strongreplay.errors import DataError, SerError
from strongreplay.models.load import load_model
from strongreplay.models.model import Model
from strongreplay.models.store import Store, Version

LOOK_SECONDS = 0.5  # between two looks at which version is in use


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A version and its model; both change together."""

    version: Version
    model: Model


class LiveModel:
    """The model of the version in use. If it cannot be loaded, that is reported and the last one stays."""

    def __init__(
        self, store: Store, device: torch.device, tell: Callable[[str], None] = lambda text: None
    ) -> None:
        self.store, self.device, self.tell = store, device, tell
        self.loaded = self.load()
        self.lock = threading.Lock()  # one refresh at a time
        self.problem: str | None = None  # why a newer version is not served
        self.num_reloads = 0
        self.since = time.time()
        self.ended = threading.Event()
        self.watcher = threading.Thread(target=self.watch, name="version-watcher", daemon=True)

    def load(self) -> ServedModel:
        loaded = ServedModel(*load_model(self.store, None, self.device))
        shape = loaded.model.shape
        if len(shape) != 3:
            raise DataError(
                f"{self.store.folder}: takes features, not images; `ser serve` serves image models"
            )
        loaded.model.method.eval()  # for good: threads that share it need not switch its mode
        loaded.model.scores(torch.zeros((1, *shape), dtype=torch.uint8))  # the first forward pass is slow
        return loaded

    def refresh(self) -> bool:
        """Load the version in use if it is another; returns whether the model changed."""
        with self.lock:
            return self.look()

    def look(self) -> bool:
        try:
            if self.store.current == self.loaded.version.name:
                self.problem = None
                return False
            self.loaded = self.load()  # one assignment: a request sees the old or the new version
        except (SerError, OSError) as error:
            if str(error) != self.problem:
                self.tell(f"{error}; {self.loaded.version.name} is still served")
            self.problem = str(error)
            return False
        self.problem, self.since, self.num_reloads = None, time.time(), self.num_reloads + 1
        self.tell(f"{self.loaded.version.name} is served now")
        return True

    def watch(self) -> None:
        while not self.ended.wait(LOOK_SECONDS):
            self.refresh()

    def start(self) -> None:
        self.watcher.start()

    def stop(self) -> None:
        self.ended.set()
        if self.watcher.is_alive():
            self.watcher.join()
