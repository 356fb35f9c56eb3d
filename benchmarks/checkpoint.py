"""Cost of a checkpoint: seconds to write and read, size on disk relative to the tensors, time to resume.

The state is that of SER with a full-size ResNet18, its frozen copy, and 500 CIFAR images with logits. For
comparison, it also times writing as many bytes to the same disk with a sync, the lower bound for any writer.

    python benchmarks/checkpoint.py [--folder DIR] [--rounds 7]
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from strongreplay.data.views import scale
from strongreplay.methods.ser import SER, SERConfig
from strongreplay.nets import build_net
from strongreplay.protocol import Batch, Problem, Split, Task, derive_generator
from strongreplay.storage.files import write_bytes
from strongreplay.storage.state import pack, read_checkpoint, write_checkpoint


def make_state(memory_size: int = 500) -> dict[str, object]:
    net = build_net("resnet18", (3, 32, 32), 10, derive_generator(0, "net"))
    method = SER(net, Problem(10, 5, scale, scale), SERConfig(memory_size=memory_size))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    images = torch.randint(0, 256, (memory_size, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(0, 10, (memory_size,))
    for rows in torch.arange(memory_size).split(100):
        method.observe(Batch(rows, images[rows], scale(images[rows]), labels[rows]), optimizer)
    method.end_task(Task(0, tuple(range(10)), Split(images, labels), Split(images, labels)))
    return {"method": dict(method.state_dict()), "optimizer": optimizer.state_dict()}


def timed(work: object) -> float:
    assert callable(work)
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def time_to_go_on(folder: Path) -> tuple[float, float]:
    """Seconds from the start of the process to its first step on digits, and those spent reading data."""
    words = [sys.executable, "-m", "strongreplay", "run", "split-digits", "--out", str(folder / "runs")]
    words += ["--set", "train.epochs=100000", "--checkpoint-every", "20", "--threads", "1", "--device", "cpu"]
    first = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(folder.rglob("manifest.json")):
        time.sleep(0.01)
    first.kill()
    first.wait()
    known = set(folder.rglob("state-*"))
    start = time.perf_counter()
    again = subprocess.Popen([*words[:-6], "--checkpoint-every", "1", *words[-4:]], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)  # fmt: skip
    while not set(folder.rglob("state-*")) - known:
        time.sleep(0.005)
    seconds = time.perf_counter() - start
    again.kill()
    again.wait()
    loading = timed(lambda: subprocess.run([sys.executable, "-c", LOAD], check=True))
    bare = timed(lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True))
    return seconds, max(loading - bare, 0.0)


LOAD = "import torch; from strongreplay.data.streams import build_stream; build_stream('split-digits')"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=None, help="a folder on the disk to measure")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    state = make_state()
    num_bytes = sum(tensor.nbytes for tensor in pack(state)[1].values())
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder, writes, reads, copies = Path(name), [], [], []
        for _ in range(options.rounds):
            writes.append(timed(lambda: write_checkpoint(folder / "run.state", state, {})))
            newest = sorted(folder.glob("run.state/state-*"))[-1]
            reads.append(timed(lambda newest=newest: read_checkpoint(newest)))
            copies.append(timed(lambda: write_bytes(folder / "copy", bytes(num_bytes))))
        on_disk = sum(file.stat().st_size for file in newest.iterdir())
        shutil.rmtree(folder / "run.state")
        print(f"tensors {num_bytes / 1e6:.1f} MB, on disk {on_disk / num_bytes:.4f} times that")
        print(
            f"write {median(writes):.3f} s ({min(writes):.3f} to {max(writes):.3f}), "
            f"{median(writes) / 3:.2f} % of the time at one in 5 minutes; read {median(reads):.3f} s; "
            f"writing as many plain bytes {median(copies):.3f} s"
        )
        seconds, loading = time_to_go_on(folder)
        print(
            f"first step {seconds:.2f} s after the start of the process, {loading:.2f} s of it reading data"
        )


if __name__ == "__main__":
    main()
