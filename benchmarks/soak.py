"""Kill commands at random moments, repeat them until they end, and compare the results to the bit.

Every command is first left undisturbed once. Then it is started, killed with SIGKILL after a random time of
its CPU and started again, until it ends; its results must equal the undisturbed ones. After every kill each
checkpoint and each kept model is verified. The commands: a run of every method, `ser learn` three times in a
row, runs in two processes (only the parent is killed; its children must be gone within 5 seconds),
`ser reproduce`, and CIFAR-10 with ResNet18.

    python benchmarks/soak.py FOLDER --data DATA_FOLDER --kills 1000

FOLDER holds the work, a line for every kill (`kills.csv`) and the counts (`counts.json`). If this command is
stopped, the same command continues; with more kills it goes on.
"""

import argparse
import contextlib
import csv
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import strongreplay.__main__ as entry
from strongreplay.cli import main as main_of_ser
from strongreplay.data.datasets import load
from strongreplay.errors import DataError
from strongreplay.methods.table import METHOD_ROWS
from strongreplay.models.store import Store
from strongreplay.storage import files
from strongreplay.storage.checkpoints import checkpoints, folders_with_state
from strongreplay.storage.state import read_checkpoint

GONE_WITHIN = 5.0  # seconds that children may outlive their parent
LOOK = 0.03  # seconds between two looks at a process
PLAIN = ["--device", "cpu", "--threads", "1"]
SLOW_METHODS = {
    "co2l": ["train.epochs=2"],
    "lvt": ["train.epochs=1"],
    "l2p": ["net.width=8", "train.epochs=1"],
    "dualprompt": ["net.width=8", "train.epochs=1"],
    "mer": ["train.epochs=1"],
}
CIFAR = ["net.width=4", "train.epochs=1", "train.batch_size=256", "data.tasks=2"]


@dataclass(frozen=True, slots=True)
class Case:
    """Commands to kill, one after another, and what they leave."""

    name: str
    commands: Callable[[Path], list[list[str]]]  # for a folder
    results: Callable[[Path], Any]


@dataclass(slots=True)
class Counts:
    """What happened to a case so far."""

    kills: int = 0
    while_writing: int = 0  # kills that left a half-written file behind
    finished: int = 0
    equal: int = 0
    damaged: int = 0  # checkpoints or models that did not verify after a kill
    failed: int = 0  # commands that ended with an error
    orphans: int = 0  # children that outlived their parent for more than GONE_WITHIN
    longest_orphan: float = 0.0
    peak_mib: float = 0.0
    notes: list[str] = field(default_factory=list)


def run_case(name: str, stream: str, data: Path, words: list[str], every: int = 10) -> Case:
    def commands(folder: Path) -> list[list[str]]:
        line = ["run", stream, *words, *PLAIN, "--checkpoint-every", str(every), "--data", str(data)]
        return [[*line, "--out", str(folder / "out")]]

    return Case(name, commands, recorded_results)


def recorded_results(folder: Path) -> Any:
    """The results of all records, by path."""
    return {
        str(path.relative_to(folder)): json.loads(path.read_text())["results"]
        for path in sorted((folder / "out").rglob("seed-*.json"))
    }


def reproduce_case(data: Path) -> Case:
    def commands(folder: Path) -> list[list[str]]:
        line = ["reproduce", "table2", "--only", "r-mnist,sgd", "--seeds", "1", *PLAIN, "--data", str(data)]
        return [[*line, "--out", str(folder / "out")]]

    return Case("reproduce", commands, recorded_results)


def learn_case(data: Path) -> Case:
    """Three updates with other digits; the tensors of all versions are compared by their checksums."""

    def commands(folder: Path) -> list[list[str]]:
        line = ["learn", str(folder / "model"), "--net", "mlp", "--epochs", "8", "--accept", *PLAIN]
        return [[*line, "--data", str(chunk)] for chunk in sorted(data.glob("*.npz"))]

    def results(folder: Path) -> Any:
        store = Store(folder / "model")
        return {version.name: store.manifest(version.name)["parts"] for version in store.versions()}

    return Case("learn", commands, results)


