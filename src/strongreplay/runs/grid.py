"""Many runs: recorded ones are skipped, the others are made in this process or in several.

`make_run` makes one run and writes its record, in this process or in another. In separate processes, a run
that fails or is killed for lack of memory does not affect the others. Each process reports its progress
through a pipe; if the parent is gone, it writes its state and stops. A run whose process died is tried once
more, from its last checkpoint.
"""

import atexit
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Protocol

import torch

from strongreplay.errors import DataError, SerError
from strongreplay.extensions import explain_user_fault
from strongreplay.methods.table import method_label
from strongreplay.protocol import Terms
from strongreplay.runs.config import RunConfig, config_of
from strongreplay.runs.estimate import num_steps
from strongreplay.runs.loggers import make_loggers
from strongreplay.runs.own_code import code_hash, is_being_edited
from strongreplay.runs.run import Interrupted, StoppedRun, name_of, run, state_folder
from strongreplay.storage import files
from strongreplay.storage.checkpoints import remove_checkpoints
from strongreplay.storage.records import RunRecord, read_record, record_path
from strongreplay.training.events import Listener, Listeners, Position, RunInfo, Scores

REPORT_SECONDS = 0.5  # between messages about a run's steps
LOOK_SECONDS = 0.2  # between checks for a stop request
ORPHAN_SECONDS = 3.0  # that a process has to write its state after its parent died
ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of all runs of one command."""

    out: Path
    data: Path
    device: str
    checkpoint_every: str | None = None
    keep_state: bool = False
    loggers: tuple[str, ...] = ()  # names in LOGGERS, or mine.py:Logger
    ranks: int = 1  # processes that make one run together, each on a device


@dataclass(slots=True)
class Job:
    """One run of a grid."""

    config: RunConfig
    name: str
    label: str  # the name with the method's label, for tables
    done: int = 0  # steps
    total: int = 0
    ended: tuple[str, str] | None = None  # recorded, skipped, failed or stopped, and a message
    seconds: float = 0.0
    attempts: int = 0
    device: str = ""  # where it runs
    worker: "Worker | None" = None
    weight: float = 0.0  # number of steps times the cost of a step relative to plain training

    @classmethod
    def of(cls, config: RunConfig) -> "Job":
        weight = num_steps(config) * config.row.cost
        label = name_of(config, method_label(config.method_name))
        return cls(config, name_of(config), label, weight=weight)


class GridListener(Protocol):
    """Receives the events of a grid."""

    def on_tick(self, running: list[Job]) -> None:
        """Called several times a second."""

    def on_message(self, name: str, text: str) -> None:
        """A message for the user about the run of this name."""

    def wants_stop(self) -> bool:
        """Called several times a second and after every step of a run in this process."""


@dataclass(slots=True)
class Worker:
    """A process that makes one run after another."""

    process: SpawnProcess
    link: Connection


def find_record(config: RunConfig, out: Path) -> RunRecord | None:
    """The existing record of a run; a DataError if its file is damaged."""
    path = record_path(out, config.to_dict())
    return read_record(path) if path.exists() else None


def sort_out(
    configs: Iterable[RunConfig], out: Path, again: bool = False
) -> tuple[list[Job], list[Job], list[str]]:
    """Recorded runs, runs to make, and a line for each record that cannot be used.

    A record made by another version of our code is kept and reported, unless its method is being edited. With
    `again`, all runs are made again.
    """
    recorded, absent, problems, num_older = list[Job](), list[Job](), list[str](), 0
    for config in configs:
        job = Job.of(config)
        if again:
            files.remove_quietly(state_folder(out, config))
            absent.append(job)
            continue
        try:
            record = find_record(config, out)
            is_older = record is not None and made_by_other_code(record, config)
            if is_older and is_being_edited(config):
                problems.append(f"{job.name}: its method is being edited; running again")
            elif record is not None:
                num_older += is_older
                job.ended = ("skipped", f"recorded already, skipped ({record_path(out, config.to_dict())})")
        except DataError as error:
            problems.append(f"{job.name}: {error}; running again")
        (recorded if job.ended else absent).append(job)
    if num_older:
        problems.append(
            f"note: {num_older} of {len(recorded)} records were made by other code than this; they are "
            "kept, --again makes them again"
        )
    return recorded, absent, problems


def made_by_other_code(record: RunRecord, config: RunConfig) -> bool:
    """Whether the record has another code hash; records of version 0.1 have none."""
    made_by = record.measured.get("versions", {}).get("code")
    return made_by is not None and made_by != code_hash(config)


def make_run(config: RunConfig, options: RunOptions, listeners: Iterable[Listener] = ()) -> RunRecord:
    """Make a run, resuming from its state if there is one, and write the record."""
    path, listeners = record_path(options.out, config.to_dict()), list(listeners)
    loggers, problems = make_loggers(options.loggers, config, options.out)
    for problem in problems:
        Listeners(listeners).on_message(problem)
    try:
        record = run(
            config,
            folder=options.data,
            device=options.device,
            listeners=[*listeners, *loggers],
            out=options.out,
            checkpoint_every=options.checkpoint_every,
            resume=True,
            keep_state=options.keep_state,
            write=True,
            devices=options.ranks,
        )
    except StoppedRun as error:
        file = path.with_suffix(".stopped")
        kept = str(file)
        try:
            files.write_text(file, error.record.to_json())
        except OSError as second:  # it must not hide the first error
            kept = f"nothing, {file} cannot be written ({second.strerror or second})"
        raise StoppedRun(f"stopped at {error}. Kept so far: {kept}", error.record) from None
    if not options.keep_state:
        remove_checkpoints(state_folder(options.out, config))
    return record


def attempt(config: RunConfig, options: RunOptions, listener: Listener) -> tuple[str, str]:
    """Make a run; returns how it ended, and a message."""
    try:
        return "recorded", headline(make_run(config, options, [listener]))
    except Interrupted as error:
        return "stopped", str(error)
    except SerError as error:
        return "failed", str(error)
    except Exception as error:
        if reason := explain_failure(error):
            return "failed", reason
        raise  # a fault of ours, whose traceback is needed


def explain_failure(error: Exception) -> str | None:
    """What a person can do something about: too little memory, a fault in a user's code, the disk."""
    text = str(error).lower()
    is_about_memory = isinstance(error, RuntimeError) and (
        "out of memory" in text or "allocate memory" in text
    )
    if isinstance(error, MemoryError) or is_about_memory:
        return f"there was not enough memory ({error})"
    return explain_user_fault(error) or (str(error) if isinstance(error, OSError) else None)


