"""RayPool: runs as tasks of a Ray cluster, each with the CPUs and GPUs it declares.

An actor on the driver's node collects the messages of the runs. Where the nodes see the driver's folder of
records, runs write there; elsewhere, checkpoints, records and logs are sent to the driver. A run whose worker
was killed or whose node is lost resumes elsewhere from its last checkpoint. After a stop every run writes its
state and ends. No cluster is started here, because Ray listens on all interfaces.
"""

import logging
import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

from strongreplay.errors import ConfigError
from strongreplay.runs.config import RunConfig
from strongreplay.runs.jobs import (
    LOOK_SECONDS,
    GridListener,
    Job,
    Judge,
    RunOptions,
    end_or_retry,
    first_line,
)
from strongreplay.runs.ray_inbox import Inbox
from strongreplay.runs.ray_tasks import Packed, make_run_there, pack, unpack
from strongreplay.runs.run import state_folder
from strongreplay.storage import files
from strongreplay.storage.checkpoints import checkpoints, remove_checkpoints

REACH_SECONDS = 10.0  # for the machine of a cluster to answer
STOP_SECONDS = 60.0  # for runs to write their states; then they are ended


@dataclass(slots=True)
class RayPool:
    """The runs of a command on a cluster."""

    address: str  # ray, or ray://HOST:PORT
    options: RunOptions
    num_jobs: int  # at a time; 1: as many as the cluster has room for
    threads: int | None
    goes_on: Judge | None  # None: nothing is asked after a task
    running: dict[Any, Job] = field(default_factory=dict)  # by their task
    nodes: dict[int, str] = field(default_factory=dict)  # where a job is, by its id

    def go(self, jobs: Iterable[Job], listener: GridListener) -> Iterator[Job]:
        """Yield each job when it has ended; after a stop, jobs that have not begun are left out."""
        with connected(self.address) as ray, marked(self.options.out) as mark:
            here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=False
            )
            inbox = ray.remote(Inbox).options(num_cpus=0, scheduling_strategy=here).remote()
            try:
                yield from self.make(ray, inbox, mark, iter(jobs), listener)
            finally:
                self.end(ray, inbox)

    def make(
        self, ray: Any, inbox: Any, mark: str, coming: Iterator[Job], listener: GridListener
    ) -> Iterator[Job]:
        stopping = False
        while True:
            if listener.wants_stop() and not stopping:
                stopping, coming = True, iter(())
                self.stop(ray, inbox)
            while len(self.running) < self.room(ray) and (job := next(coming, None)):
                self.start(ray, inbox, mark, job)
            if not self.running:
                return
            ended, _ = ray.wait(list(self.running), timeout=LOOK_SECONDS)
            self.receive(ray, inbox, listener)
            for task in ended:
                job = self.running.pop(task)
                self.finish(ray, job, task, listener, stopping)
                if job.ended:
                    yield job
                else:
                    coming = chain([job], coming)
            listener.on_tick(list(self.running.values()))

    @property
    def resources(self) -> dict[str, int]:
        return {"num_cpus": self.threads or 1, "num_gpus": int(self.options.device.startswith("cuda"))}

    def room(self, ray: Any) -> int:
        if self.num_jobs > 1:
            return self.num_jobs
        there, needed = ray.cluster_resources(), self.resources
        room = [there.get("CPU", 0) // needed["num_cpus"]]
        room += [there.get("GPU", 0) // needed["num_gpus"]] if needed["num_gpus"] else []
        return max(1, int(min(room)))

    def start(self, ray: Any, inbox: Any, mark: str, job: Job) -> None:
        job.attempts, job.seconds = job.attempts + 1, -time.perf_counter()
        key, config = (id(job), job.attempts), job.config
        self.nodes.pop(id(job), None)
        task = ray.remote(make_run_there).options(max_retries=0, **self.resources).remote(
            config.to_dict(), config.source, absolute(self.options), self.threads or 1, key,
            self.goes_on is not None, mark, os.getcwd(), newest(self.options.out, config), inbox,
        )  # fmt: skip
        self.running[task] = job

    def receive(self, ray: Any, inbox: Any, listener: GridListener) -> None:
        jobs = {(id(job), job.attempts): job for job in self.running.values()}
        for key, kind, rest in ray.get(inbox.take.remote()):
            if (job := jobs.get(key)) is None:  # of a process that was given up
                continue
            if kind == "steps":
                job.done, job.total = rest
            elif kind == "message":
                listener.on_message(job.name, rest[0])
            elif kind == "node":
                self.nodes[id(job)] = job.device = rest[0]
            elif kind == "files":
                unpack(rest[0], self.options.out)
            elif self.goes_on:
                inbox.answer.remote(key, self.goes_on(job, *rest))

    def finish(self, ray: Any, job: Job, task: Any, listener: GridListener, stopping: bool) -> None:
        """Note how a job ended; without an end it is tried again."""
        job.seconds += time.perf_counter()
        try:
            how, text, sent = ray.get(task)
            unpack(sent, self.options.out)
            job.ended = (how, text)
            if sent and how == "recorded" and not self.options.keep_state:
                remove_checkpoints(state_folder(self.options.out, job.config))
        except ray.exceptions.TaskCancelledError:
            job.ended = ("stopped", "stopped before the first step")
        except (ray.exceptions.RayError, OSError) as error:
            dead = {node["NodeID"] for node in ray.nodes() if not node["Alive"]}
            lost = isinstance(error, ray.exceptions.NodeDiedError) or self.nodes.get(id(job)) in dead
            reason = "its node is lost" if lost else f"its worker ended ({first_line(error)})"
            job.attempts -= lost  # a lost node does not count as an attempt
            end_or_retry(job, reason, listener, stopping)

    def stop(self, ray: Any, inbox: Any) -> None:
        """Ask all runs to stop; tasks that wait for room are taken back."""
        ray.get(inbox.stop.remote())
        for task, job in self.running.items():
            if id(job) not in self.nodes:
                ray.cancel(task)

    def end(self, ray: Any, inbox: Any) -> None:
        """Leave nothing running on the cluster."""
        if self.running:
            with suppress(ray.exceptions.RayError):
                self.stop(ray, inbox)
                ray.wait(list(self.running), num_returns=len(self.running), timeout=STOP_SECONDS)
            for task in self.running:
                with suppress(ray.exceptions.RayError):
                    ray.cancel(task, force=True)
        ray.kill(inbox)


def absolute(options: RunOptions) -> RunOptions:
    return replace(options, out=options.out.absolute(), data=options.data.absolute())


def newest(out: Path, config: RunConfig) -> Packed:
    """The newest checkpoint of a run, for nodes that do not see it."""
    found = checkpoints(state_folder(out, config))
    return pack(found[0], out) if found else {}


@contextmanager
def marked(out: Path) -> Iterator[str]:
    """A file by which a node finds out whether it sees the driver's folder."""
    mark = out.absolute() / f".ray-{uuid4().hex}"
    files.write_text(mark, "")
    try:
        yield str(mark)
    finally:
        files.remove_quietly(mark)


def join(ray: Any, place: str, attempts: int = 2) -> None:
    """A cluster starts a process for each driver outside; on a busy machine that may take too long once."""
    try:
        ray.init(place, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True)
    except ConnectionAbortedError:
        if attempts == 1:
            raise
        ray.shutdown()
        join(ray, place, attempts - 1)


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect to a cluster that runs already; Ray's handlers of signals are not kept."""
    try:
        import ray
    except ImportError:
        raise ConfigError("--on ray needs Ray; install it with: pip install 'strongreplay[ray]'") from None
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        if address != "ray":  # Ray would try for half a minute
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        join(ray, "auto" if address == "ray" else address)
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ConfigError(
            f"--on {address}: no Ray cluster answers ({reason}); start one with: ray start --head"
        ) from None
    for number, handler in handlers.items():
        signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()
        for number, handler in handlers.items():
            signal.signal(number, handler)
