"""One run on several ranks: time of a step and bytes exchanged, measured here; 8 to 64 GPUs, on paper.

Two processes with one thread each alternate between steps of the first one alone and steps they make
together, so that a busy machine slows both. A step is SER's on 32 new and 32 replayed images. The model of
GPUs adds what a rank computes to what it waits for; `docs/devices.md` lists its assumptions.

    python benchmarks/scaling.py [--net mlp resnet20 resnet64] [--rounds 5]
"""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from strongreplay.data.views import scale
from strongreplay.methods.samples import LogitSamples
from strongreplay.methods.ser import SER, SERConfig
from strongreplay.nets import build_net
from strongreplay.protocol import Batch, Problem, Split, Task, derive_generator
from strongreplay.training.parallel import Ranks, join_file
from strongreplay.training.shared_rows import share_rows

ROWS, CLASSES, MEMORY = 32, 10, 200
NETS = {
    "mlp": ("mlp", 100, (1, 28, 28)),
    "resnet20": ("resnet18", 20, (3, 32, 32)),
    "resnet64": ("resnet18", 64, (3, 32, 32)),
}


class Step:
    """Steps of SER in its second task, with a full memory."""

    def __init__(self, case: str, ranks: Ranks) -> None:
        name, width, shape = NETS[case]
        draws = derive_generator(0, "images")
        images = torch.randint(256, (MEMORY, *shape), dtype=torch.uint8, generator=draws)
        labels = torch.arange(MEMORY) % CLASSES
        net = build_net(name, shape, CLASSES, derive_generator(0, "net"), width=width)
        share_rows(net, CLASSES, ranks)
        self.method = SER(net, Problem(CLASSES, 5, scale, scale), SERConfig(memory_size=MEMORY))
        self.method.memory.add(LogitSamples(images, labels, torch.zeros(MEMORY, CLASSES)))
        data = Split(images, labels)
        self.method.end_task(Task(0, (0,), data, data))
        self.method.train()
        self.batch = Batch(torch.arange(ROWS), images[:ROWS], scale(images[:ROWS]), labels[:ROWS])
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def __call__(self) -> None:
        self.method.observe(self.batch, self.optimizer)

    def seconds(self, count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            self()
        return (time.perf_counter() - began) / count


def measure(rank: int, meeting: Path, cases: list[str], rounds: int) -> None:
    torch.set_num_threads(1)
    ranks, _ = join_file(meeting, rank, 2, "cpu")
    found = {case: measure_case(case, ranks, rounds) for case in cases}
    if ranks.is_first:
        (meeting.parent / "found.json").write_text(json.dumps(found))
    ranks.wait_for_all()
    os._exit(0)


def measure_case(case: str, ranks: Ranks, rounds: int) -> dict[str, Any]:
    alone, shared = Step(case, Ranks()), Step(case, ranks)
    shared()  # the first step allocates
    alone()
    count = max(1, int(0.5 / alone.seconds(1)))
    count = ranks.largest([count])[0]
    times: list[tuple[float, float]] = []
    for _ in range(rounds):
        ranks.wait_for_all()
        if ranks.is_first:
            lone = alone.seconds(count)
        ranks.wait_for_all()
        together = shared.seconds(count)
        if ranks.is_first:
            times.append((lone, together))
    before = ranks.bytes_sent, ranks.num_exchanges
    shared()
    return {
        "alone_ms": 1e3 * median(lone for lone, _ in times) if times else 0,
        "two_ms": 1e3 * median(together for _, together in times) if times else 0,
        "ratio": median(lone / together for lone, together in times) if times else 0,
        "bytes": ranks.bytes_sent - before[0],
        "exchanges": ranks.num_exchanges - before[1],
    }


@dataclass(frozen=True)
class Sizes:
    """What a step of a net on 1 + 1 images computes and exchanges."""

    weight_bytes: int
    feature_bytes: int  # of one image
    flops_a_pair: float  # of one new and one replayed image: body only
    memory_row_bytes: int
    num_norms: int
    norm_bytes: int


def sizes_of(case: str) -> Sizes:
    step = Step(case, Ranks())
    counter = FlopCounterMode(display=False)
    with counter:
        step()
    net: Any = step.method.net
    norms = [layer for layer in net.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    return Sizes(
        weight_bytes=sum(weight.nbytes for weight in net.body.parameters()),
        feature_bytes=4 * net.head.in_features,
        flops_a_pair=counter.get_total_flops() / ROWS,
        memory_row_bytes=sum(column[0].nbytes for column in step.method.memory.rows),
        num_norms=len(norms),
        norm_bytes=sum(8 * norm.num_features for norm in norms),
    )


@dataclass(frozen=True)
class Machine:
    """Assumptions about GPUs; see docs/devices.md."""

    flops: float = 50e12  # a second, reached by convolutions in bf16
    fixed: float = 1e-3  # seconds a step that no division shortens: launches, head, memory, optimiser
    inside: float = 200e9  # bytes a second between GPUs of a machine
    between: float = 20e9  # bytes a second and GPU between machines of 8
    wait_inside: float = 20e-6  # seconds of a small exchange
    wait_between: float = 40e-6


def modelled(sizes: Sizes, rows: int, size: int, machine: Machine) -> float:
    """Seconds of a step on `rows` new and `rows` replayed images by `size` ranks."""
    if rows < 2 * size:  # not divided
        size = 1
    compute = sizes.flops_a_pair * -(-rows // size) / machine.flops + machine.fixed
    if size == 1:
        return compute
    rate, wait = machine.inside, machine.wait_inside
    if size > 8:
        rate, wait = machine.between, machine.wait_between
    # Gradients there and back; features of three passes; statistics of two passes, forward and backward.
    moved = 2 * sizes.weight_bytes + 3 * rows * sizes.feature_bytes + 4 * sizes.norm_bytes
    exchanges = 1 + 3 + 4 * sizes.num_norms
    return compute + moved * (size - 1) / size / rate + exchanges * wait


def show_model(case: str) -> None:
    sizes, machine = sizes_of(case), Machine()
    print(f"\n{case}: {sizes}\n\n| rows | " + " | ".join(f"{n} GPUs" for n in (1, 8, 16, 32, 64)) + " |")
    print("|---|" + "---|" * 5)
    for rows in (32, 256, 1024, 4096):
        seconds = [modelled(sizes, rows, size, machine) for size in (1, 8, 16, 32, 64)]
        cells = [f"{1e3 * s:.1f} ms ({seconds[0] / s:.1f})" for s in seconds]
        print(f"| {rows} + {rows} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of a step on two ranks, and a model of GPUs.")
    parser.add_argument("--net", nargs="+", choices=list(NETS), default=["mlp", "resnet20"])
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        meeting, context = Path(folder) / "meeting", get_context("spawn")
        given = (meeting, chosen.net, chosen.rounds)
        processes = [context.Process(target=measure, args=(rank, *given)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            sys.exit("a rank failed")
        found = json.loads((Path(folder) / "found.json").read_text())
    print("| net | alone | two ranks | times faster | bytes a rank sends a step | exchanges |")
    print("|---|---|---|---|---|---|")
    for case, one in found.items():
        times = f"{one['alone_ms']:.1f} ms | {one['two_ms']:.1f} ms | {one['ratio']:.2f}"
        print(f"| {case} | {times} | {one['bytes']:,} | {one['exchanges']} |")
    show_model("resnet64")


if __name__ == "__main__":
    main()