def headline(record: RunRecord) -> str:
    return ", ".join(
        f"{scenario} {record.score(scenario, 'average_accuracy'):.2f} %" for scenario in record.scenarios
    )


@dataclass(slots=True)
class Grid:
    """Runs to make: one after another in this process, or several at a time in separate processes."""

    jobs: list[Job]
    options: RunOptions
    num_jobs: int = 1
    threads: int | None = None  # of each run; None: the cores are divided among the runs
    devices: tuple[str, ...] = ()  # dealt out among the runs; none: that of the options
    running: list[Job] = field(default_factory=list)
    idle: list[Worker] = field(default_factory=list)

    def go(self, listener: GridListener) -> Iterator[Job]:
        """Yield each job when it has ended. After a stop, jobs that have not begun are left out."""
        return self.go_here(listener) if self.num_jobs == 1 else self.go_in_processes(listener)

    def go_here(self, listener: GridListener) -> Iterator[Job]:
        if self.threads:
            torch.set_num_threads(self.threads)
        for job in self.jobs:
            if listener.wants_stop():
                return
            began, job.device = time.perf_counter(), self.free_device()
            job.ended = attempt(job.config, self.options_of(job), JobListener(job, listener))
            job.seconds = time.perf_counter() - began
            yield job

    def go_in_processes(self, listener: GridListener) -> Iterator[Job]:
        waiting, stopping = list(self.jobs), False
        try:
            while waiting or self.running:
                if listener.wants_stop() and not stopping:
                    stopping, waiting = True, []
                    self.stop()
                while waiting and len(self.running) < self.num_jobs:
                    self.start(waiting.pop(0))
                for job in self.hear(listener):
                    if job.ended is None and not stopping:  # its process died
                        waiting.insert(0, job)
                    else:
                        job.ended = job.ended or ("stopped", "its process died while it was stopping")
                        yield job
                listener.on_tick(self.running)
        finally:
            self.stop()
            for worker in [*self.idle, *(job.worker for job in self.running if job.worker)]:
                worker.link.close()  # ends an idle worker
                worker.process.join()

    def start(self, job: Job) -> None:
        job.worker = self.idle.pop() if self.idle else self.hire()
        job.attempts, job.seconds = job.attempts + 1, -time.perf_counter()
        job.device = self.free_device()
        job.worker.link.send((job.config.to_dict(), job.config.source, job.device))
        self.running.append(job)

    def free_device(self) -> str:
        """The device with the fewest runs; the first of several."""
        used = [job.device for job in self.running]
        return min(self.devices or (self.options.device,), key=used.count)

    def options_of(self, job: Job) -> RunOptions:
        return replace(self.options, device=job.device)

    def hire(self) -> Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        threads = self.threads or max(1, (os.cpu_count() or 1) // self.num_jobs)
        process = context.Process(target=work, args=(theirs, self.options, threads), daemon=True)
        process.start()
        theirs.close()  # only the child's copy stays open, so the pipe closes if the child dies
        return Worker(process, ours)

    def stop(self) -> None:
        for job in self.running:
            if job.worker:
                job.worker.process.terminate()  # the child writes its state and ends

    def hear(self, listener: GridListener) -> Iterator[Job]:
        """Finished jobs, and jobs whose process died; `ended` is None if a job is tried again."""
        workers = [(job, job.worker) for job in self.running if job.worker]
        heard = wait([worker.link for _, worker in workers], LOOK_SECONDS)
        for job, worker in [(job, worker) for job, worker in workers if worker.link in heard]:
            try:
                kind, *rest = worker.link.recv()
            except (EOFError, ConnectionError):
                kind = "died"
            if kind == "steps":
                job.done, job.total = rest
            elif kind == "message":
                listener.on_message(job.name, rest[0])
            else:
                if kind == "died":
                    judge_death(job, worker, listener)
                else:
                    job.ended = (kind, rest[0])
                    self.idle.append(worker)
                job.worker, job.seconds = None, job.seconds + time.perf_counter()
                self.running.remove(job)
                yield job


def judge_death(job: Job, worker: Worker, listener: GridListener) -> None:
    """Mark a job whose process died as failed, unless it is tried again."""
    worker.process.join()
    reason = exit_reason(worker.process.exitcode)
    if job.attempts < ATTEMPTS:
        listener.on_message(job.name, f"{reason}; it is tried once more, from its last checkpoint")
    else:
        job.ended = ("failed", reason)


def exit_reason(code: int | None) -> str:
    """The reason for the end of a process, from its exit code."""
    if code is None or code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = "; a system that is out of memory ends processes so" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{hint}"


class JobListener(Listener):
    """Updates the progress of a job and passes messages on to the grid's listener."""

    def __init__(self, job: Job, grid: GridListener) -> None:
        self.job, self.grid, self.next_report = job, grid, 0.0

    def on_start(self, run: RunInfo) -> None:
        self.job.done, self.job.total = run.steps_done, run.num_steps
        self.report()

    def on_step(self, position: Position, terms: Terms) -> None:
        self.job.done, self.job.total = position.steps_done, position.steps_expected
        if time.monotonic() >= self.next_report:
            self.report()

    def on_task(self, index: int, scores: Scores) -> None:
        self.report()

    def on_loading(self, what: str, done: int, total: int) -> None:
        if time.monotonic() >= self.next_report:
            self.report()

    def report(self) -> None:
        self.next_report = time.monotonic() + LOOK_SECONDS
        self.grid.on_tick([self.job])

    def on_message(self, text: str) -> None:
        self.grid.on_message(self.job.name, text)

    def wants_stop(self) -> bool:
        return self.grid.wants_stop()


class PipeListener(Listener):
    """Reports to the parent process. It asks for a stop after a signal, or if the parent is gone."""

    def __init__(self, link: Connection) -> None:
        self.link, self.stopping, self.next_report = link, False, 0.0

    def ask(self, number: int, frame: Any) -> None:
        self.stopping = True

    def wants_stop(self) -> bool:
        return self.stopping

    def on_start(self, run: RunInfo) -> None:
        self.send("steps", run.steps_done, run.num_steps)

    def on_step(self, position: Position, terms: Terms) -> None:
        if time.monotonic() >= self.next_report:
            self.next_report = time.monotonic() + REPORT_SECONDS
            self.send("steps", position.steps_done, position.steps_expected)

    def on_message(self, text: str) -> None:
        self.send("message", text)

    def send(self, *message: Any) -> None:
        try:
            self.link.send(message)
        except OSError:
            self.stopping = True


def work(link: Connection, options: RunOptions, threads: int) -> None:
    """The main function of a worker: makes runs until the parent sends no more or asks for a stop."""
    code = 1

    def leave() -> None:
        # Python's own way out unloads torch while threads still wait; a thread that is ended then can abort
        # the process.
        os._exit(code)

    atexit.register(leave)
    listener = PipeListener(link)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, listener.ask)
    threading.Thread(target=end_with_parent, args=(listener,), daemon=True).start()
    torch.set_num_threads(threads)
    make_runs(link, options, listener)
    code = 0


def make_runs(link: Connection, options: RunOptions, listener: PipeListener) -> None:
    while not listener.stopping:
        try:
            held, source, device = link.recv()
        except (EOFError, ConnectionError):
            return
        try:
            ended = attempt(config_of(held, source), replace(options, device=device), listener)
        except Exception as error:  # a fault of ours: it must not end the process, and its place is needed
            ended = "failed", f"{type(error).__name__}: {error} ({place_of(error)})"
        listener.send(*ended)


def end_with_parent(listener: PipeListener) -> None:
    """Stop soon after the parent died, even in a long step; every file is whole at any moment."""
    if parent := multiprocessing.parent_process():
        parent.join()
        listener.stopping = True
        time.sleep(ORPHAN_SECONDS)
        os._exit(1)


def place_of(error: BaseException) -> str:
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}" if trace else "place unknown"
