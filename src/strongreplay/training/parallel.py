"""Ranks: the processes that make one run together on several devices, and what they exchange.

Every rank holds the whole method and makes the same draws. `shared_rows` divides the work of a net's body;
the rest is computed by all. So ranks exchange features, sums of gradients and batch statistics, and agree
when to stop. A rank that is gone ends the others: their next exchange fails.
"""

import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, PrefixStore
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from strongreplay.errors import ConfigError, RunError
from strongreplay.storage.state import pack
from strongreplay.training.devices import find_device
from strongreplay.training.events import Listener

BUCKET_BYTES = 32 << 20  # gradients are summed in pieces of this size
AGREE_SECONDS = 0.5  # between two questions whether a rank wants to stop
MOST_CALLS = 1000  # of `agree_to_stop` between two questions
PATIENCE = timedelta(minutes=30)  # for a rank that is slow, such as one that writes a large checkpoint


class LostRank(RunError):
    """Another process of the run has ended, so this one cannot continue."""


class Ranks:
    """This process and the others of its run. Without a group it is the only one, and exchanges nothing."""

    def __init__(self, rank: int = 0, size: int = 1, group: Any = None, control: Any = None) -> None:
        self.rank, self.size = rank, size
        self.group = group  # exchanges tensors of the run's device
        self.control = control or group  # exchanges numbers of the host, without waiting for the device
        self.bytes_sent = self.num_exchanges = 0  # by this rank
        self.stop_wanted, self.calls, self.calls_left, self.asked_at = False, 0, 1, time.monotonic()

    def __deepcopy__(self, memo: object) -> "Ranks":
        return self  # copies of a net compute on the same ranks

    @property
    def is_first(self) -> bool:
        """Whether this rank writes records and checkpoints, and reports progress."""
        return self.rank == 0

    # Tensors

    def add_up(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sum over all ranks of each tensor, exchanged in large pieces."""
        flats = [(flatten(piece), piece) for piece in pieces(tensors)]
        self.exchange(*(lambda flat=flat: self.group.allreduce([flat]) for flat, _ in flats))
        self.bytes_sent += sum(flat.nbytes for flat, _ in flats)
        sums = [part for flat, piece in flats for part in _unflatten_dense_tensors(flat, piece)]
        # In the memory layout of the given tensors: optimisers are slower with weights and gradients in two.
        return [
            part if given.is_contiguous() else torch.empty_like(given).copy_(part)
            for part, given in zip(sums, tensors, strict=True)
        ]

    def gather(self, part: Tensor) -> Tensor:
        """(R, ...) the tensors of all ranks, which have the same shape."""
        own = part.contiguous().view(-1).view(torch.uint8)
        found = own.new_empty(self.size * len(own))
        self.exchange(lambda: self.group._allgather_base(found, own))
        self.bytes_sent += own.nbytes
        return found.view(part.dtype).view(self.size, *part.shape)

    def exchange(self, *begin: Callable[[], Any]) -> None:
        """Begin exchanges and wait for all of them."""
        self.num_exchanges += len(begin)
        try:
            for work in [start() for start in begin]:
                work.wait()
        except RuntimeError as error:
            reason = str(error).splitlines()[0][:200]
            self.leave()
            raise LostRank(
                f"another process of this run has ended (rank {self.rank} of {self.size} noticed: {reason}); "
                "the same command resumes from the last checkpoint"
            ) from None

    def leave(self) -> None:
        """Close the connections: if their threads are at work when Python shuts down, it may abort."""
        self.group = self.control = None
        if dist.is_initialized():
            dist.destroy_process_group()

    # Agreement

    def agree_to_stop(self, wanted: bool) -> bool:
        """Whether all ranks stop now; called by all equally often. They ask each other every half second."""
        if self.size == 1:
            return wanted
        self.stop_wanted |= wanted
        self.calls, self.calls_left = self.calls + 1, self.calls_left - 1
        if self.calls_left:
            return False
        now = time.monotonic()
        pace = min(self.calls * AGREE_SECONDS / max(now - self.asked_at, 1e-6), 2 * self.calls, MOST_CALLS)
        stop, self.calls_left = self.largest([self.stop_wanted, max(1, int(pace)) if self.is_first else 1])
        self.calls, self.asked_at = 0, now
        return bool(stop)

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """The largest of each number over all ranks."""
        held, options = torch.tensor(numbers, dtype=torch.int64), dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        self.exchange(lambda: self.control.allreduce([held], options))
        return [int(number) for number in held]

    def wait_for_all(self) -> None:
        if self.size > 1:
            self.largest([0])

    def expect_equal(self, what: str, state: Any) -> None:
        """Raise an error that names the first entries that differ between ranks by a bit."""
        if self.size == 1:
            return
        tree, tensors = pack(state)
        sums = {"values": zlib.crc32(repr(tree).encode())}
        sums |= {
            name: zlib.crc32(value.view(-1).view(torch.uint8).numpy().data) for name, value in tensors.items()
        }
        names = [zlib.crc32(repr(list(sums)).encode()), *sums.values()]
        least, most = (self.largest([sign * number for number in names]) for sign in (-1, 1))
        apart = [name for name, low, high in zip(["names", *sums], least, most, strict=True) if -low != high]
        if apart:
            raise RunError(
                f"{what}: {len(apart)} of {len(sums)} entries differ between the {self.size} ranks, first "
                f"{', '.join(apart[:3])}; all ranks need the same files, hardware, versions and threads, and "
                "a net whose rows affect each other only through batch norm"
            )

    def heard_by(self, listeners: Iterable[Listener]) -> list[Listener]:
        """Only the first rank reports events; every rank may ask for a stop."""
        return list(listeners) if self.is_first else [OnlyStops(listeners)]


class OnlyStops(Listener):
    """Asks listeners whether they want a stop, and reports nothing to them."""

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self.listeners = list(listeners)

    def wants_stop(self) -> bool:
        return any(listener.wants_stop() for listener in self.listeners)


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """A copy of the tensors as one vector."""
    flat: Tensor = _flatten_dense_tensors(tensors)
    return flat.clone() if len(tensors) == 1 else flat


def pieces(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Consecutive tensors of one type, up to the size of a bucket."""
    found: list[list[Tensor]] = []
    for tensor in tensors:
        same = bool(found) and found[-1][0].dtype == tensor.dtype
        if same and sum(held.nbytes for held in found[-1]) + tensor.nbytes <= BUCKET_BYTES:
            found[-1].append(tensor)
        else:
            found.append([tensor])
    return found


# Joining


def under_torchrun() -> bool:
    return dist.is_available() and dist.is_torchelastic_launched()


def join_torchrun(device: str) -> tuple[Ranks, torch.device]:
    """The ranks that torchrun started, and the device of this one."""
    place = device_of(device, dist.get_node_local_rank())
    if not dist.is_initialized():
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo", timeout=PATIENCE)
    control = dist.new_group(backend="gloo", timeout=PATIENCE) if place.type == "cuda" else None
    return Ranks(dist.get_rank(), dist.get_world_size(), dist.group.WORLD, control), place


def join_file(path: Path, rank: int, size: int, device: str) -> tuple[Ranks, torch.device]:
    """The processes of this machine that join through the same new file, and the device of this one.

    They listen on 127.0.0.1 alone.
    """
    place, store = device_of(device, rank), FileStore(str(path), size)
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = PATIENCE
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    control = dist.ProcessGroupGloo(PrefixStore("control", store), rank, size, options)
    if place.type != "cuda":
        return Ranks(rank, size, control), place
    group = dist.ProcessGroupNCCL(PrefixStore("tensors", store), rank, size, dist.ProcessGroupNCCL.Options())
    return Ranks(rank, size, group, control), place


def device_of(name: str, local_rank: int) -> torch.device:
    """The device of a rank: its own GPU, or the CPU that all share."""
    device = find_device(name)
    if device.index is not None:
        raise ConfigError(f"device '{name}' is one device; several ranks need --device cuda, cpu or auto")
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if local_rank >= count:
        raise ConfigError(
            f"rank {local_rank} of this machine needs a {device.type} device of its own; there are {count}: "
            "use fewer ranks, or --device cpu"
        )
    return torch.device(device.type, local_rank) if device.type == "cuda" else device
