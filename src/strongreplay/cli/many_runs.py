"""Options of every command that makes many runs: how many at a time, where, which part, and what they log."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer

from strongreplay.cli.options import Jobs, Threads, with_options
from strongreplay.errors import ConfigError

T = TypeVar("T")
Devices = Annotated[
    str,
    typer.Option(
        metavar="N|cuda:0,cuda:1",
        help="A number: so many devices make each run together. Names: they are dealt out among the runs.",
    ),
]
Shard = Annotated[str, typer.Option(metavar="K/N", help="Only the K-th of N parts of the runs, such as 1/8.")]
On = Annotated[
    str,
    typer.Option(
        metavar="ray|ray://HOST:PORT|slurm",
        help="Make the runs on a Ray cluster, or as jobs of Slurm.",
        show_default="here",
    ),
]
Log = Annotated[
    list[str],
    typer.Option(help="csv, tensorboard, mlflow, wandb, or mine.py:Logger; several with commas."),
]


@dataclass(frozen=True, slots=True)
class GridOptions:
    """How the runs of a command are made."""

    jobs: int = 1
    threads: int | None = None
    devices: tuple[str, ...] = ()
    shard: tuple[int, int] = (1, 1)  # the K-th of N parts
    log: tuple[str, ...] = ()
    ranks: int = 1  # processes that make one run together, each on a device
    on: str = ""  # slurm, ray or ray://HOST:PORT; empty: this machine

    def place(self, device: str) -> str:
        """The device to use; one of another machine is not looked for here."""
        if self.on and device != "auto":
            return device
        from strongreplay.training.devices import find_device

        return str(find_device(device))

    def part_of(self, runs: list[T]) -> list[T]:
        """Every N-th run, beginning with the K-th: the same whatever is recorded already."""
        number, count = self.shard
        return runs[number - 1 :: count]


def make_options(
    jobs: int, threads: int | None, devices: str, shard: str, log: list[str], on: str
) -> GridOptions:
    """Parse the options of a command line; with several devices there are at least as many runs at a time."""
    if not re.fullmatch(r"|ray|slurm|ray://[^/\s]+:\d{1,5}", on):
        raise ConfigError(f"--on must be ray, ray://HOST:PORT or slurm, got '{on}'")
    if on and devices:
        raise ConfigError(
            "--devices are of this machine, got --on too; Ray and Slurm deal out their GPUs: --device cuda"
        )
    ranks, devices = parse_ranks(devices, jobs)
    places = tuple(name.strip() for name in devices.split(",") if name.strip())
    if places:
        from strongreplay.training.devices import find_device

        places = tuple(str(find_device(name)) for name in places)
    loggers: tuple[str, ...] = ()
    if log:
        from strongreplay.runs.loggers import parse_loggers

        loggers = parse_loggers(log)
    return GridOptions(max(jobs, len(places)), threads, places, parse_shard(shard), loggers, ranks, on)


def parse_ranks(devices: str, jobs: int) -> tuple[int, str]:
    """How many processes make one run together, and the names of devices to deal out."""
    from strongreplay.training.parallel import under_torchrun

    ranks, names = (int(devices), "") if devices.strip().isdecimal() else (1, devices)
    if ranks < 1:
        raise ConfigError(f"--devices takes a number from 1 on, or names with commas, got '{devices}'")
    if under_torchrun() and (devices or jobs > 1):
        raise ConfigError(
            "torchrun has started the processes of one run; leave out --devices and --jobs, or use them "
            "without torchrun"
        )
    return ranks, names


def parse_shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
        return int(number), int(count)
    raise ConfigError(f"--shard takes K/N with K from 1 to N, such as 1/8, got '{text}'")


def makes_runs(command: Callable[..., None]) -> Callable[..., None]:
    """Add these options to a command; its argument `how` gets the GridOptions."""
    options: dict[str, tuple[Any, Any]] = {
        "jobs": (Jobs, 1),
        "threads": (Threads, None),
        "devices": (Devices, ""),
        "shard": (Shard, "1/1"),
        "log": (Log, []),
        "on": (On, ""),
    }
    return with_options(command, "how", options, make_options)
