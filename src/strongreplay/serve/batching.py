"""Batcher: requests that arrive together share a forward pass.

A few threads decode images. One thread computes: it takes the first waiting request, waits a little for
others, and answers them together.
"""

import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from strongreplay.data.user_data import Label
from strongreplay.models.model import Model
from strongreplay.serve.live import LiveModel, ServedModel


class QueueFull(Exception):
    """Too many images are waiting."""


@dataclass(frozen=True, slots=True)
class Answer:
    """(N, K) probabilities, with the labels of the columns and the version that answered."""

    version: str
    labels: list[Label]
    probabilities: Tensor


@dataclass(slots=True)
class Request:
    count: int  # images
    future: "Future[Answer]"
    images: Tensor | None = None  # when they are decoded


class Batcher:
    def __init__(
        self,
        live: LiveModel,
        wait_seconds: float,
        batch_size: int,
        queue_size: int,
        on_batch: Callable[[int, float], None] = lambda images, seconds: None,
        on_answers: Callable[[ServedModel, Tensor, Tensor], None] = lambda loaded, stored, logits: None,
    ) -> None:
        self.live, self.wait_seconds = live, wait_seconds
        self.batch_size, self.queue_size = batch_size, queue_size
        self.on_batch, self.on_answers = on_batch, on_answers
        self.requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self.num_waiting, self.lock = 0, threading.Lock()
        self.readers = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1), "reader")  # one core computes
        self.thread = threading.Thread(target=self.work, name="batcher", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Answer what is waiting, then end the threads."""
        self.readers.shutdown()
        self.requests.put(None)
        if self.thread.is_alive():
            self.thread.join()

    def check_room(self, count: int) -> None:
        if self.num_waiting + count > self.queue_size:
            raise QueueFull(f"{self.num_waiting} images are waiting, at most {self.queue_size} may")

    def submit(self, count: int, decode: Callable[[], Tensor]) -> "Future[Answer]":
        """Queue a request of so many images; `decode` makes them (N, C, H, W) pixels in another thread."""
        with self.lock:
            self.check_room(count)
            self.num_waiting += count
        request = Request(count, Future())
        self.readers.submit(self.read, request, decode)
        return request.future

    def read(self, request: Request, decode: Callable[[], Tensor]) -> None:
        try:
            request.images = decode()
        except Exception as error:
            self.leave([request])
            if request.future.set_running_or_notify_cancel():
                request.future.set_exception(error)
        else:
            self.requests.put(request)

    def leave(self, requests: list[Request]) -> None:
        with self.lock:
            self.num_waiting -= sum(request.count for request in requests)

    def work(self) -> None:
        while (first := self.requests.get()) is not None:
            batch, is_last = self.gather(first)
            self.answer([request for request in batch if request.future.set_running_or_notify_cancel()])
            self.leave(batch)
            if is_last:
                return

    def gather(self, first: Request) -> tuple[list[Request], bool]:
        """Requests for one forward pass; True if the batcher was asked to stop."""
        batch, count, end = [first], first.count, time.monotonic() + self.wait_seconds
        while count < self.batch_size:
            try:
                request = self.requests.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            if request is None:
                return batch, True
            batch.append(request)
            count += request.count
        return batch, False

    def answer(self, batch: list[Request]) -> None:
        if not batch:
            return
        loaded, began = self.live.loaded, time.perf_counter()
        try:
            images = torch.cat([request.images for request in batch if request.images is not None])
            stored = read_features(loaded.model, images)
            logits = loaded.model.scores(stored)
            probabilities = logits.double().softmax(1)
            self.on_answers(loaded, stored, logits)
        except Exception as error:
            for request in batch:
                request.future.set_exception(error)
            return
        self.on_batch(len(images), time.perf_counter() - began)
        sizes = [request.count for request in batch]
        for request, part in zip(batch, probabilities.split(sizes), strict=True):
            request.future.set_result(Answer(loaded.version.name, loaded.model.labels, part))


def read_features(model: Model, images: Tensor) -> Tensor:
    """Images as the method sees them; a backbone is no faster in batches, and fills up those of a few."""
    if model.reader is None:
        return images
    return torch.cat([model.stored(image) for image in images.split(1)])
