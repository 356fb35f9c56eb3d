"""Downloads from a real server on this machine: mirrors, checksums, and nothing half-written."""

import hashlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from strongreplay.data import datasets
from strongreplay.data.archives import Archive
from strongreplay.data.fetch import download
from strongreplay.errors import DataError

CONTENT = bytes(range(256)) * 4096
CHECKSUM = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Handler(BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/gone":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        body = {"/wrong": bytes(len(CONTENT)), "/short": CONTENT[:1000]}.get(self.path, CONTENT)
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    Handler.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()
        thread.join()


def archive(*mirrors: str) -> Archive:
    return Archive("set/file.gz", CHECKSUM, mirrors)


def left_behind(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path != folder / "set"]


@pytest.mark.parametrize("first", ["gone", "wrong", "short"])
def test_the_next_mirror_helps(
    tmp_path: Path,
    server: str,
    first: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    reports: list[tuple[str, int, int]] = []
    with caplog.at_level(logging.INFO, logger="pooch"):
        path = download(
            archive(f"{server}/{first}", f"{server}/right"), tmp_path, lambda *report: reports.append(report)
        )
    assert path.read_bytes() == CONTENT
    assert left_behind(tmp_path) == ["file.gz"]
    assert Handler.asked == [f"/{first}", "/right"]
    assert reports[-1] == ("file.gz", len(CONTENT), len(CONTENT))
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_all_mirrors_fail(tmp_path: Path, server: str) -> None:
    mirrors = [f"{server}/{name}" for name in ("gone", "wrong", "short")] + ["http://127.0.0.1:9/closed"]
    with pytest.raises(DataError) as caught:
        download(archive(*mirrors), tmp_path)
    text = str(caught.value)
    assert text.startswith(
        f"set/file.gz could not be downloaded ({server}/gone: HTTP 404; {server}/wrong: has sha256 "
    )
    assert f"{server}/short: ChunkedEncodingError; http://127.0.0.1:9/closed: ConnectionError); " in text
    assert text.endswith(f"place the file by hand at {tmp_path / 'set/file.gz'} (checksum {CHECKSUM})")
    assert left_behind(tmp_path) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path, server: str) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        assert 0 < done < total
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(archive(f"{server}/right"), tmp_path, interrupt)
    assert left_behind(tmp_path) == []


def test_a_failed_download_keeps_what_was_there(tmp_path: Path, server: str) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/file.gz").write_bytes(b"old")
    with pytest.raises(DataError, match="HTTP 404"):
        download(archive(f"{server}/gone"), tmp_path)
    assert (tmp_path / "set/file.gz").read_bytes() == b"old"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "set").write_bytes(b"a file in the way")
    with pytest.raises(
        DataError, match=r"set cannot be written: .*; make it writable or choose another folder"
    ):
        download(archive("http://127.0.0.1:9"), tmp_path)


def test_fetch_downloads_only_what_is_not_right(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        datasets.DATASETS,
        "cifar10",
        replace(datasets.DATASETS["cifar10"], archives=(archive(f"{server}/right"),)),
    )
    target = tmp_path / "set/file.gz"
    assert datasets.fetch("cifar10", tmp_path) == [target]
    assert datasets.fetch("cifar10", tmp_path) == []
    target.write_bytes(b"damaged")
    assert datasets.fetch("cifar10", tmp_path) == [target]
    assert Handler.asked == ["/right", "/right"]
    assert datasets.fetch("digits", tmp_path) == []
    target.unlink()
    target.mkdir()
    with pytest.raises(
        DataError, match=r"file.gz is a folder, expected a file; delete it and run: ser data get"
    ):
        datasets.fetch("cifar10", tmp_path)


def test_fetch_leaves_unpacked_data_alone(tmp_path: Path) -> None:
    for archive in datasets.DATASETS["cifar10"].archives:
        for member in archive.members:
            (tmp_path / member.path).parent.mkdir(exist_ok=True)
            with (tmp_path / member.path).open("wb") as file:
                file.truncate(member.size)
    (tmp_path / "tiny-imagenet-200").mkdir()
    assert datasets.fetch("cifar10", tmp_path) == []
    assert datasets.fetch("tinyimagenet", tmp_path) == []
