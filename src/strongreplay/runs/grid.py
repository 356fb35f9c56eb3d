"""Many runs: what is recorded is skipped, the rest is run here or in processes of its own, some at a time.

A run that fails, or is killed for want of memory, takes no other with it: processes of their own make runs,
one after the other, and one that is gone is replaced. Each tells its parent how far it is through a pipe; a
parent that is gone is a reason to stop, with the state kept.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from strongreplay.errors import DataError, SerError
from strongreplay.runs.config import RunConfig, config_of
from strongreplay.runs.run import Interrupted, Scores, StoppedRun, Watcher, run, state_folder
from strongreplay.storage import files
from strongreplay.storage.records import RunRecord, read_record, record_path, write_record
from strongreplay.training.engine import Position

TELL_SECONDS = 0.5  # between two messages about a run's steps
LOOK_SECONDS = 0.2  # between two looks at whether somebody wants a stop


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What holds for all runs of one command."""

    out: Path
    data: Path
    device: str
    checkpoint_every: str | None = None
    keep_state: bool = False


def name_of(config: RunConfig) -> str:
    size = getattr(config.method, "memory_size", None)
    memory = "" if size is None else f" m{size}"
    return f"{config.stream} {config.method_name}{memory} seed {config.seed}"


def find_record(config: RunConfig, out: Path) -> RunRecord | None:
    """What is recorded already; a DataError where the file is damaged."""
    path = record_path(out, config.to_dict())
    return read_record(path) if path.exists() else None


def run_recorded(config: RunConfig, session: RunOptions, watcher: Watcher) -> RunRecord:
    """Run to the end, from a kept state where there is one, and leave the record."""
    path = record_path(session.out, config.to_dict())
    try:
        record = run(
            config,
            folder=session.data,
            device=session.device,
            watcher=watcher,
            out=session.out,
            checkpoint_every=session.checkpoint_every,
            resume=True,
            keep_state=session.keep_state,
        )
    except StoppedRun as error:
        kept = path.with_suffix(".stopped")
        files.write_text(kept, error.record.to_json())
        raise StoppedRun(f"{name_of(config)} stopped at {error}. Kept so far: {kept}", error.record) from None
    write_record(session.out, record)
    if not session.keep_state:
        files.remove_quietly(state_folder(session.out, config))
    return record


@dataclass(slots=True)
class Worker:
    """A process that makes one run after another."""

    process: SpawnProcess
    link: Connection


@dataclass(slots=True)
class Job:
    """One run on its way."""

    config: RunConfig
    worker: Worker
    done: int = 0  # steps
    total: int = 0
    ended: tuple[str, str] | None = None  # "recorded", "failed" or "stopped", and what there is to say


@dataclass(slots=True)
class Grid:
    """Runs to be made, a few at a time."""

    configs: list[RunConfig]
    session: RunOptions
    num_jobs: int = 1
    threads: int | None = None  # of each process; none: the cores, shared
    running: list[Job] = field(default_factory=list)
    idle: list[Worker] = field(default_factory=list)

    def go(self, wants_stop: Callable[[], bool], tick: Callable[[list[Job]], None]) -> Iterator[Job]:
        """Yield each job when it has ended; `tick` is called several times a second in between."""
        waiting, asked = list(self.configs), False
        try:
            while waiting or self.running:
                if wants_stop() and not asked:
                    asked, waiting = True, []
                    self.stop()
                while waiting and len(self.running) < self.num_jobs:
                    self.running.append(self.start(waiting.pop(0)))
                yield from self.listen()
                tick(self.running)
        finally:
            self.stop()
            for worker in [*self.idle, *(job.worker for job in self.running)]:
                worker.link.close()  # the end of an idle one
                worker.process.join()

    def start(self, config: RunConfig) -> Job:
        worker = self.idle.pop() if self.idle else self.hire()
        worker.link.send((config.to_dict(), config.source))
        return Job(config, worker)

    def hire(self) -> Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        threads = self.threads or max(1, (os.cpu_count() or 1) // self.num_jobs)
        process = context.Process(target=work, args=(theirs, self.session, threads), daemon=True)
        process.start()
        theirs.close()  # the child's own is left, so that its death is the end of the pipe
        return Worker(process, ours)

    def stop(self) -> None:
        for job in self.running:
            job.worker.process.terminate()  # heard by the child, which keeps its state first

    def listen(self) -> Iterator[Job]:
        heard = wait([job.worker.link for job in self.running], LOOK_SECONDS)
        for job in [job for job in self.running if job.worker.link in heard]:
            self.hear(job)
            if job.ended:
                self.running.remove(job)
                yield job

    def hear(self, job: Job) -> None:
        worker = job.worker
        try:
            kind, *rest = worker.link.recv()
        except (EOFError, ConnectionError):
            worker.process.join()
            job.ended = ("failed", f"its process ended with code {worker.process.exitcode} and said nothing")
            return
        if kind == "steps":
            job.done, job.total = rest
        else:
            job.ended = (kind, rest[0])
            self.idle.append(worker)


class PipeListener(Watcher):
    """Tells the parent; a signal, or a parent that is gone, makes it want a stop."""

    def __init__(self, link: Connection) -> None:
        self.link, self.stopping, self.done, self.total, self.next_message = link, False, 0, 0, 0.0

    def ask(self, number: int, frame: Any) -> None:
        self.stopping = True

    def wants_stop(self) -> bool:
        return self.stopping

    def loading(self, what: str, done: int, total: int) -> None:
        if self.stopping:
            raise Interrupted("stopped before it began")

    def begin(self, num_steps: int, num_tasks: int, steps_done: int = 0) -> None:
        self.total, self.done = num_steps, steps_done

    def step(self, position: Position) -> None:
        self.done += 1
        if time.monotonic() >= self.next_message:
            self.next_message = time.monotonic() + TELL_SECONDS
            self.send("steps", self.done, self.total)

    def evaluated(self, index: int, scores: Scores) -> None:
        self.send("steps", self.done, self.total)

    def send(self, *message: Any) -> None:
        try:
            self.link.send(message)
        except OSError:
            self.stopping = True


def work(link: Connection, session: RunOptions, threads: int) -> None:
    """One run after another, in a process of its own, until the parent has no more or a stop is wanted."""
    messenger = PipeListener(link)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, messenger.ask)
    torch.set_num_threads(threads)
    while not messenger.stopping:
        try:
            held, source = link.recv()
        except (EOFError, ConnectionError):
            return
        messenger.send(*attempt(config_of(held, source), session, messenger))


def attempt(config: RunConfig, session: RunOptions, messenger: PipeListener) -> tuple[str, str]:
    """How a run ended, and what there is to say."""
    try:
        return "recorded", headline(run_recorded(config, session, messenger))
    except Interrupted as error:
        return "stopped", str(error)
    except SerError as error:
        return "failed", str(error)
    except MemoryError:
        return "failed", "there was not enough memory"


def headline(record: RunRecord) -> str:
    return ", ".join(
        f"{scenario} {record.score(scenario, 'average_accuracy'):.2f} %" for scenario in record.scenarios
    )


def missing(configs: list[RunConfig], out: Path) -> tuple[list[RunConfig], list[str]]:
    """Those without a whole record, and a line for each record that is damaged."""
    absent, problems = [], []
    for config in configs:
        try:
            if find_record(config, out) is None:
                absent.append(config)
        except DataError as error:
            problems.append(f"{name_of(config)}: {error}; running again")
            absent.append(config)
    return absent, problems
