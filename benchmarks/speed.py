"""Overhead of a training step: its time relative to a bare PyTorch loop, and its memory.

The bare loop (`bare_loops.py`) does only the same forward passes, backward passes and SGD steps, on prepared
tensors; ours also gathers and augments the batch, draws from memory, augments the replayed images, and stores
samples. Both alternate in short blocks, so that a busy machine slows both; the result is the median ratio
over blocks. `--clock processor` measures processor time, which is steadier on a machine that others use.

    python benchmarks/speed.py [--net mlp|resnet64|resnet20|vit|memory ...] [--method NAME ...]
        [--threads 1 2] [--clock wall|processor] [--json FILE]
    python benchmarks/speed.py --precision [--net resnet64 resnet20] [--threads 2] [--json FILE]

With --precision it compares SER's own step in float32, in bfloat16, compiled, and both, in turns. It also
prints the seconds of each way's first block of steps, which compiles from an empty cache.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch._inductor.utils
from bare_loops import BARE, OWN, bare_loop
from torch import Tensor

from strongreplay.data.streams import PREPROCESSING, make_train_view
from strongreplay.data.views import normalise, scale
from strongreplay.memory import Memory
from strongreplay.methods import METHODS, Method
from strongreplay.methods.table import method_label
from strongreplay.nets import build_net
from strongreplay.protocol import Problem, Split, Task, View, derive_generator
from strongreplay.runs.machine import processor_name
from strongreplay.training.engine import train_task
from strongreplay.training.precision import Precision
from strongreplay.training.resources import peak_bytes, reset_peak
from strongreplay.training.settings import TrainConfig


@dataclass(frozen=True)
class Case:
    """A net, its input shape, the steps of a block, and the steps of the tasks before."""

    net: str
    width: int
    shape: tuple[int, int, int]
    batch_size: int
    block: int
    rounds: int
    past: int  # steps of a finished task; a reservoir that has seen fewer samples writes more


CASES = {
    "mlp": Case("mlp", 100, (1, 28, 28), 128, 20, 60, 94),  # a task of seq-mnist has 94
    "resnet20": Case("resnet18", 20, (3, 32, 32), 32, 4, 5, 4),
    "resnet64": Case("resnet18", 64, (3, 32, 32), 32, 1, 5, 1),
    "vit": Case("vit", 32, (1, 28, 28), 32, 10, 10, 10),  # for methods that need one
}


def make_task(case: Case, steps: int, index: int = 0) -> Task:
    generator = torch.Generator().manual_seed(1)
    count = steps * case.batch_size
    images = torch.randint(0, 256, (count, *case.shape), dtype=torch.uint8, generator=generator)
    split = Split(images, torch.randint(0, 10, (count,), generator=generator))
    return Task(index, tuple(range(10)), split, split)


def make_method(name: str, case: Case, view: View, plain: View) -> Method:
    net = build_net(case.net, case.shape, 10, derive_generator(0, "net"), width=case.width)
    return METHODS[name].build(net, Problem(10, 5, view, plain), METHODS[name].config())


def views(case: Case) -> tuple[View, View]:
    if case.shape[0] == 1:
        return scale, scale
    look = PREPROCESSING["cifar10"]
    plain = normalise(look.mean, look.std)
    return make_train_view(plain, look.pad, derive_generator(0, "views")), plain


def learn(method: Method, task: Task, case: Case, view: View) -> None:
    optimizer = torch.optim.SGD(method.net.parameters(), lr=1e-4)
    order = torch.Generator()
    train_task(method, task, view, optimizer, epochs=1, batch_size=case.batch_size, generator=order)


CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def seconds(work: Callable[[], object], clock: str = "wall") -> float:
    start = CLOCKS[clock]()
    work()
    return CLOCKS[clock]() - start


def step_ratio(name: str, case: Case, clock: str = "wall") -> dict[str, float]:
    """Time of our step divided by the bare one; the method has a full memory and four finished tasks."""
    view, plain = views(case)
    method = make_method(name, case, view, plain)
    for index in range(4):
        learn(method, make_task(case, case.past, index), case, view)
    task = method.begin_task(make_task(case, case.block, 4))
    # What happens once per task is not part of a step.
    method.begin_task = lambda task: task  # type: ignore[method-assign]
    method.end_task = lambda task: None  # type: ignore[method-assign]
    sizes, bare_steps = bare_loop(name, method)
    ready = [
        {rows: ready_rows(task.train, plain, max(1, round(rows * case.batch_size))) for rows in sizes}
        for _ in range(min(case.block, 20))
    ]
    bare_steps(ready, case.block)
    ratios, ours, bares = [], [], []
    for _ in range(case.rounds):
        bare = seconds(lambda: bare_steps(ready, case.block), clock)
        own = seconds(lambda: learn(method, task, case, view), clock)
        ratios.append(own / bare)
        ours.append(1000 * own / case.block)
        bares.append(1000 * bare / case.block)
    return {"ratio": median(ratios), "ours_ms": median(ours), "bare_ms": median(bares)}


WAYS = {
    "fp32": TrainConfig(),
    "bf16": TrainConfig(precision="bf16"),
    "compiled": TrainConfig(compile=True),
    "both": TrainConfig(precision="bf16", compile=True),
}


def precision_times(case: Case) -> Iterator[dict[str, Any]]:
    """Milliseconds of a step of SER in the second task, for each way to compute; all take turns."""
    view, plain = views(case)
    ready, first = {}, dict[str, float]()
    for way, settings in WAYS.items():
        method, precision = make_method("ser", case, view, plain), Precision(settings, torch.device("cpu"))
        learn(method, make_task(case, 2), case, view)
        method.end_task = lambda task: None  # type: ignore[method-assign]
        ready[way] = (method, precision)
    task, found = make_task(case, case.block, 1), {way: list[float]() for way in WAYS}
    for number in range(1 + 2 * case.rounds):
        for way, (method, precision) in ready.items():
            with precision.applied(method):
                taken = seconds(partial(learn, method, task, case, view))
            if number:
                found[way].append(1000 * taken / case.block)
            else:  # it compiles
                first[way] = taken
    for way, times in found.items():
        ratios = [plain / own for plain, own in zip(found["fp32"], times, strict=True)]
        yield {"way": way, "ms": median(times), "times_faster": median(ratios), "first_s": first[way]}


def compare_precisions(nets: list[str], numbers: list[int]) -> Iterator[dict[str, Any]]:
    for net, threads in product([name for name in nets if name in CASES], numbers):
        torch.set_num_threads(threads)
        with torch._inductor.utils.fresh_cache():
            entries = list(precision_times(CASES[net]))
        for entry in entries:
            found = {"net": net, "threads": threads} | entry
            text = "{net:9} threads {threads}  {way:9} {ms:8.1f} ms, {times_faster:4.2f} times as fast"
            print(f"{text}, first block {{first_s:.1f}} s".format(**found), flush=True)
            yield found


def ready_rows(split: Split, plain: View, count: int) -> tuple[Tensor, Tensor]:
    rows = torch.arange(count) % len(split)
    return plain(split.inputs[rows]), split.labels[rows]


class Row(NamedTuple):
    images: Tensor
    labels: Tensor
    logits: Tensor


def memory_costs() -> Iterator[dict[str, Any]]:
    """Time of adding and of drawing 128 MNIST images, for three capacities, with a full memory."""
    images = torch.randint(0, 256, (128, 1, 28, 28), dtype=torch.uint8)
    rows = Row(images, torch.zeros(128, dtype=torch.int64), torch.zeros(128, 10))
    for capacity in (200, 5_000, 50_000):
        memory = Memory(Row, capacity, torch.Generator())
        while memory.num_seen < 2 * capacity:
            memory.add(rows)
        add, sample = [], []
        for _ in range(300):
            add.append(seconds(partial(memory.add, rows)))
            sample.append(seconds(partial(memory.sample, 128)))
        yield {"capacity": capacity, "add_ms": 1000 * median(add), "sample_ms": 1000 * median(sample)}


def peak_of_a_step(name: str, case: Case) -> dict[str, float]:
    """Peak resident memory of training, and the size of the method's memory."""
    view, plain = views(case)
    method = make_method(name, case, view, plain)
    task = make_task(case, 2)
    learn(method, task, case, view)
    reset_peak()
    learn(method, task, case, view)
    held = sum(m.num_bytes for m in method.modules() if isinstance(m, Memory))
    return {"peak_mib": peak_bytes() / 2**20, "memory_mb": held / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--net", nargs="+", choices=[*CASES, "memory"], default=["mlp", "resnet20", "resnet64", "memory"]
    )
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--method", nargs="+", choices=BARE | OWN, default=["sgd", "er", "derpp", "ser"])
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor: for a busy machine")
    parser.add_argument("--precision", action="store_true", help="compare fp32, bf16 and compiled steps")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    report: dict[str, Any] = {
        "processor": processor_name(),
        "torch": torch.__version__,
        "steps": [],
        "memory": [],
    }
    if options.precision:
        report["precision"] = list(compare_precisions(options.net, options.threads))
        options.net = []
    for net in (name for name in options.net if name in CASES):
        for threads in options.threads:
            torch.set_num_threads(threads)
            for method in options.method:
                entry = {"net": net, "threads": threads, "method": method}
                entry |= step_ratio(method, CASES[net], options.clock)
                entry |= peak_of_a_step(method, CASES[net])
                report["steps"].append(entry)
                print(
                    "{net:9} threads {threads}  {label:6} {ratio:5.2f} x bare  ({ours_ms:8.2f} ms, bare "
                    "{bare_ms:8.2f} ms)  peak {peak_mib:5.0f} MiB, memory {memory_mb:.2f} MB".format(
                        label=method_label(method), **entry
                    ),
                    flush=True,
                )
    if "memory" in options.net:
        for entry in memory_costs():
            report["memory"].append(entry)
            print(
                "memory of {capacity:6}: add {add_ms:.3f} ms, sample {sample_ms:.3f} ms".format(**entry),
                flush=True,
            )
    if options.json:
        options.json.write_text(
            json.dumps(report | {"cases": {k: asdict(v) for k, v in CASES.items()}}, indent=1) + "\n"
        )
        print(f"written to {options.json}", file=sys.stderr)


if __name__ == "__main__":
    main()
