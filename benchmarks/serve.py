"""The service under load: latency, throughput beside a loop of single `predict` calls, memory.

    python benchmarks/serve.py FOLDER --data DATA [--requests 2000] [--clients 16] [--soak 100000]

The first call writes CIFAR-100 images as JPEG photos of 224 pixels to FOLDER/photos and learns the small net
from them (FOLDER/model). Then `ser serve` is started on a free port of loopback and asked over
keep-alive connections, each request with other photos. Prints one JSON object.
"""

import argparse
import asyncio
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from strongreplay.data.datasets import load
from strongreplay.learner import Learner

SER = [sys.executable, "-m", "strongreplay"]
CLASSES, EACH, SIDE = 10, 60, 224
LEARN = ("--net", "cnn", "--side", "32", "--memory", "300", "--epochs", "5")
BOUNDARY = "photos-of-a-request"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-100")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--photos", type=int, default=32, help="photos of a request with several")
    parser.add_argument("--soak", type=int, default=0, help="further requests; memory is read ten times")
    parser.add_argument("--serve", default="", help="further options of ser serve, such as '--threads 1'")
    given = parser.parse_args()
    model = prepare(given.folder, given.data)
    paths = sorted((given.folder / "photos").rglob("*.jpg"))
    photos = [path.read_bytes() for path in paths]
    one = [request_of("image/jpeg", photo) for photo in photos]
    several = [
        request_of(f"multipart/form-data; boundary={BOUNDARY}", form_of(photos[start : start + given.photos]))
        for start in range(0, len(photos) - given.photos + 1, given.photos)
    ]
    result: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)),
        "photo_bytes": round(statistics.mean(map(len, photos))),
    }
    with Service(model, given.serve.split()) as service:
        ask_all(service.port, one, 100, 1)  # warm-up
        result["resident_mib"] = [service.resident_mib()]
        result["one_client"] = ask_all(service.port, one, min(given.requests, 1000), 1)
        result["many_clients"] = ask_all(service.port, one, given.requests, given.clients)
        count = max(4, given.requests // given.photos)
        result["several_photos"] = ask_all(service.port, several, count, 4, given.photos)
        result["resident_mib"].append(service.resident_mib())
        for _ in range(10 if given.soak else 0):
            ask_all(service.port, one, given.soak // 10, given.clients)
            result["resident_mib"].append(service.resident_mib())
            print(f"memory: {result['resident_mib'][-1]} MiB", file=sys.stderr)
    learner = Learner.load(model)
    calls = {
        "python_loop": (lambda path: learner.predict([path]), min(given.requests, 500)),
        "command_loop": (lambda path: subprocess.check_output([*SER, "predict", model, path]), 5),
    }
    for name, (call, count) in calls.items():
        result[name] = time_loop(call, paths, count)
        for kind in ("many_clients", "several_photos"):
            ratio = result[kind]["photos_a_second"] / result[name]["photos_a_second"]
            result[name][f"{kind}_is_times"] = round(ratio, 2)
    print(json.dumps(result, indent=1))


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


def request_of(kind: str, body: bytes) -> bytes:
    lines = [
        "POST /predict HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def form_of(photos: Sequence[bytes]) -> bytes:
    parts = []
    for number, photo in enumerate(photos):
        head = (
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="{number}.jpg"\r\n\r\n'
        )
        parts.append(head.encode() + photo + b"\r\n")
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


async def ask(port: int, requests: Iterator[bytes], seconds: list[float]) -> None:
    """Send requests over one connection, each after the answer to the one before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for request in requests:
        began = time.perf_counter()
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
        assert length is not None
        await reader.readexactly(int(length[1]))
        assert answer.startswith(b"HTTP/1.1 200"), answer
        seconds.append(time.perf_counter() - began)
    writer.close()
    await writer.wait_closed()


def ask_all(
    port: int, requests: Sequence[bytes], count: int, clients: int, photos: int = 1
) -> dict[str, float]:
    """Latency in milliseconds and photos a second of `count` requests by so many clients at once."""
    seconds: list[float] = []
    waiting = itertools.islice(itertools.cycle(requests), count)  # shared: a quick client sends more

    async def all_clients() -> None:
        await asyncio.gather(*(ask(port, waiting, seconds) for _ in range(clients)))

    began = time.perf_counter()
    asyncio.run(all_clients())
    total = time.perf_counter() - began
    cuts = statistics.quantiles(seconds, n=100)
    return {
        "clients": clients,
        "requests": len(seconds),
        "photos_of_a_request": photos,
        "p50_ms": round(1000 * cuts[49], 2),
        "p99_ms": round(1000 * cuts[98], 2),
        "photos_a_second": round(photos * len(seconds) / total, 1),
    }


def time_loop(call: Callable[[Path], object], paths: Sequence[Path], count: int) -> dict[str, float]:
    """One photo after another, as a simple script would."""
    call(paths[0])
    seconds = []
    for path in itertools.islice(itertools.cycle(paths), count):
        began = time.perf_counter()
        call(path)
        seconds.append(time.perf_counter() - began)
    return {
        "calls": count,
        "p50_ms": round(1000 * statistics.median(seconds), 2),
        "photos_a_second": round(count / sum(seconds), 1),
    }


if __name__ == "__main__":
    main()
