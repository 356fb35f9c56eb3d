"""A real `ser serve` in another process, on a free port of loopback."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx


class RunningService:
    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process, self.address = process, address
        self.client = httpx.Client(base_url=address, timeout=30, trust_env=False)

    def wait_for(self, version: str) -> float:
        """Seconds until this version is served; a test fails after 30."""
        began = time.monotonic()
        while self.client.get("/ready").json()["version"] != version:
            assert time.monotonic() < began + 30
            time.sleep(0.05)
        return time.monotonic() - began

    def stop(self) -> str:
        """SIGTERM; returns what it printed since the start."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=60)
        return out


@contextmanager
def running_service(state: Path, *words: str, token: str | None = None) -> Iterator[RunningService]:
    environment = os.environ | {"COLUMNS": "200"}
    environment.pop("STRONGREPLAY_TOKEN", None)
    if token:
        environment["STRONGREPLAY_TOKEN"] = token
    process = subprocess.Popen(
        [sys.executable, "-m", "strongreplay", "serve", str(state), "--port", "0", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " at http://127.0.0.1:" in line, line + process.stdout.read()
        service = RunningService(process, line.split(" at ")[1].split()[0])
        with service.client:
            yield service
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
