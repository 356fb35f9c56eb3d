"""The page for the person in charge, and the JSON routes it uses."""

from collections.abc import Callable
from dataclasses import asdict
from importlib.resources import files
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from strongreplay.errors import ConfigError, SerError
from strongreplay.models.erasure import forget
from strongreplay.models.inspect import read_history, read_status, read_timeline
from strongreplay.models.store import CANDIDATE
from strongreplay.models.switch_version import accept_candidate, roll_back
from strongreplay.serve.bodies import BadRequest, decode_images, read_body
from strongreplay.serve.limits import TOKEN_VARIABLE, ServiceLimits
from strongreplay.serve.live import LiveModel
from strongreplay.serve.remembered import SampleCache
from strongreplay.serve.traffic import Traffic
from strongreplay.storage.lock import BusyError

T = TypeVar("T")
BY = {"by": "service"}  # in the lines of the history
SCRIPT = "text/javascript"
KINDS = {"page.css": "text/css", "page.js": SCRIPT, "corrections.js": SCRIPT, "icon.svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob:; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "No such version or sample, or an image that cannot be read."},
    401: {"description": "The token is missing or wrong."},
    403: {"description": "The service has no token, or the request comes from another site."},
    409: {"description": "Another process is at work on the model, or the act does not fit its state."},
}


class RollbackRequest(BaseModel):
    version: Annotated[str, Field(max_length=20)]


class ForgetRequest(BaseModel):
    ids: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1, max_length=1000)]


class ModelPage:
    """Routes of the page: the state of the model, and actions on it: accept, roll back, erase."""

    def __init__(self, live: LiveModel, limits: ServiceLimits, cache: SampleCache, traffic: Traffic) -> None:
        self.live, self.limits, self.cache, self.traffic = live, limits, cache, traffic

    async def status(self) -> dict[str, Any]:
        """The model in use: classes with marks and accuracy over versions, memory, versions, candidate."""
        return await ask(self.read_status)

    def read_status(self) -> dict[str, Any]:
        store = self.live.store
        found = read_status(store)
        plain = found.to_dict()
        plain["timeline"] = [
            line.to_dict() for line in read_timeline(store.versions(), found.version, found.classes)
        ]
        if found.candidate:
            about = store.read(CANDIDATE, parts=())[0].about
            plain["candidate"] |= {key: about[key] for key in ("max_drop", "new_labels", "changes", "notes")}
        return plain | {
            "served": self.live.loaded.version.name,
            "may_act": self.limits.token is not None,
            "pictures": self.cache.read().has_pictures,
        }

    async def history(self) -> list[dict[str, Any]]:
        """Every act, the newest first."""
        return await ask(lambda: [entry.to_dict() for entry in reversed(read_history(self.live.store))])

    async def memory(
        self,
        label: Annotated[str | None, Query(max_length=1000)] = None,
        start: Annotated[int, Query(ge=0, lt=2**31)] = 0,
        count: Annotated[int, Query(ge=1, le=200)] = 48,
    ) -> dict[str, Any]:
        """Remembered samples, each once; pictures are at /api/memory/ID.png."""
        found = await ask(self.cache.read)
        rows = [found.samples[row] for row in found.row_of.values()]
        rows = [one for one in rows if label is None or str(one.label) == label]
        part = [one.to_dict() for one in rows[start : start + count]]
        return {"version": found.version, "total": len(rows), "samples": part}

    async def picture(self, number: int) -> Response:
        """A remembered sample as PNG."""
        content = await ask(lambda: self.cache.read().png(number))
        return Response(content, media_type="image/png", headers=HEADERS)

    async def confusions(self) -> dict[str, Any]:
        """Held-out samples with wrong answers, by pair of classes."""
        found = await ask(self.cache.read)
        return {"version": found.version, "pairs": await ask(lambda: found.confusions)}

    async def drift(self) -> dict[str, Any]:
        """Signs of trouble in the newest requests: unlike samples, shares of predicted classes."""
        return await ask(self.traffic.report)

    async def nearest(
        self, request: Request, count: Annotated[int, Query(ge=1, le=50)] = 6
    ) -> dict[str, Any]:
        """The remembered samples whose features are nearest to those of one image."""
        body = await read_body(request, self.limits)
        shape, limit = self.live.loaded.model.shape, self.limits.pixel_limit
        images = await run_in_threadpool(decode_images, body.uploads[:1], shape, limit)
        found = await ask(self.cache.read)
        return {"version": found.version, "samples": await ask(lambda: found.nearest(images, count))}

    async def accept(self) -> dict[str, str]:
        """Put the refused update in use."""
        self.expect_token()
        version = await ask(lambda: accept_candidate(self.live.store, by=BY).name)
        await run_in_threadpool(self.live.refresh)
        return {"version": version}

    async def rollback(self, request: RollbackRequest) -> dict[str, str | None]:
        """Put another version in use."""
        self.expect_token()
        before = await ask(lambda: roll_back(self.live.store, request.version, by=BY))
        await run_in_threadpool(self.live.refresh)
        return {"version": request.version, "before": before}

    async def forget(self, request: ForgetRequest) -> dict[str, Any]:
        """Erase samples, and all with equal pixels, from every version; this cannot be undone."""
        self.expect_token()
        return asdict(await ask(lambda: forget(self.live.store, ids=request.ids, by=BY)))

    def expect_token(self) -> None:
        if self.limits.token is None:
            raise BadRequest(
                "acts need a token: start the service with --token FILE, or set " + TOKEN_VARIABLE, 403
            )


async def ask(work: Callable[[], T]) -> T:
    """Run in a thread; an error of the package becomes a refusal with its text."""
    try:
        return await run_in_threadpool(work)
    except BusyError as error:
        raise BadRequest(f"{error}; nothing was changed", 409) from None
    except SerError as error:
        raise BadRequest(str(error), 400 if isinstance(error, ConfigError) else 409) from None


def add_model_page(app: FastAPI, people: ModelPage) -> None:
    """Add the page and its routes to the service."""
    reads: dict[str, Callable[..., Any]] = {
        "/api/status": people.status,
        "/api/history": people.history,
        "/api/memory": people.memory,
        "/api/confusions": people.confusions,
        "/api/drift": people.drift,
    }
    for path, route in reads.items():
        app.get(path, responses=REFUSALS)(route)
    png: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {}}}}
    app.get("/api/memory/{number}.png", response_class=Response, responses=REFUSALS | png)(people.picture)
    acts: dict[str, Callable[..., Any]] = {
        "/api/nearest": people.nearest,
        "/api/accept": people.accept,
        "/api/rollback": people.rollback,
        "/api/forget": people.forget,
    }
    for path, route in acts.items():
        app.post(path, responses=REFUSALS)(route)
    app.get("/", include_in_schema=False)(page)
    app.get("/static/{name}", include_in_schema=False)(static_file)


def page() -> Response:
    return Response(read_page_file("index.html"), media_type="text/html; charset=utf-8", headers=HEADERS)


def static_file(name: str) -> Response:
    if name not in KINDS:
        return JSONResponse({"error": "no such file"}, 404)
    return Response(read_page_file(name), media_type=f"{KINDS[name]}; charset=utf-8", headers=HEADERS)


def read_page_file(name: str) -> bytes:
    return (files("strongreplay.serve") / "page" / name).read_bytes()