def write_digits(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    split = load("digits", Path())[0]
    for number in range(3):
        rows = (split.labels // 2 == number).nonzero().flatten()
        np.savez(
            folder / f"{number}.npz", inputs=split.inputs[rows].numpy(), labels=split.labels[rows].numpy()
        )
    return folder


def make_cases(folder: Path, data: Path) -> Iterator[Case]:
    """One round; those that are killed more rarely in practice come less often."""
    for row in METHOD_ROWS.values():
        words = ["--method", row.name, *(["--memory", "50"] if row.has_memory else [])]
        settings = SLOW_METHODS.get(row.name, []) + (["data.auxiliary=digits"] if row.needs_auxiliary else [])
        stream = "split-digits"
        yield run_case(row.name, stream, data, words + [word for one in settings for word in ("-s", one)])
        if row.name in ("oewc", "gem", "hal", "rm"):
            yield learn_case(folder / "digits")
        if row.name in ("si", "icarl", "derpp"):
            yield run_case(
                "two-jobs",
                "split-digits",
                data,
                ["--method", "er,ser", "--memory", "50", "--seeds", "2", "--jobs", "2"],
            )
        if row.name in ("fdr", "ser"):
            words = ["--method", "ser", "--memory", "50", *(word for one in CIFAR for word in ("-s", one))]
            yield run_case("cifar10-resnet18", "seq-cifar10", data, words, every=5)
    yield reproduce_case(data)


def descendants(parent: int) -> list[tuple[int, str]]:
    """The processes below one, each with its start time, which tells it from a later one of the same id."""
    found, parents = [], {parent}
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        stats.append((int(path.parent.name), int(rest[1]), rest[19]))
    for pid, above, began in sorted(stats):
        if above in parents:
            parents.add(pid)
            found.append((pid, began))
    return found


def is_there(pid: int, began: str) -> bool:
    try:
        rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return rest[19] == began and rest[0] not in "ZX"


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def peak_mib(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024
    except (OSError, StopIteration):
        return 0.0


def cpu_seconds(processes: Iterable[int]) -> float:
    """CPU time of processes and of the children that they have waited for."""
    total = 0
    for pid in processes:
        with contextlib.suppress(OSError):
            rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, rest[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def ended(words: list[str], limit: float | None, counts: Counts) -> tuple[int, str]:
    """Exit code and messages of a command, which is killed after so many seconds of CPU time.

    Not of the clock: on a busy machine it would be killed before it has begun.
    """
    with tempfile.TemporaryFile("w+") as said:
        process = Command(words, said.fileno())
        while (code := process.poll()) is None:
            time.sleep(LOOK)
            children = descendants(process.pid) if limit else []
            if limit and cpu_seconds([process.pid, *(pid for pid, _ in children)]) >= limit:
                kill(process, children, counts)
        said.seek(0)
        return code, said.read()[-2000:]


class Command:
    """`ser` in a fork of this process, which has imported PyTorch already: a short command is mostly that."""

    def __init__(self, words: list[str], said: int) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code: object = 1
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.dup2(said, 2)
                sys.argv, sys.modules["__main__"] = ["ser", *words], entry  # what its own processes import
                main_of_ser()
                code = 0
            except SystemExit as end:
                code = end.code
            finally:
                sys.stderr.flush()
                os._exit(code if isinstance(code, int) else int(code is not None))

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> None:
        while self.poll() is None:
            time.sleep(0.001)


def kill(process: Command, children: list[tuple[int, str]], counts: Counts) -> None:
    """Kill a process, and see how long its children outlive it."""
    counts.peak_mib = max(counts.peak_mib, peak_mib(process.pid))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    began, late = time.monotonic(), False
    while left := [child for child in children if is_there(*child)]:
        if time.monotonic() - began > GONE_WITHIN and not late:
            counts.orphans, late = counts.orphans + len(left), True
        time.sleep(LOOK)
    if children:
        counts.longest_orphan = max(counts.longest_orphan, time.monotonic() - began)


def faults_of(folder: Path) -> list[str]:
    """What is wrong with the checkpoints and the kept model in a folder."""
    faults = Store(folder / "model").verify() if os.path.lexists(folder / "model/current") else []
    for path in [path for state in folders_with_state(folder) for path in checkpoints(state)]:
        try:
            read_checkpoint(path)
        except DataError as error:
            faults.append(str(error))
    return faults


class Soak:
    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self.data = folder, data
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.lines = folder / "counts.json", folder / "kills.csv"
        held: dict[str, Any] = {"seconds": 0.0, "cases": {}}
        if self.file.exists():
            held = json.loads(self.file.read_text())
        self.counts = {name: Counts(**values) for name, values in held["cases"].items()}
        self.seconds, self.began = held["seconds"], time.monotonic()

    @property
    def kills(self) -> int:
        return sum(counts.kills for counts in self.counts.values())

    def go(self, kills: int) -> None:
        write_digits(self.folder / "digits")
        cases = list(make_cases(self.folder, self.data))
        done = sum(counts.finished for counts in self.counts.values())
        for number in itertools.count(done):
            if self.kills >= kills:
                return
            case = cases[number % len(cases)]
            self.disturb(case, self.undisturbed(case), number)

    def undisturbed(self, case: Case) -> tuple[float, Any]:
        """CPU time of a command and results of the case without a kill."""
        whole, file = self.folder / case.name / "whole", self.folder / case.name / "whole.json"
        if not file.exists():
            shutil.rmtree(whole, ignore_errors=True)
            began = cpu_of_children()
            for words in case.commands(whole):
                code, said = ended(words, None, Counts())
                if code:
                    raise SystemExit(f"ser {' '.join(words)}\nended with {code}: {said}")
            commands = len(case.commands(whole))
            seconds = (cpu_of_children() - began) / commands
            content = {"seconds": seconds, "results": case.results(whole)}
            files.write_text(file, json.dumps(content))
        held = json.loads(file.read_text())
        return held["seconds"], held["results"]

    def disturb(self, case: Case, whole: tuple[float, Any], number: int) -> None:
        """Kill the commands of a case until all have ended."""
        seconds, expected = whole
        counts, folder = self.counts.setdefault(case.name, Counts()), self.folder / case.name / "killed"
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier soak that was itself stopped
        chance = random.Random(f"{number} {self.kills}")
        for words in case.commands(folder):
            code = -signal.SIGKILL
            while code == -signal.SIGKILL:
                # Often soon, for many kills; at times late, for commands that write no checkpoint meanwhile.
                low, high = (0.05, 0.4) if chance.random() < 0.8 else (0.4, 2)
                limit = chance.uniform(low, high) * seconds
                code, said = ended(words, limit, counts)
                if code == -signal.SIGKILL:
                    self.note_kill(case, folder, limit, counts)
            if code:
                counts.failed += 1
                counts.notes.append(f"ser {' '.join(words)} ended with {code}: {said}")
                shutil.copytree(folder, folder.with_name(f"failed-{number}"))
                break
        counts.finished += 1
        equal = json.loads(json.dumps(case.results(folder))) == expected
        counts.equal += equal
        if not equal:
            shutil.copytree(folder, folder.with_name(f"different-{number}"), dirs_exist_ok=True)
        self.save()
        total = list(self.counts.values())
        print(
            f"{self.kills} kills; {sum(one.equal for one in total)} of {sum(one.finished for one in total)} "
            f"finished equal; {sum(one.damaged for one in total)} damaged, "
            f"{sum(one.orphans for one in total)} orphans; {case.name} {'equal' if equal else 'DIFFERENT'}",
            flush=True,
        )

    def note_kill(self, case: Case, folder: Path, limit: float, counts: Counts) -> None:
        counts.kills += 1
        writing = any(True for _ in folder.rglob(f"{files.PREFIX}*"))
        counts.while_writing += writing
        if faults := faults_of(folder):
            counts.damaged += 1
            counts.notes += faults
            shutil.copytree(folder, folder.with_name(f"damaged-{self.kills}"), symlinks=True)
        with self.lines.open("a", newline="") as file:
            when = time.strftime("%F %T")
            csv.writer(file).writerow([when, case.name, f"{limit:.2f}", int(writing), len(faults)])
        self.save()

    def save(self) -> None:
        seconds = self.seconds + time.monotonic() - self.began
        total = {
            key: sum(getattr(one, key) for one in self.counts.values())
            for key in ("kills", "while_writing", "finished", "equal", "damaged", "failed", "orphans")
        }
        held = {name: asdict(counts) for name, counts in self.counts.items()}
        files.write_text(self.file, json.dumps({"seconds": seconds, "total": total, "cases": held}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)  # no threads before a fork
    soak = Soak(options.folder.resolve(), options.data.resolve())
    soak.go(options.kills)
    bad = [name for name, counts in soak.counts.items() if counts.equal < counts.finished or counts.damaged]
    bad += [name for name, counts in soak.counts.items() if counts.orphans]
    print(soak.file.read_text())
    if bad:
        raise SystemExit(f"not as it should be: {', '.join(bad)}")


if __name__ == "__main__":
    main()
