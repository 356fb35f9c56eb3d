"""Guards around a request: its time is limited, and a client that stops sending does not hold a place."""

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from strongreplay.serve.guards import Guards
from strongreplay.serve.limits import ServiceLimits
from strongreplay.serve.metrics import ServiceMetrics


@pytest.mark.parametrize("waits_for", ["the client", "the model"])
def test_a_request_that_takes_too_long_gets_503_with_retry_after(waits_for: str) -> None:
    sent: list[Message] = []

    async def never() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        await (receive() if waits_for == "the client" else asyncio.Event().wait())

    async def note(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/predict", "headers": [(b"host", b"127.0.0.1")]}
    guards = Guards(route, ServiceLimits(timeout_seconds=0.05), ServiceMetrics())
    asyncio.run(guards(scope, never, note))
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"1") in sent[0]["headers"]
    assert b"took more than 0.05 s" in sent[1]["body"]
