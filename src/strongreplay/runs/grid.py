"""Many runs: what is recorded is skipped, the rest is made here or in several processes.

`make_run` makes one run and leaves its record, in this process or in another. In processes of its own a run
that fails, or is killed for want of memory, takes no other with it. Each process reports through a pipe how
far its run is; a parent that is gone is a reason to stop, with the state kept. A run whose process died is
tried once more, from its last checkpoint.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Protocol

import torch

from strongreplay.errors import DataError, SerError
from strongreplay.protocol import Terms
from strongreplay.runs.config import RunConfig, config_of
from strongreplay.runs.estimate import num_steps
from strongreplay.runs.own_code import code_hash, is_being_edited
from strongreplay.runs.run import Interrupted, StoppedRun, name_of, run, state_folder
from strongreplay.storage import files
from strongreplay.storage.checkpoints import remove_checkpoints
from strongreplay.storage.records import RunRecord, read_record, record_path
from strongreplay.training.events import Listener, Position, RunInfo, Scores

REPORT_SECONDS = 0.5  # between two messages about a run's steps
LOOK_SECONDS = 0.2  # between two looks at whether somebody wants a stop
ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What holds for all runs of one command."""

    out: Path
    data: Path
    device: str
    checkpoint_every: str | None = None
    keep_state: bool = False


@dataclass(slots=True)
class Job:
    """One run of a grid."""

    config: RunConfig
    name: str
    done: int = 0  # steps
    total: int = 0
    ended: tuple[str, str] | None = None  # recorded, skipped, failed or stopped, and what there is to say
    seconds: float = 0.0
    attempts: int = 0
    worker: "Worker | None" = None
    weight: float = 0.0  # steps times what a step costs, compared with plain training

    @classmethod
    def of(cls, config: RunConfig) -> "Job":
        weight = num_steps(config) * config.row.cost
        return cls(config, name_of(config), weight=weight)


class GridListener(Protocol):
    """Who hears of a grid."""

    def on_tick(self, running: list[Job]) -> None:
        """Several times a second."""

    def on_message(self, name: str, text: str) -> None:
        """Something a person may want to know of the run of this name."""

    def wants_stop(self) -> bool:
        """Asked several times a second and after every step of a run in this process."""


@dataclass(slots=True)
class Worker:
    """A process that makes one run after another."""

    process: SpawnProcess
    link: Connection


def find_record(config: RunConfig, out: Path) -> RunRecord | None:
    """What is recorded already; a DataError where the file is damaged."""
    path = record_path(out, config.to_dict())
    return read_record(path) if path.exists() else None


