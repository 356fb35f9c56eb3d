"""ser serve: answer over HTTP with a kept model; new versions are served without a restart."""

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strongreplay.cli.commands import KEEP, Command
from strongreplay.cli.options import Device, StateFolder, Threads, choose_device
from strongreplay.cli.text import print_line, print_note
from strongreplay.errors import ConfigError, RunError
from strongreplay.progress import StopRequest
from strongreplay.serve.limits import TOKEN_VARIABLE, ServiceLimits, check_token

if TYPE_CHECKING:
    from strongreplay.serve.keep import ImageKeeper

DEFAULTS = ServiceLimits()
DRAIN_SECONDS = 30  # a stop waits this long for requests under way


def serve_command(
    state: StateFolder,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but loopback needs a token.")
    ] = DEFAULTS.host,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 chooses a free one.")] = 8000,
    token: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token that requests must carry.",
            show_default="$STRONGREPLAY_TOKEN, else none",
        ),
    ] = None,
    wait_ms: Annotated[float, typer.Option(min=0, help="How long a batch waits for more images.")] = 1000
    * DEFAULTS.wait_seconds,
    batch_size: Annotated[int, typer.Option(min=1, help="Images of one forward pass.")] = DEFAULTS.batch_size,
    queue: Annotated[
        int, typer.Option(min=1, help="Images that may wait; further requests get 503.")
    ] = DEFAULTS.queue_size,
    body_limit: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = DEFAULTS.body_limit,
    pixel_limit: Annotated[int, typer.Option(min=1, help="Pixels of an image.")] = DEFAULTS.pixel_limit,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds a request may take.")
    ] = DEFAULTS.timeout_seconds,
    keep_images: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Keep the newest images of requests there, for ser review and ser drift.",
            show_default="none is kept",
        ),
    ] = None,
    keep_count: Annotated[int, typer.Option(min=1, help="Images to keep.")] = 500,
    keep_bytes: Annotated[int, typer.Option(min=1, help="Bytes of kept images.")] = 100_000_000,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Answer over HTTP: POST /predict, GET /health, /ready, /version, /classes, /metrics, /docs.

    A version that ser learn or ser rollback puts in use is served within 2 seconds.
    SIGTERM and Ctrl-C answer what is under way, then stop.

    Example: ser serve kept --port 8000, then: curl --data-binary @photo.jpg localhost:8000/predict
    """  # fmt: skip
    try:
        import uvicorn

        from strongreplay.serve.app import make_app
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is missing; pip install 'strongreplay[serve]'") from None
    from strongreplay.models.store import Store
    from strongreplay.serve.live import LiveModel

    limits = ServiceLimits(
        host, read_token(token), wait_ms / 1000, batch_size, queue, body_limit, pixel_limit,
        timeout_seconds=timeout,
    )  # fmt: skip
    live = LiveModel(Store(state), choose_device(device, threads), print_note)
    keeper = open_keeper(keep_images, keep_count, keep_bytes, state) if keep_images else None
    listening = listen(host, port)
    name, found_port = listening.getsockname()[:2]
    address = f"http://{f'[{name}]' if ':' in name else name}:{found_port}"
    print_line(f"serving {live.loaded.version.name} of {state} at {address} (routes: {address}/docs)")
    if keeper:
        print_line(f"images of requests are kept in {keep_images}, at most {keep_count:,}")
    config = uvicorn.Config(
        make_app(live, limits, keeper),
        log_level="warning",
        timeout_graceful_shutdown=DRAIN_SECONDS,
        server_header=False,
        h11_max_incomplete_event_size=65536,
    )
    with StopRequest():  # uvicorn raises the signal again when it is done; here that only ends the block
        uvicorn.Server(config).run(sockets=[listening])
    print_line("stopped; every request under way was answered")


def open_keeper(folder: Path, count: int, num_bytes: int, state: Path) -> "ImageKeeper":
    from strongreplay.serve.keep import ImageKeeper

    if folder.resolve().is_relative_to(state.resolve()):
        raise ConfigError(f"--keep-images {folder}: lies in the model's folder; give another one")
    try:
        return ImageKeeper(folder, count, num_bytes, print_note)
    except OSError as error:
        reason = error.strerror or error
        raise RunError(f"--keep-images {folder}: not usable ({reason}); give another folder") from None


def read_token(path: Path | None) -> str | None:
    """The token in a file, else in the environment, else None."""
    if path is None:
        found = os.environ.get(TOKEN_VARIABLE)
        return None if found is None else check_token(found, TOKEN_VARIABLE)
    try:
        return check_token(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token {path}: not readable ({error}); give a file with a token") from None


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; the system's message if the address is taken or not ours."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address, family=family, backlog=2048)
    except OSError as error:
        raise RunError(
            f"{host}:{port}: cannot listen there ({error.strerror or error}); give another --port or --host"
        ) from None
    # Head and body of an answer are two packets; the second would wait 40 ms for the receipt of the first.
    # asyncio does this only for sockets that were made with the number of the protocol.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


COMMAND = Command("serve", serve_command, KEEP, 25)
