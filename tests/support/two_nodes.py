"""A Ray cluster of two nodes in this process, and what is lost on it while runs go on.

It is run as a script in a network namespace of its own, because Ray listens on all interfaces:
`two_nodes.py OUT` writes what it saw to OUT/seen.json.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import glob
from pathlib import Path
from typing import Any

from strongreplay.runs import on_ray
from strongreplay.runs.config import RunConfig, resolve
from strongreplay.runs.grid import Grid, Job, RunOptions

PORT = 10001  # for drivers outside of the cluster
WORDS = [
    "run",
    "split-digits",
    "-m",
    "er",
    "--memory",
    "30",
    "--set",
    "train.epochs=400",
    "--checkpoint-every",
    "20",
]


def make_config(method: str, seed: int, epochs: int) -> RunConfig:
    return resolve("split-digits", method, 30, seed, {"train.epochs": epochs, "net.width": 16})


def twelve_configs() -> list[RunConfig]:
    """The third to the sixth are long: they run while a worker is killed and while a node is lost."""
    names = [(name, seed) for name in ("er", "derpp", "ser", "der") for seed in range(3)]
    return [
        make_config(name, seed, 30 if 2 <= number < 6 else 4) for number, (name, seed) in enumerate(names)
    ]


def tasks() -> list[int]:
    """The processes that make runs now."""
    own, found = os.readlink("/proc/self/ns/net"), []
    for place in glob("/proc/[0-9]*"):
        try:
            title = Path(place, "cmdline").read_text()
            if title.startswith("ray::make_run_there") and os.readlink(f"{place}/ns/net") == own:
                found.append(int(place.rpartition("/")[2]))
        except OSError:
            continue
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Losses:
    """Kills a worker when two runs have ended; when four have, removes a node that has a run half done."""

    def __init__(self, cluster: Any, node: Any = None, kill_after: int = 2) -> None:
        self.cluster, self.node, self.kill_after = cluster, node, kill_after
        self.ended, self.messages, self.killed, self.removed = 0, list[str](), 0, False

    def on_tick(self, running: list[Job]) -> None:
        far = bool(running) and all(job.done > 20 for job in running)  # all have a checkpoint
        if not self.killed and self.ended >= self.kill_after and far:
            for pid in tasks()[:1]:
                os.kill(pid, signal.SIGKILL)
                self.killed = pid
        there = [job for job in running if self.node and job.device == self.node.node_id and job.done > 20]
        if there and not self.removed and self.ended >= 4:
            self.removed = self.lose_node()

    def lose_node(self) -> bool:
        """End all processes of the node at once; not if its run has just ended."""
        raylet = self.node.all_processes["raylet"][0].process.pid
        (worker,) = [pid for pid in tasks() if parent(pid) == raylet] or [0]
        if not worker:
            return False
        os.kill(worker, signal.SIGSTOP)
        self.cluster.remove_node(self.node, allow_graceful=False)
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
        return True

    def on_message(self, name: str, text: str) -> None:
        self.messages.append(f"{name}: {text}")

    def wants_stop(self) -> bool:
        return False

    def go(self, configs: list[RunConfig], out: Path, on: str) -> dict[str, Any]:
        options, ends = RunOptions(out, out, "cpu", checkpoint_every="10"), []
        for job in Grid([Job.of(one) for one in configs], options, threads=1, on=on).go(self):
            self.ended += 1
            ends.append(job.ended)
        return {"ends": ends, "messages": self.messages, "killed": self.killed, "removed": self.removed}


@contextmanager
def unseen(out: Path) -> Iterator[str]:
    """As if no node saw the driver's folder."""
    yield str(out / "no such file")


def interrupt(out: Path) -> dict[str, Any]:
    """Ctrl-C while `ser run --on ray` has a run going."""
    words = [sys.executable, "-m", "strongreplay", *WORDS, "--threads", "1", "--on", "ray", "-o", str(out)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while not glob(f"{out}/**/manifest.json", recursive=True) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    return {"code": process.returncode, "said": said, "left": tasks()}


def main(out: Path) -> None:
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_log_monitor": False}
    head = {"include_dashboard": False, "no_monitor": True, "ray_client_server_port": PORT}
    cluster: Any = Cluster(initialize_head=True, head_node_args=size | head)
    os.environ["RAY_ADDRESS"] = cluster.address
    second = cluster.add_node(**size)
    seen: dict[str, Any] = {"grid": Losses(cluster, second).go(twelve_configs(), out / "grid", "ray")}
    on_ray.marked = unseen
    outside = f"ray://127.0.0.1:{PORT}"
    seen["sent"] = Losses(cluster, kill_after=0).go([make_config("er", 0, 12)], out / "sent", outside)
    seen["stopped"] = interrupt(out / "stopped")
    (out / "seen.json").write_text(json.dumps(seen))
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
