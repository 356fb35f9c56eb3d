"""Batcher: requests that arrive together share a forward pass.

One thread computes. It takes the first waiting request, waits a little for others, and answers them together.
"""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from strongreplay.data.user_data import Label
from strongreplay.models.model import Model
from strongreplay.serve.live import LiveModel


class Full(Exception):
    """Too many images are waiting."""


@dataclass(frozen=True, slots=True)
class Answer:
    """(N, K) probabilities, with the labels of the columns and the version that answered."""

    version: str
    labels: list[Label]
    probabilities: Tensor


@dataclass(frozen=True, slots=True)
class Request:
    images: Tensor
    future: "Future[Answer]"


class Batcher:
    def __init__(
        self,
        live: LiveModel,
        wait_seconds: float,
        batch_size: int,
        queue_size: int,
        on_batch: Callable[[int, float], None] = lambda images, seconds: None,
        on_logits: Callable[[str, Tensor], None] = lambda version, logits: None,
    ) -> None:
        self.live, self.wait_seconds = live, wait_seconds
        self.batch_size, self.queue_size = batch_size, queue_size
        self.on_batch, self.on_logits = on_batch, on_logits
        self.requests: queue.Queue[Request | None] = queue.Queue()
        self.num_waiting, self.lock = 0, threading.Lock()
        self.thread = threading.Thread(target=self.work, name="batcher", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Answer what is waiting, then end the thread."""
        self.requests.put(None)
        if self.thread.is_alive():
            self.thread.join()

    def check_room(self, count: int) -> None:
        if self.num_waiting + count > self.queue_size:
            raise Full(f"{self.num_waiting} images are waiting, at most {self.queue_size} may")

    def submit(self, images: Tensor) -> "Future[Answer]":
        """Queue (N, C, H, W) images of one request."""
        with self.lock:
            self.check_room(len(images))
            self.num_waiting += len(images)
        request = Request(images, Future())
        self.requests.put(request)
        return request.future

    def work(self) -> None:
        while (first := self.requests.get()) is not None:
            batch, is_last = self.gather(first)
            self.answer([request for request in batch if request.future.set_running_or_notify_cancel()])
            with self.lock:
                self.num_waiting -= sum(len(request.images) for request in batch)
            if is_last:
                return

    def gather(self, first: Request) -> tuple[list[Request], bool]:
        """Requests for one forward pass; True if the batcher was asked to stop."""
        batch, count, end = [first], len(first.images), time.monotonic() + self.wait_seconds
        while count < self.batch_size:
            try:
                request = self.requests.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            if request is None:
                return batch, True
            batch.append(request)
            count += len(request.images)
        return batch, False

    def answer(self, batch: list[Request]) -> None:
        if not batch:
            return
        loaded, began = self.live.loaded, time.perf_counter()
        try:
            images = torch.cat([request.images for request in batch])
            logits = score(loaded.model, images)
            probabilities = logits.double().softmax(1)
            self.on_logits(loaded.version.name, logits)
        except Exception as error:
            for request in batch:
                request.future.set_exception(error)
            return
        self.on_batch(len(images), time.perf_counter() - began)
        sizes = [len(request.images) for request in batch]
        for request, part in zip(batch, probabilities.split(sizes), strict=True):
            request.future.set_result(Answer(loaded.version.name, loaded.model.labels, part))


def score(model: Model, images: Tensor) -> Tensor:
    """(N, K) logits. A frozen backbone is no faster in batches, and fills up those of a few images."""
    if model.reader is None:
        return model.scores(images)
    return torch.cat([model.scores(image) for image in images.split(1)])
