"""Guards around every request: size of the body, time, token, other sites, and a count for the metrics."""

import asyncio
import contextlib
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strongreplay.serve.bodies import BadRequest
from strongreplay.serve.limits import ServiceLimits, is_loopback
from strongreplay.serve.metrics import ServiceMetrics

OPEN_PATHS = ("/", "/health", "/ready", "/docs")  # no token: a browser and a load balancer have none
DISCARD_SECONDS = 2.0
SAFE_VERBS = ("GET", "HEAD", "OPTIONS")


class Guards:
    """ASGI middleware; a request that is refused never reaches a route."""

    def __init__(self, app: ASGIApp, limits: ServiceLimits, metrics: ServiceMetrics) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, has_begun = time.perf_counter(), 500, False

        async def note(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
            await send(message)

        try:
            async with asyncio.timeout(self.limits.timeout_seconds):
                self.check(Headers(scope=scope), scope["method"], scope["path"])
                await self.app(scope, self.counted(scope, receive), note)
        except BadRequest as error:
            if not has_begun:
                await discard(receive)
                await refusal(error)(scope, receive, note)
        except TimeoutError:
            if not has_begun:
                limit = f"more than {self.limits.timeout_seconds:g} s"
                await refusal(BadRequest(f"the request took {limit}; try again later", 503))(
                    scope, receive, note
                )
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.on_request(route, status, time.perf_counter() - began)

    def check(self, headers: Headers, verb: str, path: str) -> None:
        """Refuse a request without the token, from another site, or with a body that is too large."""
        if self.limits.token is None and not is_loopback(host_name(headers.get("host", ""))):
            # A page of another site may point its own name at 127.0.0.1.
            raise BadRequest("the Host header must be 127.0.0.1 or localhost; other names need a token", 403)
        if verb not in SAFE_VERBS and is_foreign(headers):
            raise BadRequest("requests of other sites' pages are refused", 403)
        is_open = path in OPEN_PATHS or path.startswith("/static/")
        if not is_open and not self.limits.allows(headers.get("authorization", "")):
            raise BadRequest("give the token: Authorization: Bearer TOKEN", 401)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:18]) > self.limits.body_limit:
            raise self.too_large()

    def counted(self, scope: Scope, receive: Receive) -> Receive:
        """The messages of a request, until its body has too many bytes."""
        count = 0

        async def receive_counted() -> Message:
            nonlocal count
            message = await receive()
            count += len(message.get("body", b""))
            if count > self.limits.body_limit:
                await discard(receive)
                raise self.too_large()
            return message

        return receive_counted

    def too_large(self) -> BadRequest:
        return BadRequest(f"the body has more than {self.limits.body_limit:,} bytes", 413)


async def discard(receive: Receive) -> None:
    """Read what is left of a body, for a while: a client that is still sending would not see the answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while (await receive()).get("more_body"):
                pass


def refusal(error: BadRequest) -> JSONResponse:
    headers = {"Retry-After": "1"} if error.status == 503 else {}
    headers |= {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    headers |= {"Connection": "close"} if error.status == 413 else {}  # the rest of the body is not read
    return JSONResponse({"error": str(error)}, error.status, headers)


def host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_foreign(headers: Headers) -> bool:
    """Whether a page of another site sent the request; programs send neither header."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host", "")
