"""Feed mutated files to every reader; nothing but our own errors may come out.

    python benchmarks/fuzz.py --inputs 1000000
    python benchmarks/fuzz.py --seconds 120 --seed 7
    python benchmarks/fuzz.py --reader states --only 4711 --seed 7    # one input again, with its traceback

Inputs are made from files that our own code writes (`fuzz_readers.py`) by changing bytes, numbers, trees and
whole parts; most get right checksums afterwards. Input number N of a reader depends on the seed alone. They
are read in child processes, each input within SECONDS seconds and with at most MEMORY bytes more than before;
a child that dies counts as a finding. Findings are printed and, with --findings, kept as folders of files.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import torch
from fuzz_readers import READERS, in_turn, write_files

from strongreplay.errors import SerError

SECONDS = 20  # for one input; most take a millisecond, but the machine may be busy
MEMORY = 3 << 29  # bytes for one input; an image of the most pixels, twice, needs nearly as much
BATCH = 500  # inputs of a child


def make_input(reader: str, number: int, seed: int, folder: Path) -> Random:
    """Write the input to an empty folder."""
    chance = Random(f"{seed} {reader} {number}")
    contents = READERS[reader].make(chance)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_files(folder, contents)
    return chance


def read_input(reader: str, number: int, seed: int, folder: Path) -> str:
    """How the reading ended: read, refused, or a traceback."""
    chance = make_input(reader, number, seed, folder)
    signal.alarm(SECONDS)
    try:
        READERS[reader].read(folder, chance)
        return "read"
    except SerError:
        return "refused"
    except Exception:
        return traceback.format_exc()
    finally:
        signal.alarm(0)


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def work(batch: list[tuple[str, int]], seed: int, folder: Path) -> None:
    """The inputs of a child; a line in `ended` for each, written before and after it is read."""
    limit_memory()
    sys.stdout = sys.stderr = (folder / "said").open("w")
    with (folder / "ended").open("w") as file:
        for reader, number in batch:
            ended = read_input(reader, number, seed, folder / "input")
            file.write(json.dumps(ended) + "\n")
            file.flush()


def in_a_child(batch: list[tuple[str, int]], seed: int, folder: Path) -> list[str]:
    """How each input ended; the rest of a batch whose process died is left out."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(batch, seed, folder)
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ended: list[str] = [json.loads(line) for line in (folder / "ended").read_text().splitlines()]
    if code:
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        hint = f", it took more than {SECONDS} s" if code == -signal.SIGALRM else ""
        said = (folder / "said").read_text()[-1000:]
        ended = [*ended[: len(batch) - 1], f"its process ended by {name}{hint}\n{said}"]
    return ended


class Fuzz:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.seed, self.folder, self.findings = options.seed, folder, options.findings
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in READERS}
        self.seen: Counter[str] = Counter()  # the last line of a traceback and its place -> how often
        self.began = self.told = time.monotonic()

    def go(self, inputs: int, seconds: float, readers: list[str]) -> None:
        turn = (name for name in in_turn() if name in readers)
        numbers: Counter[str] = Counter()
        waiting: list[tuple[str, int]] = []
        done = 0
        while done < inputs and time.monotonic() - self.began < seconds:
            for name in islice(turn, min(BATCH, inputs - done) - len(waiting)):
                waiting.append((name, numbers[name]))
                numbers[name] += 1
            ended = in_a_child(waiting, self.seed, self.folder)
            for (name, number), how in zip(waiting, ended, strict=False):
                self.note(name, number, how)
            done, waiting = done + len(ended), waiting[len(ended) :]
            if time.monotonic() - self.told > 10:
                self.tell()

    def note(self, name: str, number: int, how: str) -> None:
        kind = how if how in ("read", "refused") else "found"
        self.counts[name][kind] += 1
        if kind == "found":
            lines = [line.strip() for line in how.strip().splitlines()]
            where = next((line for line in reversed(lines) if line.startswith("File ")), "")
            key = f"{name}: {lines[-1][:120]} ({where})"
            self.seen[key] += 1
            if self.seen[key] <= 3:
                print(f"FOUND by {name}, number {number}, seed {self.seed}:\n{how}", flush=True)
                if self.findings:
                    make_input(name, number, self.seed, self.findings / f"{name.replace(' ', '-')}-{number}")

    def total(self, kind: str) -> int:
        return sum(counts[kind] for counts in self.counts.values())

    def tell(self) -> None:
        self.told = time.monotonic()
        read, refused, found = map(self.total, ("read", "refused", "found"))
        print(
            f"{self.told - self.began:6.0f} s: {read + refused + found:,} inputs, {read:,} read, "
            f"{refused:,} refused, {found:,} with a fault of ours",
            flush=True,
        )

    def report(self) -> None:
        self.tell()
        for name, counts in self.counts.items():
            shown = ", ".join(f"{counts[kind]:,} {kind}" for kind in ("read", "refused", "found"))
            print(f"  {name:16} {sum(counts.values()):9,} inputs: {shown}")
        for key, count in self.seen.most_common():
            print(f"{count} x {key}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=10**9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", nargs="+", choices=READERS, default=list(READERS))
    parser.add_argument("--only", type=int, help="read this input of one reader alone, in this process")
    parser.add_argument("--findings", type=Path, help="keep the files of findings in this folder")
    parser.add_argument("--json", type=Path, help="also write the counts to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        if options.only is not None:
            print(read_input(options.reader[0], options.only, options.seed, Path(folder, "input")))
            return
        for name in options.reader:
            READERS[name].corpus()  # once, before the children
        fuzz = Fuzz(options, Path(folder))
        fuzz.go(options.inputs, options.seconds, options.reader)
    fuzz.report()
    if options.json:
        options.json.write_text(json.dumps({"seed": options.seed, "counts": fuzz.counts}, indent=1) + "\n")
    if fuzz.seen:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
