"""Kill a run again and again, more and more often, and check that nothing is lost.

First, one run is left undisturbed. Then the same run is started, killed with SIGKILL after a random time and
started again, until it ends; its record must be bit-identical to the undisturbed one. This repeats with ever
shorter times between kills until the given minutes are over.

    python benchmarks/soak.py --data DIR [--stream p-mnist] [--method ser] [--minutes 30] [--json FILE]
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

LONGEST, SHORTEST = 40.0, 10.0  # seconds between kills, on average, at the beginning and at the end


@dataclass
class Report:
    stream: str
    method: str
    minutes: float = 0.0
    kills: int = 0
    while_writing: int = 0  # kills that left a half-written checkpoint behind
    runs_finished: int = 0
    runs_equal: int = 0
    damaged: int = 0  # checkpoints under their right name that did not verify
    peaks_mib: list[float] = field(default_factory=list)  # peak memory of each process


def command(options: argparse.Namespace, out: Path) -> list[str]:
    words = ["run", options.stream, "--method", options.method, "--memory", str(options.memory)]
    words += ["--data", str(options.data), "--out", str(out), "--threads", "1", "--device", "cpu"]
    return [sys.executable, "-m", "strongreplay", *words, "--checkpoint-every", str(options.every)]


def results(out: Path) -> object:
    return json.loads(next(out.rglob("seed-0.json")).read_text())["results"]


def peak_mib(process: int) -> float:
    try:
        status = Path(f"/proc/{process}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024
    except (OSError, StopIteration):
        return 0.0


def run_once(words: list[str], wait: float | None) -> tuple[int, float]:
    """Exit code and peak memory of one process, killed after `wait` seconds if it is still there."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline, peak = (time.monotonic() + wait if wait else None), 0.0
    while process.poll() is None:
        peak = max(peak, peak_mib(process.pid))
        if deadline and time.monotonic() >= deadline:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        time.sleep(0.05)
    return process.returncode, peak


def verify(out: Path) -> bool:
    words = [sys.executable, "-m", "strongreplay", "state", "verify", str(out)]
    return subprocess.run(words, capture_output=True).returncode == 0


def soak(options: argparse.Namespace, folder: Path) -> Report:
    report, chance, began = Report(options.stream, options.method), random.Random(0), time.monotonic()
    run_once(command(options, folder / "whole"), None)
    expected = results(folder / "whole")
    print(f"undisturbed: {time.monotonic() - began:.0f} s", flush=True)
    number = 0
    while (part := (time.monotonic() - began) / (60 * options.minutes)) < 1:
        out = folder / f"killed-{number}"
        mean = LONGEST * (SHORTEST / LONGEST) ** part
        code, peak = run_once(command(options, out), chance.uniform(0.3, 1.7) * mean)
        report.peaks_mib.append(peak)
        if code == 0:
            report.runs_finished += 1
            report.runs_equal += results(out) == expected
            shutil.rmtree(out)
            number += 1
        elif code == -signal.SIGKILL:
            report.kills += 1
            report.while_writing += any(True for _ in out.rglob(".new-*"))
            if list(out.rglob("manifest.json")):
                report.damaged += not verify(out)
        else:
            raise SystemExit(f"a run ended with {code}")
        report.minutes = (time.monotonic() - began) / 60
        print(
            f"{report.minutes:5.1f} min, mean {mean:4.1f} s: {report.kills} kills, {report.while_writing} "
            f"while writing, {report.runs_equal} of {report.runs_finished} runs equal, peak {peak:.0f} MiB",
            flush=True,
        )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--stream", default="p-mnist")
    parser.add_argument("--method", default="ser")
    parser.add_argument("--memory", type=int, default=200)
    parser.add_argument("--every", default="100", help="steps or time between checkpoints")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--json", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = soak(options, Path(folder))
    peaks = [peak for peak in report.peaks_mib if peak]
    first, last = peaks[: len(peaks) // 4 + 1], peaks[-len(peaks) // 4 - 1 :]
    print(
        f"{report.kills} kills in {report.minutes:.0f} minutes, {report.runs_equal} of "
        f"{report.runs_finished} finished runs equal to the bit, {report.damaged} damaged checkpoints; "
        f"peak memory {max(first):.0f} MiB in the first quarter, {max(last):.0f} MiB in the last"
    )
    if options.json:
        options.json.write_text(json.dumps(asdict(report), indent=1) + "\n")
    if report.damaged or report.runs_equal < report.runs_finished or not report.runs_finished:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
