"""Grid: makes many runs: one after another here, several at a time in processes, on Ray or on Slurm."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from strongreplay.runs.jobs import (
    GridListener,
    Job,
    JobListener,
    Judge,
    RunOptions,
    always,
    attempt,
    explain_failure,
    find_record,
    free_device,
    make_run,
    sort_out,
)
from strongreplay.runs.workers import WorkerPool

__all__ = ["Grid", "GridListener", "Job", "Judge", "RunOptions", "attempt", "explain_failure"]
__all__ += ["find_record", "make_run", "sort_out"]

MOST_SLURM_JOBS = 1000  # at a time, if --jobs is not given: Slurm decides


@dataclass(frozen=True, slots=True)
class Grid:
    """Runs to make, and how."""

    jobs: Iterable[Job]  # taken one by one, so that what ended may decide what comes
    options: RunOptions
    num_jobs: int = 1
    threads: int | None = None  # of each run; None: the cores are divided among the runs
    devices: tuple[str, ...] = ()  # dealt out among the runs; none: that of the options
    goes_on: Judge = always  # asked after each task of a run: False stops it
    on: str = ""  # slurm, ray or ray://HOST:PORT; empty: this machine

    def go(self, listener: GridListener) -> Iterator[Job]:
        """Yield each job when it has ended. After a stop, jobs that have not begun are left out."""
        if self.on == "slurm":
            from strongreplay.runs.on_slurm import go_on_slurm

            most = self.num_jobs if self.num_jobs > 1 else MOST_SLURM_JOBS
            return go_on_slurm(self.jobs, self.options, most, self.threads or 1, listener, "slurm")
        if self.on:
            from strongreplay.runs.on_ray import RayPool

            asked = None if self.goes_on is always else self.goes_on
            return RayPool(self.on, self.options, self.num_jobs, self.threads, asked).go(self.jobs, listener)
        if self.num_jobs == 1:
            return self.go_here(listener)
        devices = self.devices or (self.options.device,)
        return WorkerPool(self.options, self.num_jobs, self.threads, devices, self.goes_on).go(
            self.jobs, listener
        )

    def go_here(self, listener: GridListener) -> Iterator[Job]:
        if self.threads:
            torch.set_num_threads(self.threads)
        for job in self.jobs:
            if listener.wants_stop():
                return
            began, job.device = time.perf_counter(), free_device(self.devices or (self.options.device,), ())
            options = replace(self.options, device=job.device)
            job.ended = attempt(job.config, options, JobListener(job, listener, self.goes_on))
            job.seconds = time.perf_counter() - began
            yield job
