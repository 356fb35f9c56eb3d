"""The start of a worker process: it ends with its parent even while it imports PyTorch for seconds."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection


class ParentWatch(threading.Thread):
    """Ends the process soon after its parent died, even in a long step; every file is whole at any moment."""

    def __init__(self) -> None:
        super().__init__(name="parent-watch", daemon=True)
        self.on_death: Callable[[], float] = lambda: 0.0  # returns the seconds that are left

    def run(self) -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            time.sleep(self.on_death())
            os._exit(1)


def begin(link: Connection, threads: int) -> None:
    """The main function of a worker; its options come through the link: reading them imports PyTorch."""
    watch = ParentWatch()
    watch.start()
    from strongreplay.runs.workers import work

    work(link, link.recv(), threads, watch)
