"""ImageKeeper: the newest images of requests as files in a folder, if the user asks for it."""

import io
import queue
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from strongreplay.data.images import FORMATS_OF_CALLERS, open_image
from strongreplay.storage import files

NAME = re.compile(r"\d{8}T\d{12}\.(jpeg|png|webp|bmp)")  # other files of the folder are left alone
MOST_WAITING = 8  # images; more are passed over while the disk is busy


class ImageKeeper:
    """Writes images as they were sent, in a thread of its own; the oldest make room for new ones."""

    def __init__(
        self,
        folder: Path,
        count_limit: int,
        bytes_limit: int,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.folder, self.count_limit, self.bytes_limit, self.tell = folder, count_limit, bytes_limit, tell
        self.kept: deque[tuple[str, int]] = deque()  # name and bytes, the oldest first
        self.num_bytes = 0
        self.problem = ""
        self.images: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
        self.thread = threading.Thread(target=self.work, name="image-keeper", daemon=True)
        files.make_folder(folder)
        for path in sorted(folder.iterdir()):  # what an earlier service kept
            if NAME.fullmatch(path.name):
                self.note(path.name, path.lstat().st_size)
        self.make_room()

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Write what is waiting, then end the thread."""
        self.images.put(None)
        self.thread.join()

    def offer(self, images: Iterable[bytes]) -> None:
        """Never waits: what the disk cannot take now is passed over."""
        with suppress(queue.Full):
            for content in images:
                self.images.put_nowait(content)

    def work(self) -> None:
        while (content := self.images.get()) is not None:
            try:
                self.write(content)
                self.problem = ""
            except OSError as error:
                text = f"{self.folder}: images cannot be kept ({error.strerror or error})"
                if text != self.problem:
                    self.tell(f"{text}; the service goes on without")
                self.problem = text

    def write(self, content: bytes) -> None:
        if len(content) > self.bytes_limit:
            return
        with open_image(io.BytesIO(content), FORMATS_OF_CALLERS) as image:
            ending = str(image.format).lower()
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}.{ending}"
        files.write_bytes(self.folder / name, content)
        self.note(name, len(content))
        self.make_room()

    def note(self, name: str, size: int) -> None:
        self.kept.append((name, size))
        self.num_bytes += size

    def make_room(self) -> None:
        while len(self.kept) > self.count_limit or self.num_bytes > self.bytes_limit:
            name, size = self.kept[0]
            files.remove(self.folder / name)
            self.kept.popleft()
            self.num_bytes -= size
