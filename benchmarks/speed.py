"""What a step costs beyond its mathematics: time as a ratio to a bare PyTorch loop in the same run; memory.

The bare loop does only the same forwards, backwards and SGD step, on tensors made ready beforehand; ours also
gathers the batch, views it, draws from memory, views what was drawn, and stores. Both take turns in short
blocks, so that a noisy machine slows them alike; the figure is the median over blocks of the ratio.

    python benchmarks/speed.py [--net mlp|resnet64|resnet20|memory ...] [--threads 1 2] [--json FILE]
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from strongreplay.data.streams import LOOKS, make_train_view
from strongreplay.data.views import normalise, scale
from strongreplay.engine import train_task
from strongreplay.memory import Memory
from strongreplay.meter import peak_bytes, reset_peak
from strongreplay.methods import METHODS, Method
from strongreplay.nets import build_net
from strongreplay.run import processor_name
from strongreplay.types import Problem, Split, Task, View, derive_generator


@dataclass(frozen=True)
class Case:
    """A net, the images it sees, and how many steps make a block."""

    net: str
    width: int
    shape: tuple[int, int, int]
    batch_size: int
    block: int
    rounds: int


CASES = {
    "mlp": Case("mlp", 100, (1, 28, 28), 128, 60, 15),
    "resnet20": Case("resnet18", 20, (3, 32, 32), 32, 4, 5),
    "resnet64": Case("resnet18", 64, (3, 32, 32), 32, 1, 5),
}


def bare_loss(
    name: str, net: nn.Module, old: nn.Module, batch: Callable[[], tuple[Tensor, Tensor]]
) -> Tensor:
    """The forwards and the loss of one step, and nothing else."""
    inputs, labels = batch()
    if name == "er":
        more, more_labels = batch()
        return cross_entropy(net(torch.cat([inputs, more])), torch.cat([labels, more_labels]))
    logits = net(inputs)
    loss = cross_entropy(logits, labels)
    if name == "sgd":
        return loss
    replayed, targets = batch()
    replayed_logits, stored = net(replayed), torch.zeros_like(logits)
    if name == "derpp":
        return loss + 0.1 * mse_loss(replayed_logits, stored) + 0.5 * cross_entropy(net(replayed), targets)
    with torch.no_grad():
        old_logits = old(inputs)
    replay = cross_entropy(replayed_logits, targets)
    return loss + replay + 0.2 * mse_loss(replayed_logits, stored) + 0.2 * mse_loss(logits, old_logits)


def bare_block(name: str, net: nn.Module, ready: list[tuple[Tensor, Tensor]], steps: int) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    old = ready_old_net(net)
    place = 0

    def batch() -> tuple[Tensor, Tensor]:
        nonlocal place
        place = (place + 1) % len(ready)
        return ready[place]

    for _ in range(steps):
        loss = bare_loss(name, net, old, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


_old_nets: dict[int, nn.Module] = {}


def ready_old_net(net: nn.Module) -> nn.Module:
    """A frozen copy, made once a net."""
    if id(net) not in _old_nets:
        _old_nets[id(net)] = deepcopy(net).eval().requires_grad_(False)
    return _old_nets[id(net)]


def make_task(case: Case, steps: int) -> Task:
    generator = torch.Generator().manual_seed(1)
    count = steps * case.batch_size
    images = torch.randint(0, 256, (count, *case.shape), dtype=torch.uint8, generator=generator)
    split = Split(images, torch.randint(0, 10, (count,), generator=generator))
    return Task(0, tuple(range(10)), split, split)


def make_method(name: str, case: Case, view: View, plain: View) -> Method:
    net = build_net(case.net, case.shape, 10, derive_generator(0, "net"), width=case.width)
    return METHODS[name].build(net, Problem(10, 5, view, plain), METHODS[name].config())


def views(case: Case) -> tuple[View, View]:
    if case.net == "mlp":
        return scale, scale
    look = LOOKS["cifar10"]
    plain = normalise(look.mean, look.std)
    return make_train_view(plain, look.pad, derive_generator(0, "views")), plain


def learn(method: Method, task: Task, case: Case, view: View) -> None:
    optimizer = torch.optim.SGD(method.net.parameters(), lr=1e-4)
    order = torch.Generator()
    train_task(method, task, view, optimizer, epochs=1, batch_size=case.batch_size, generator=order)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def step_ratio(name: str, case: Case) -> dict[str, float]:
    """Ours over bare, in turns; the method has a full memory and an old net, as from the second task on."""
    view, plain = views(case)
    method = make_method(name, case, view, plain)
    task = make_task(case, case.block)
    for _ in range(-(-400 // len(task.train)) + 1):
        learn(method, task, case, view)
    net = build_net(case.net, case.shape, 10, derive_generator(0, "net"), width=case.width)
    rows = [torch.arange(i, i + case.batch_size) for i in range(0, len(task.train), case.batch_size)]
    ready = [(plain(task.train.inputs[row]), task.train.labels[row]) for row in rows]
    bare_block(name, net, ready, case.block)
    # end_task is part of train_task; timed apart, because it happens once a task and not once a step
    ratios, ours, bares = [], [], []
    method.end_task = lambda task: None  # type: ignore[method-assign]
    for _ in range(case.rounds):
        bare = seconds(lambda: bare_block(name, net, ready, case.block))
        own = seconds(lambda: learn(method, task, case, view))
        ratios.append(own / bare)
        ours.append(1000 * own / case.block)
        bares.append(1000 * bare / case.block)
    return {"ratio": median(ratios), "ours_ms": median(ours), "bare_ms": median(bares)}


class Row(NamedTuple):
    images: Tensor
    labels: Tensor
    logits: Tensor


def memory_costs() -> Iterator[dict[str, Any]]:
    """Adding and drawing 128 MNIST images, at three capacities, filled and well past its first filling."""
    images = torch.randint(0, 256, (128, 1, 28, 28), dtype=torch.uint8)
    arriving = Row(images, torch.zeros(128, dtype=torch.int64), torch.zeros(128, 10))
    for capacity in (200, 5_000, 50_000):
        memory = Memory(Row, capacity, torch.Generator())
        while memory.num_seen < 2 * capacity:
            memory.add(arriving)
        add, sample = [], []
        for _ in range(300):
            add.append(seconds(partial(memory.add, arriving)))
            sample.append(seconds(partial(memory.sample, 128)))
        yield {"capacity": capacity, "add_ms": 1000 * median(add), "sample_ms": 1000 * median(sample)}


def peak_of_a_step(name: str, case: Case) -> dict[str, float]:
    """Peak resident memory while a method trains, and what its memory holds."""
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
    parser.add_argument("--net", nargs="+", choices=[*CASES, "memory"], default=[*CASES, "memory"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--method", nargs="+", default=["sgd", "er", "derpp", "ser"])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    report: dict[str, Any] = {
        "processor": processor_name(),
        "torch": torch.__version__,
        "steps": [],
        "memory": [],
    }
    for net in (name for name in options.net if name in CASES):
        for threads in options.threads:
            torch.set_num_threads(threads)
            for method in options.method:
                entry = {"net": net, "threads": threads, "method": method}
                entry |= step_ratio(method, CASES[net]) | peak_of_a_step(method, CASES[net])
                report["steps"].append(entry)
                print(
                    "{net:9} threads {threads}  {method:6} {ratio:5.2f} x bare  ({ours_ms:8.2f} ms, bare "
                    "{bare_ms:8.2f} ms)  peak {peak_mib:5.0f} MiB, memory {memory_mb:.2f} MB".format(**entry),
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