def sort_out(
    configs: Iterable[RunConfig], out: Path, again: bool = False
) -> tuple[list[Job], list[Job], list[str]]:
    """Runs that are recorded, runs to be made, and a line for each record that cannot stand for its run.

    A record made by another version of our code is kept and told of, unless its method is being edited. With
    `again`, all runs are made anew.
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
            "kept, --again makes them anew"
        )
    return recorded, absent, problems


def made_by_other_code(record: RunRecord, config: RunConfig) -> bool:
    """Whether the sources that decide the results were others; records of version 0.1 do not say."""
    made_by = record.measured.get("versions", {}).get("code")
    return made_by is not None and made_by != code_hash(config)


def make_run(config: RunConfig, options: RunOptions, listeners: Iterable[Listener] = ()) -> RunRecord:
    """Run to the end, from a kept state where there is one, and leave the record."""
    path = record_path(options.out, config.to_dict())
    try:
        record = run(
            config,
            folder=options.data,
            device=options.device,
            listeners=listeners,
            out=options.out,
            checkpoint_every=options.checkpoint_every,
            resume=True,
            keep_state=options.keep_state,
            write=True,
        )
    except StoppedRun as error:
        file = path.with_suffix(".stopped")
        kept = str(file)
        try:
            files.write_text(file, error.record.to_json())
        except OSError as second:  # it must not hide why the run stopped
            kept = f"nothing, {file} cannot be written ({second.strerror or second})"
        raise StoppedRun(f"stopped at {error}. Kept so far: {kept}", error.record) from None
    if not options.keep_state:
        remove_checkpoints(state_folder(options.out, config))
    return record


def attempt(config: RunConfig, options: RunOptions, listener: Listener) -> tuple[str, str]:
    """Make a run; how it ended, and what there is to say."""
    try:
        return "recorded", headline(make_run(config, options, [listener]))
    except Interrupted as error:
        return "stopped", str(error)
    except (SerError, OSError) as error:
        return "failed", str(error)
    except (MemoryError, RuntimeError) as error:
        text = str(error).lower()
        if isinstance(error, MemoryError) or "out of memory" in text or "allocate memory" in text:
            return "failed", f"there was not enough memory ({error})"
        raise


def headline(record: RunRecord) -> str:
    return ", ".join(
        f"{scenario} {record.score(scenario, 'average_accuracy'):.2f} %" for scenario in record.scenarios
    )


@dataclass(slots=True)
class Grid:
    """Runs to be made: one after another in this process, or several at a time in processes of their own."""

    jobs: list[Job]
    options: RunOptions
    num_jobs: int = 1
    threads: int | None = None  # of each run; none: the cores, shared
    running: list[Job] = field(default_factory=list)
    idle: list[Worker] = field(default_factory=list)

    def go(self, listener: GridListener) -> Iterator[Job]:
        """Yield each job when it has ended. After a stop the jobs that were not begun are left out."""
        return self.go_here(listener) if self.num_jobs == 1 else self.go_in_processes(listener)

    def go_here(self, listener: GridListener) -> Iterator[Job]:
        if self.threads:
            torch.set_num_threads(self.threads)
        for job in self.jobs:
            if listener.wants_stop():
                return
            began = time.perf_counter()
            job.ended = attempt(job.config, self.options, JobListener(job, listener))
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
                worker.link.close()  # the end of an idle one
                worker.process.join()

    def start(self, job: Job) -> None:
        job.worker = self.idle.pop() if self.idle else self.hire()
        job.attempts, job.seconds = job.attempts + 1, -time.perf_counter()
        job.worker.link.send((job.config.to_dict(), job.config.source))
        self.running.append(job)

    def hire(self) -> Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        threads = self.threads or max(1, (os.cpu_count() or 1) // self.num_jobs)
        process = context.Process(target=work, args=(theirs, self.options, threads), daemon=True)
        process.start()
        theirs.close()  # the child's own is left, so that its death is the end of the pipe
        return Worker(process, ours)

    def stop(self) -> None:
        for job in self.running:
            if job.worker:
                job.worker.process.terminate()  # the child keeps its state and ends

    def hear(self, listener: GridListener) -> Iterator[Job]:
        """Jobs that are done, and jobs whose process died, which have no end yet if they are tried again."""
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
    """A run whose process died has failed, unless it may be tried again."""
    worker.process.join()
    reason = exit_reason(worker.process.exitcode)
    if job.attempts < ATTEMPTS:
        listener.on_message(job.name, f"{reason}; it is tried once more, from its last checkpoint")
    else:
        job.ended = ("failed", reason)


def exit_reason(code: int | None) -> str:
    """What the exit code of a process tells."""
    if code is None or code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = "; a system that is out of memory ends processes so" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{hint}"


class JobListener(Listener):
    """Keeps a job's numbers up to date and passes messages on to the listener of its grid."""

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
    """Reports to the parent process. A signal, or a parent that is gone, makes it want a stop."""

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
    """One run after another, in a process of its own, until the parent has no more or wants a stop."""
    listener = PipeListener(link)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, listener.ask)
    torch.set_num_threads(threads)
    while not listener.stopping:
        try:
            held, source = link.recv()
        except (EOFError, ConnectionError):
            return
        try:
            ended = attempt(config_of(held, source), options, listener)
        except Exception as error:  # a fault in a method: its place is what a person looks for
            ended = "failed", f"{type(error).__name__}: {error} ({place_of(error)})"
        listener.send(*ended)


def place_of(error: BaseException) -> str:
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}" if trace else "place unknown"
