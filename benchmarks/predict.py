"""Cost of predictions: one image in a new and in a running process; a folder of images per second; memory.

Images are 32 x 32 PNG files of noise, and the net is the default for this size, a reduced ResNet18; its
training does not matter. Both wall-clock and processor seconds are printed: if they differ much, the machine
was busy and the wall-clock time is not reliable.

    python benchmarks/predict.py [--images 10000] [--rounds 5] [--threads 1]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image

from strongreplay.cli.options import choose_device
from strongreplay.cli.predict import predict, read_batches
from strongreplay.models.learn import LearnRequest, learn
from strongreplay.models.load import load_model
from strongreplay.models.store import Store

SIDE = 32


def write_images(folder: Path, count: int) -> Path:
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for number in range(count):
        pixels = generator.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:06d}.png", compress_level=1)
    return folder


def make_model(folder: Path) -> Path:
    for name in ("cat", "dog"):
        write_images(folder / "data" / name, 20)
    learn(folder / "state", LearnRequest(folder / "data", settings={"train.epochs": 1}), torch.device("cpu"))
    return folder / "state"


def run(state: Path, path: Path, threads: int) -> tuple[float, float, float]:
    """Wall-clock seconds, processor seconds and peak memory in MiB of a new process."""
    words = [sys.executable, "-m", "strongreplay", "predict", str(state), str(path)]
    words += ["--device", "cpu", "--threads", str(threads)]
    start = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def warm(state: Path, file: Path, threads: int, rounds: int = 50) -> float:
    """Milliseconds from a file's path to its label, in a running process."""
    _, model = load_model(Store(state), None, choose_device("cpu", threads))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for batch in read_batches([file], model.shape, 1):
            predict(model, batch.inputs, 1)
        times.append(1000 * (time.perf_counter() - start))
    return median(times[rounds // 10 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as place:
        state, images = make_model(Path(place)), write_images(Path(place) / "images", options.images)
        first = images / "000000.png"
        cold = [run(state, first, options.threads) for _ in range(options.rounds)]
        clock, processor, peak = (median(column) for column in zip(*cold, strict=True))
        print(f"one image, cold: {clock:.2f} s ({processor:.2f} s of processor), peak {peak:.0f} MiB")
        print(f"one image, warm: {warm(state, first, options.threads):.2f} ms")
        clock, processor, many_peak = run(state, images, options.threads)
        print(
            f"{options.images:,} images: {clock:.1f} s ({processor:.1f} s of processor), "
            f"{options.images / clock:.0f} a second, peak {many_peak:.0f} MiB"
        )
        print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
