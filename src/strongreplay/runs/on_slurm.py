"""Runs as jobs of Slurm, sent by submitit. A run that its time limit stops goes on in a new job."""

import signal
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from strongreplay.errors import ConfigError
from strongreplay.runs.jobs import GridListener, Job, RunOptions, end_or_retry, first_line
from strongreplay.runs.workers import SignalListener, attempt_anything


def go_on_slurm(
    jobs: Iterable[Job], options: RunOptions, most: int, threads: int, listener: GridListener, cluster: str
) -> Iterator[Job]:
    """Yield each job when it has ended. The cluster is slurm, or local: processes of this machine."""
    try:
        from submitit import AutoExecutor

        executor = AutoExecutor(options.out / "slurm.logs", cluster=cluster)
    except (ImportError, RuntimeError) as error:
        raise ConfigError(f"--on slurm: {error}; needed: srun, pip install 'strongreplay[slurm]'") from None
    gpus = int(options.device.startswith("cuda"))
    executor.update_parameters(name="ser", timeout_min=240, cpus_per_task=threads, gpus_per_node=gpus)
    executor.update_parameters(slurm_array_parallelism=most, slurm_signal_delay_s=120)
    coming, sent, stopping = list(jobs), list[tuple[Any, Job]](), False
    try:
        while coming or sent:
            if coming:
                sent += send(executor, coming, options, threads)
            if listener.wants_stop() and not stopping:
                stopping = True
                cancel(sent)
            time.sleep(1.0)
            ended = [pair for pair in sent if pair[0].done()]
            sent = [pair for pair in sent if pair not in ended]
            coming = [job for task, job in ended if not finish(task, job, listener, stopping)]
            yield from (job for _, job in ended if job.ended)
            listener.on_tick([job for _, job in sent])
    finally:
        cancel(sent)


def send(executor: Any, jobs: list[Job], options: RunOptions, threads: int) -> list[tuple[Any, Job]]:
    for job in jobs:
        job.attempts, job.seconds = job.attempts + 1, -time.perf_counter()
    what = [(job.config.to_dict(), job.config.source, options, threads) for job in jobs]
    try:
        with executor.batch():  # one job array
            return [(executor.submit(make_run_there, *one), job) for one, job in zip(what, jobs, strict=True)]
    except RuntimeError as error:
        raise ConfigError(f"--on slurm: sbatch refuses ({first_line(error)})") from None


def cancel(sent: list[tuple[Any, Job]]) -> None:
    for task, _ in sent:
        task.cancel(check=False)


def finish(task: Any, job: Job, listener: GridListener, stopping: bool) -> bool:
    """Note how a job ended, and whether it did: else it is sent again."""
    job.seconds += time.perf_counter()
    how, text = ("killed", f"its job {task.job_id} was ended") if task.exception() else task.result()
    job.attempts -= how == "stopped"
    if how in ("recorded", "failed") or (how == "stopped" and stopping):
        job.ended = (how, text)
    else:
        end_or_retry(job, text, listener, stopping, "it goes on in a new job")
    return job.ended is not None


def make_run_there(held: dict[str, Any], source: str, options: RunOptions, threads: int) -> tuple[str, str]:
    """The job: makes a run; returns how it ended, and a message."""
    torch.set_num_threads(threads)
    listener = SignalListener(signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)  # USR2 is near the time limit
    how, text = attempt_anything(held, source, options, listener)
    return how, "; ".join([*listener.messages, text])
