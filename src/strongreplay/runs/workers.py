"""WorkerPool: runs in separate processes, several at a time.

A run that fails or is killed for lack of memory does not affect the others. Each process reports its progress
through a pipe; if the parent is gone, it writes its state and stops. A run whose process died is tried once
more, from its last checkpoint.
"""

import atexit
import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from strongreplay.protocol import Terms
from strongreplay.runs.config import config_of
from strongreplay.runs.jobs import (
    LOOK_SECONDS,
    GridListener,
    Job,
    Judge,
    RunOptions,
    attempt,
    end_or_retry,
    free_device,
)
from strongreplay.runs.worker_start import ParentWatch, begin
from strongreplay.training.events import Listener, Position, RunInfo, Scores

REPORT_SECONDS = 0.5  # between messages about a run's steps
ORPHAN_SECONDS = 3.0  # that a process has to write its state after its parent died


@dataclass(slots=True)
class Worker:
    """A process that makes one run after another."""

    process: SpawnProcess
    link: Connection


@dataclass(slots=True)
class WorkerPool:
    """Processes for runs: made when they are needed, used again, ended with the pool."""

    options: RunOptions
    num_jobs: int
    threads: int | None  # of each run; None: the cores are divided among the runs
    devices: tuple[str, ...]  # dealt out among the runs
    goes_on: Judge
    running: list[Job] = field(default_factory=list)
    idle: list[Worker] = field(default_factory=list)

    def go(self, jobs: Iterable[Job], listener: GridListener) -> Iterator[Job]:
        """Yield each job when it has ended; a run whose process died is tried once more."""
        coming, stopping = iter(jobs), False
        try:
            while True:
                if listener.wants_stop() and not stopping:
                    stopping, coming = True, iter(())
                    self.stop()
                while len(self.running) < self.num_jobs and (job := next(coming, None)):
                    self.start(job)
                if not self.running:
                    return
                for job in self.receive(listener, stopping):
                    if job.ended is None:  # its process died
                        coming = chain([job], coming)
                    else:
                        yield job
                listener.on_tick(self.running)
        finally:
            self.stop()
            for worker in [*self.idle, *(job.worker for job in self.running if job.worker)]:
                worker.link.close()  # ends an idle worker
                worker.process.join()

    def start(self, job: Job) -> None:
        job.worker = self.idle.pop() if self.idle else self.start_worker()
        job.attempts, job.seconds = job.attempts + 1, -time.perf_counter()
        job.device = free_device(self.devices, self.running)
        job.worker.link.send((job.config.to_dict(), job.config.source, job.device))
        self.running.append(job)

    def start_worker(self) -> Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        threads = self.threads or max(1, (os.cpu_count() or 1) // self.num_jobs)
        process = context.Process(target=begin, args=(theirs, threads), daemon=True)
        process.start()
        ours.send(self.options)
        theirs.close()  # only the child's copy stays open, so the pipe closes if the child dies
        return Worker(process, ours)

    def stop(self) -> None:
        for job in self.running:
            if job.worker:
                job.worker.process.terminate()  # the child writes its state and ends

    def receive(self, listener: GridListener, stopping: bool) -> Iterator[Job]:
        """Finished jobs, and jobs whose process died; `ended` is None if a job is tried again."""
        workers = [(job, job.worker) for job in self.running if job.worker]
        readable = wait([worker.link for _, worker in workers], LOOK_SECONDS)
        for job, worker in [(job, worker) for job, worker in workers if worker.link in readable]:
            try:
                kind, *rest = worker.link.recv()
            except (EOFError, ConnectionError):
                kind = "died"
            if kind == "steps":
                job.done, job.total = rest
            elif kind == "message":
                listener.on_message(job.name, rest[0])
            elif kind == "scores":
                with suppress(OSError):  # the closed pipe is noticed in the next round
                    worker.link.send(self.goes_on(job, *rest))
            else:
                if kind == "died":
                    worker.process.join()
                    end_or_retry(job, exit_reason(worker.process.exitcode), listener, stopping)
                else:
                    job.ended = (kind, rest[0])
                    self.idle.append(worker)
                job.worker, job.seconds = None, job.seconds + time.perf_counter()
                self.running.remove(job)
                yield job


def exit_reason(code: int | None) -> str:
    """The reason for the end of a process, from its exit code."""
    if code is None or code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = "; a system that is out of memory ends processes so" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{hint}"


class ReportingListener(Listener):
    """Reports the steps of a run, not too often, and its messages by `send`."""

    next_report = 0.0

    def send(self, kind: str, *rest: Any) -> None:
        raise NotImplementedError

    def on_start(self, run: RunInfo) -> None:
        self.send("steps", run.steps_done, run.num_steps)

    def on_step(self, position: Position, terms: Terms) -> None:
        if time.monotonic() >= self.next_report:
            self.next_report = time.monotonic() + REPORT_SECONDS
            self.send("steps", position.steps_done, position.steps_expected)

    def on_message(self, text: str) -> None:
        self.send("message", text)


class SignalListener(Listener):
    """Asks for a stop after a signal, and keeps messages."""

    def __init__(self, *signals: signal.Signals) -> None:
        self.stopping, self.messages = False, list[str]()
        for number in signals:
            signal.signal(number, self.ask)

    def ask(self, number: int, frame: Any) -> None:
        self.stopping = True

    def wants_stop(self) -> bool:
        return self.stopping

    def on_message(self, text: str) -> None:
        self.messages.append(text)


class PipeListener(ReportingListener, SignalListener):
    """Reports to the parent process, and asks for a stop if it is gone."""

    def __init__(self, link: Connection) -> None:
        super().__init__(signal.SIGINT, signal.SIGTERM)
        self.link = link
        self.goes_on = True  # the answer of the parent after a task

    def wants_stop(self) -> bool:
        return self.stopping or not self.goes_on

    def stop_soon(self) -> float:
        self.stopping = True
        return ORPHAN_SECONDS

    def on_start(self, run: RunInfo) -> None:
        self.goes_on = True
        super().on_start(run)

    def on_task(self, index: int, scores: Scores) -> None:
        self.send("scores", index, scores)
        try:
            self.goes_on = self.link.recv()
        except (EOFError, OSError):
            self.stopping = True

    def send(self, kind: str, *rest: Any) -> None:
        try:
            self.link.send((kind, *rest))
        except OSError:
            self.stopping = True


def work(link: Connection, options: RunOptions, threads: int, watch: ParentWatch) -> None:
    """Make runs in a worker until the parent sends no more or asks for a stop."""
    code = 1

    def leave() -> None:
        # Python's own way out unloads torch while threads still wait; a thread that is ended then can abort
        # the process.
        os._exit(code)

    atexit.register(leave)
    listener = PipeListener(link)
    watch.on_death = listener.stop_soon
    torch.set_num_threads(threads)
    make_runs(link, options, listener)
    code = 0


def make_runs(link: Connection, options: RunOptions, listener: PipeListener) -> None:
    while not listener.stopping:
        try:
            held, source, device = link.recv()
        except (EOFError, ConnectionError):
            return
        listener.send(*attempt_anything(held, source, replace(options, device=device), listener))


def attempt_anything(
    held: dict[str, Any], source: str, options: RunOptions, listener: Listener
) -> tuple[str, str]:
    """Make a run. An unexpected error becomes a message with file and line; the worker continues."""
    try:
        return attempt(config_of(held, source), options, listener)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error} ({place_of(error)})"


def place_of(error: BaseException) -> str:
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}" if trace else "place unknown"
