"""The service under load: latency of single photos, throughput in batches, memory over many requests.

    python benchmarks/serve.py STATE PHOTO [--requests 2000] [--clients 16] [--soak 100000]

Starts `ser serve` on a free port of loopback and asks it over keep-alive connections from this process. Also
times a loop of single `predict` calls in Python for comparison. Prints one JSON object.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from strongreplay.data.images import decode_bytes
from strongreplay.models.load import load_model
from strongreplay.models.store import Store


async def ask(port: int, content: bytes, count: int, seconds: list[float]) -> None:
    """Send `count` requests over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: image/jpeg\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    ).encode()
    for _ in range(count):
        began = time.perf_counter()
        writer.write(head + content)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
        assert length is not None
        await reader.readexactly(int(length[1]))
        assert answer.startswith(b"HTTP/1.1 200"), answer
        seconds.append(time.perf_counter() - began)
    writer.close()


def load(port: int, content: bytes, requests: int, clients: int) -> dict[str, float]:
    """Latency in milliseconds and photos a second with so many clients at once."""
    seconds: list[float] = []

    async def all_clients() -> None:
        await asyncio.gather(*(ask(port, content, requests // clients, seconds) for _ in range(clients)))

    began = time.perf_counter()
    asyncio.run(all_clients())
    total = time.perf_counter() - began
    cuts = statistics.quantiles(seconds, n=100)
    return {
        "clients": clients,
        "requests": len(seconds),
        "p50_ms": round(1000 * cuts[49], 2),
        "p99_ms": round(1000 * cuts[98], 2),
        "photos_a_second": round(len(seconds) / total, 1),
    }


def resident_mib(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return round(int(found[1]) / 1024, 1) if found else 0.0


def loop_of_single_calls(state: Path, content: bytes, count: int) -> dict[str, float]:
    """Decode and predict one photo after another in one process, as a simple script would."""
    _, model = load_model(Store(state), None, torch.device("cpu"))
    seconds = []
    for _ in range(count + 5):
        began = time.perf_counter()
        model.scores(torch.from_numpy(decode_bytes(content, model.shape))[None])
        seconds.append(time.perf_counter() - began)
    timed = seconds[5:]
    return {
        "p50_ms": round(1000 * statistics.median(timed), 2),
        "photos_a_second": round(count / sum(timed), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("state", type=Path)
    parser.add_argument("photo", type=Path)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--soak", type=int, default=0, help="further requests, with memory before and after")
    parser.add_argument("--serve", nargs="*", default=[], help="further options of ser serve")
    given = parser.parse_args()
    content = given.photo.read_bytes()
    command = [sys.executable, "-m", "strongreplay", "serve", str(given.state), "--port", "0", *given.serve]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(re.findall(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())[0])
        load(port, content, 50, 1)  # warm-up
        result = {
            "single": load(port, content, min(given.requests, 500), 1),
            "many": load(port, content, given.requests, given.clients),
            "resident_mib": [resident_mib(process.pid)],
        }
        for _ in range(10 if given.soak else 0):
            load(port, content, given.soak // 10, given.clients)
            result["resident_mib"].append(resident_mib(process.pid))  # type: ignore[attr-defined]
        process.terminate()
    result["loop"] = loop_of_single_calls(given.state, content, min(given.requests, 300))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
