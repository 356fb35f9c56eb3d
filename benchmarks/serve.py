"""The service under load: latency, throughput beside a loop of single `predict` calls, memory.

    python benchmarks/serve.py FOLDER --data DATA [--rounds 3] [--soak 100000]

The first call writes CIFAR-100 images as JPEG photos of 224 pixels to FOLDER/photos and learns the small net
from them (FOLDER/model). Then `ser serve` is started on a free port of loopback and asked by this process
over keep-alive connections, each request with other photos. Both compute with one thread unless `--serve`
says more.
Every figure is the median of the rounds, with the smallest and the largest. Prints one JSON object.
"""

import argparse
import itertools
import json
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image

from strongreplay.data.datasets import load
from strongreplay.learner import Learner

SER = [sys.executable, "-m", "strongreplay"]
CLASSES, EACH, SIDE = 10, 60, 224
LEARN = ("--net", "cnn", "--memory", "300", "--epochs", "5")
BOUNDARY = "photos-of-a-request"
CLIENTS = (1, 4, 16)
SEVERAL = 6  # clients that send several photos a request
SOAK_STEP = 10_000  # requests between two readings of the memory
LOOP = "a loop of Learner.predict"
Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-100")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=2000, help="of a round, for each number of clients")
    parser.add_argument("--photos", type=int, default=32, help="photos of a request with several")
    parser.add_argument("--soak", type=int, default=0, help="further requests; memory is read every 10,000")
    parser.add_argument("--serve", default="--threads 1", help="further options of ser serve")
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = prepare(given.folder, given.data)
    paths = sorted((given.folder / "photos").rglob("*.jpg"))
    photos = [path.read_bytes() for path in paths]
    one = [request_of("image/jpeg", photo) for photo in photos]
    several = [
        request_of(f"multipart/form-data; boundary={BOUNDARY}", form_of(photos[start : start + given.photos]))
        for start in range(0, len(photos) - given.photos + 1, given.photos)
    ]
    learner = Learner.load(model)
    found: dict[str, list[Figures]] = {}
    resident: list[float] = []
    with Service(model, given.serve.split()) as service:
        service.ask(one, 200, 4)  # warm-up
        resident.append(service.resident_mib())
        for _ in range(given.rounds):
            row = time_loop(lambda path: learner.predict([path]), paths, min(given.requests, 1000))
            add(found, LOOP, row)
            for clients in CLIENTS:
                add(found, f"1 photo a request, {clients} clients", service.ask(one, given.requests, clients))
            row = service.ask(several, max(8, 2 * given.requests // given.photos), SEVERAL, given.photos)
            add(found, f"{given.photos} photos a request, {SEVERAL} clients", row)
        resident.append(service.resident_mib())
        for done in range(0, given.soak, SOAK_STEP):
            service.ask(one, min(SOAK_STEP, given.soak - done), max(CLIENTS))
            resident.append(service.resident_mib())
            print(f"{done + SOAK_STEP:,} requests: {resident[-1]} MiB", file=sys.stderr)
    if given.rounds:
        command = time_loop(lambda path: subprocess.check_output([*SER, "predict", model, path]), paths, 3)
        add(found, "a loop of ser predict", command)
    about = {"cores": len(os.sched_getaffinity(0)), "photo_bytes": round(statistics.mean(map(len, photos)))}
    print(json.dumps(about | {"resident_mib": resident} | summaries(found), indent=1))


def add(found: dict[str, list[Figures]], name: str, row: Figures) -> None:
    found.setdefault(name, []).append(row)
    print(name, {key: round(value, 3) for key, value in row.items()}, file=sys.stderr)


def summaries(found: dict[str, list[Figures]]) -> dict[str, dict[str, str]]:
    """The median of each figure with its range, and how many times the loop's throughput each kind has."""
    loop = found.get(LOOP, [])
    for rows in found.values():
        for row, first in zip(rows, loop, strict=False):
            row["times_the_loop"] = row["photos_a_second"] / first["photos_a_second"]
    return {
        name: {
            key: f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"
            for key in rows[0]
            if (values := [row[key] for row in rows])
        }
        for name, rows in found.items()
    }


def prepare(folder: Path, data: Path) -> Path:
    """Photos and a model that learnt them, once."""
    if not (folder / "model" / "current").exists():
        train, _ = load("cifar100", data)
        for number in range(CLASSES):
            place = folder / "photos" / f"class-{number}"
            place.mkdir(parents=True, exist_ok=True)
            for row in (train.labels == number).nonzero().flatten()[:EACH].tolist():
                image = Image.fromarray(train.inputs[row].permute(1, 2, 0).numpy())
                image.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(place / f"{row}.jpg", quality=90)
        words = ["learn", str(folder / "model"), "--data", str(folder / "photos"), *LEARN]
        subprocess.run([*SER, *words], check=True, stdout=sys.stderr)
    return folder / "model"


class Service:
    """`ser serve` in a process of its own, for the length of a block."""

    def __init__(self, model: Path, options: Sequence[str]) -> None:
        command = [*SER, "serve", str(model), "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> "Service":
        assert self.process.stdout is not None
        self.port = int(re.findall(r"http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())[0])
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.communicate()

    def resident_mib(self) -> float:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())
        return round(int(found[1]) / 1024, 1) if found else 0.0

    def processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, requests: Sequence[bytes], count: int, clients: int, photos: int = 1) -> Figures:
        """Latency, throughput and processor time of `count` requests by so many clients at once."""
        before, own = self.processor_seconds(), time.process_time()
        began = time.perf_counter()
        seconds = ask_all(self.port, itertools.islice(itertools.cycle(requests), count), clients)
        total = time.perf_counter() - began
        cuts = statistics.quantiles(seconds, n=100)
        return {
            "p50_ms": 1000 * cuts[49],
            "p95_ms": 1000 * cuts[94],
            "p99_ms": 1000 * cuts[98],
            "photos_a_second": photos * count / total,
            "service_cpu_ms_a_photo": 1000 * (self.processor_seconds() - before) / (photos * count),
            "client_cpu_ms_a_photo": 1000 * (time.process_time() - own) / (photos * count),
        }


def request_of(kind: str, body: bytes) -> bytes:
    lines = ["POST /predict HTTP/1.1", "Host: 127.0.0.1", f"Content-Type: {kind}"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def form_of(photos: Sequence[bytes]) -> bytes:
    parts = []
    for number, photo in enumerate(photos):
        head = f'Content-Disposition: form-data; name="images"; filename="{number}.jpg"'
        parts.append(f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + photo + b"\r\n")
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def ask_all(port: int, requests: Iterator[bytes], clients: int) -> list[float]:
    """Seconds of each request; a client sends its next one when it has the answer. One thread, no library."""
    seconds: list[float] = []
    with selectors.DefaultSelector() as waiting:
        for _ in range(clients):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if (began := send_next(connection, requests)) is not None:
                waiting.register(connection, selectors.EVENT_READ, began)
        while waiting.get_map():
            for key, _ in waiting.select():
                assert isinstance(key.fileobj, socket.socket)
                read_answer(key.fileobj)
                seconds.append(time.perf_counter() - key.data)
                if (began := send_next(key.fileobj, requests)) is None:
                    waiting.unregister(key.fileobj)
                    key.fileobj.close()
                else:
                    waiting.modify(key.fileobj, selectors.EVENT_READ, began)
    return seconds


def send_next(connection: socket.socket, requests: Iterator[bytes]) -> float | None:
    """Send the next request, if there is one; returns when that began."""
    request = next(requests, None)
    if request is None:
        return None
    began = time.perf_counter()
    connection.sendall(request)
    return began


def read_answer(connection: socket.socket) -> None:
    """Read one whole answer; fails unless it is a 200."""
    answer = b""
    while not (length := re.search(rb"content-length: (\d+)[\s\S]*?\r\n\r\n", answer, re.IGNORECASE)):
        answer += (piece := connection.recv(65536))
        assert piece, answer
    assert answer.startswith(b"HTTP/1.1 200"), answer
    rest = length.end() + int(length[1]) - len(answer)
    while rest:
        rest -= len(piece := connection.recv(rest))
        assert piece


def time_loop(call: Callable[[Path], object], paths: Sequence[Path], count: int) -> Figures:
    """One photo after another, as a simple script would."""
    call(paths[0])
    seconds = list[float]()
    for path in itertools.islice(itertools.cycle(paths), count):
        began = time.perf_counter()
        call(path)
        seconds.append(time.perf_counter() - began)
    return {"p50_ms": 1000 * statistics.median(seconds), "photos_a_second": count / sum(seconds)}


if __name__ == "__main__":
    main()
