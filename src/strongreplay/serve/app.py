"""make_app: the service as a FastAPI application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from strongreplay import __version__
from strongreplay.data.user_data import Label
from strongreplay.errors import printable
from strongreplay.serve.batching import Answer, Batcher, QueueFull
from strongreplay.serve.bodies import FORMS, BadRequest, decode_images, read_body, read_top
from strongreplay.serve.docs_page import render_docs
from strongreplay.serve.guards import Guards, refusal
from strongreplay.serve.keep import ImageKeeper
from strongreplay.serve.limits import ServiceLimits
from strongreplay.serve.live import LiveModel
from strongreplay.serve.metrics import ServiceMetrics
from strongreplay.serve.model_page import ModelPage, add_model_page
from strongreplay.serve.remembered import SampleCache
from strongreplay.serve.traffic import Traffic

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The request or an image cannot be read."},
    401: {"description": "The token is missing or wrong."},
    403: {"description": "The request comes from another site."},
    413: {"description": "The body, an image or the number of images is too large."},
    415: {"description": "The content type is not known."},
    503: {"description": "Too many images are waiting, or it took too long; see Retry-After."},
}
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Guess(BaseModel):
    label: Label
    probability: float


class ImageAnswer(Guess):
    name: str
    top: list[Guess]


class Predictions(BaseModel):
    version: str
    answers: list[ImageAnswer]


class VersionInfo(BaseModel):
    version: str
    written: str
    package: str
    served_since: float
    reloads: int


class Readiness(BaseModel):
    ready: bool
    version: str
    waiting: int
    needs_token: bool  # for the routes other than the page, /health, /ready and /docs
    problem: str | None = None


class Service:
    """What the routes answer from: the live model, the batcher and the metrics."""

    def __init__(self, live: LiveModel, limits: ServiceLimits, keeper: ImageKeeper | None) -> None:
        self.live, self.limits, self.metrics, self.keeper = live, limits, ServiceMetrics(), keeper
        self.cache = SampleCache(live)
        self.traffic = Traffic(self.cache)
        self.batcher = Batcher(
            live,
            limits.wait_seconds,
            limits.batch_size,
            limits.queue_size,
            self.metrics.on_batch,
            self.traffic.note,
        )

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        self.live.start()
        self.batcher.start()
        if self.keeper:
            self.keeper.start()
        yield
        await run_in_threadpool(self.batcher.stop)  # what is waiting is answered first
        await run_in_threadpool(self.live.stop)
        if self.keeper:
            await run_in_threadpool(self.keeper.stop)

    async def predict(self, request: Request) -> JSONResponse:
        """Classify one or several images."""
        self.batcher.check_room(1)
        asked = read_top(given) if (given := request.query_params.get("top")) is not None else None
        body = await read_body(request, self.limits)
        shape, pixel_limit = self.live.loaded.model.shape, self.limits.pixel_limit
        decode = partial(decode_images, body.uploads, shape, pixel_limit)
        answer = await asyncio.wrap_future(self.batcher.submit(len(body.uploads), decode))
        if self.keeper:
            self.keeper.offer(upload.content for upload in body.uploads)
        found = describe(answer, [upload.name for upload in body.uploads], asked or body.top or 1)
        for one in found["answers"]:
            self.metrics.answers.labels(answer.version, str(one["label"])).inc()
        return JSONResponse(found)

    async def health(self) -> dict[str, bool]:
        """The process is alive."""
        return {"alive": True}

    async def ready(self, response: Response) -> Readiness:
        """A model is loaded and the queue has room. `problem` says why a newer version is not served."""
        waiting = self.batcher.num_waiting
        is_ready = waiting < self.limits.queue_size
        response.status_code = 200 if is_ready else 503
        version = self.live.loaded.version.name
        return Readiness(
            ready=is_ready,
            version=version,
            waiting=waiting,
            needs_token=self.limits.token is not None,
            problem=self.live.problem,
        )

    async def version(self) -> VersionInfo:
        """The version in use and since when it is served."""
        found = self.live.loaded.version
        return VersionInfo(
            version=found.name,
            written=found.written,
            package=__version__,
            served_since=round(self.live.since, 3),
            reloads=self.live.num_reloads,
        )

    async def classes(self) -> list[Label]:
        """The labels, in the order of the model's outputs."""
        return list(self.live.loaded.model.labels)

    async def metrics_text(self) -> Response:
        """Counts and times for Prometheus."""
        version, waiting = self.live.loaded.version.name, self.batcher.num_waiting
        self.metrics.on_traffic(*await run_in_threadpool(self.traffic.share))
        return Response(self.metrics.text(version, waiting, self.live.num_reloads), media_type=TEXT)


def make_app(live: LiveModel, limits: ServiceLimits, keeper: ImageKeeper | None = None) -> FastAPI:
    """The routes over a model; the application starts and stops the watcher, the batcher and the keeper."""
    service = Service(live, limits, keeper)
    app = FastAPI(
        title="strongreplay", version=__version__, lifespan=service.lifespan, docs_url=None, redoc_url=None
    )
    app.add_middleware(Guards, limits=limits, metrics=service.metrics)
    app.add_exception_handler(BadRequest, refuse)
    app.add_exception_handler(QueueFull, refuse_full)
    app.add_exception_handler(RequestValidationError, refuse_values)
    answers: dict[int | str, dict[str, Any]] = {200: {"model": Predictions}}
    app.post("/predict", responses=ERRORS | answers, openapi_extra=FORMS)(service.predict)
    app.get("/health")(service.health)
    app.get("/ready", responses={503: {"description": "The queue is full."}})(service.ready)
    app.get("/version")(service.version)
    app.get("/classes")(service.classes)
    app.get("/metrics", response_class=Response, responses={200: {"content": {TEXT: {}}}})(
        service.metrics_text
    )

    async def docs() -> HTMLResponse:
        return HTMLResponse(render_docs(app.openapi()))

    app.get("/docs", include_in_schema=False)(docs)
    add_model_page(app, ModelPage(live, limits, service.cache, service.traffic))
    return app


async def refuse(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, BadRequest)
    return refusal(error)


async def refuse_full(request: Request, error: Exception) -> JSONResponse:
    return refusal(BadRequest(f"{error}; try again", 503))


async def refuse_values(request: Request, error: Exception) -> JSONResponse:
    """Which value is wrong, without the value: it may be text that no answer can carry."""
    assert isinstance(error, RequestValidationError)
    faults = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5]]
    return refusal(BadRequest(printable("; ".join(faults))[:1000], 422))


def describe(answer: Answer, names: list[str], top: int) -> dict[str, Any]:
    """What `Predictions` describes, as plain values: nothing is gained by checking our own answer."""
    values, columns = answer.probabilities.topk(min(top, len(answer.labels)), dim=1)
    answers = []
    for name, row_values, row_columns in zip(names, values.tolist(), columns.tolist(), strict=True):
        guesses = [
            {"label": answer.labels[column], "probability": value}
            for column, value in zip(row_columns, row_values, strict=True)
        ]
        answers.append(guesses[0] | {"name": name, "top": guesses})
    return {"version": answer.version, "answers": answers}
