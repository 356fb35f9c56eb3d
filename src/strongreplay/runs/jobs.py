"""Job: one run among many; `make_run` makes it and writes its record, in this process or in another."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from strongreplay.errors import DataError, SerError
from strongreplay.extensions import explain_user_fault
from strongreplay.methods.table import method_label
from strongreplay.protocol import Terms
from strongreplay.runs.config import RunConfig
from strongreplay.runs.estimate import num_steps
from strongreplay.runs.loggers import make_loggers
from strongreplay.runs.run import Interrupted, StoppedRun, name_of, run, state_folder
from strongreplay.runs.source_hash import code_hash, is_being_edited
from strongreplay.storage import files
from strongreplay.storage.checkpoints import remove_checkpoints
from strongreplay.storage.records import RunRecord, read_record, record_path
from strongreplay.training.events import Listener, Listeners, Position, RunInfo, Scores

if TYPE_CHECKING:
    from strongreplay.runs.workers import Worker

LOOK_SECONDS = 0.2  # between checks for a stop request
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


Judge = Callable[[Job, int, Scores], bool]  # a run, the task it has learnt, and its scores


def always(job: Job, index: int, scores: Scores) -> bool:
    return True


class GridListener(Protocol):
    """Receives the events of a grid."""

    def on_tick(self, running: list[Job]) -> None:
        """Called several times a second."""

    def on_message(self, name: str, text: str) -> None:
        """A message for the user about the run of this name."""

    def wants_stop(self) -> bool:
        """Called several times a second and after every step of a run in this process."""


def find_record(config: RunConfig, out: Path) -> RunRecord | None:
    """The existing record of a run; a DataError if its file is damaged."""
    path = record_path(out, config.to_dict())
    return read_record(path) if path.exists() else None


def sort_out(
    configs: Iterable[RunConfig], out: Path, again: bool = False
) -> tuple[list[Job], list[Job], list[str]]:
    """Recorded runs, runs to make, and a line for each record that cannot be used.

    A record made by another version of our code is kept and reported, unless its method or net is being
    edited. With `again`, all runs are made again.
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
                problems.append(f"{job.name}: its method or net is being edited; running again")
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


def end_or_retry(
    job: Job, reason: str, listener: GridListener, stopping: bool, retry: str = "it is tried once more"
) -> None:
    """End a job that gave no result, or leave `ended` None and report that it is tried again."""
    if stopping:
        job.ended = ("stopped", f"{reason} while it was stopping")
    elif job.attempts >= ATTEMPTS:
        job.ended = ("failed", reason)
    else:
        listener.on_message(job.name, f"{reason}; {retry}, from its last checkpoint")


def explain_failure(error: Exception) -> str | None:
    """A message for errors the user can fix (memory, disk, their own code), else None."""
    signs = ("out of memory", "allocate memory", "overflow when unpacking", "size calculation overflowed")
    is_about_memory = any(sign in str(error).lower() for sign in signs)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError | TypeError) and is_about_memory):
        return f"there was not enough memory ({first_line(error)})"
    return explain_user_fault(error) or (str(error) if isinstance(error, OSError) else None)


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of its text."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


def free_device(devices: tuple[str, ...], running: Iterable[Job]) -> str:
    """The device with the fewest runs; the first of several."""
    used = [job.device for job in running]
    return min(devices, key=used.count)


def headline(record: RunRecord) -> str:
    return ", ".join(
        f"{scenario} {record.score(scenario, 'average_accuracy'):.2f} %" for scenario in record.scenarios
    )


class JobListener(Listener):
    """Updates the progress of a job and passes messages on to the grid's listener."""

    def __init__(self, job: Job, grid: GridListener, goes_on: Judge) -> None:
        self.job, self.grid, self.goes_on, self.next_report = job, grid, goes_on, 0.0
        self.stopping = False

    def on_start(self, run: RunInfo) -> None:
        self.job.done, self.job.total = run.steps_done, run.num_steps
        self.report()

    def on_step(self, position: Position, terms: Terms) -> None:
        self.job.done, self.job.total = position.steps_done, position.steps_expected
        if time.monotonic() >= self.next_report:
            self.report()

    def on_task(self, index: int, scores: Scores) -> None:
        self.stopping = not self.goes_on(self.job, index, scores)
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
        return self.stopping or self.grid.wants_stop()
