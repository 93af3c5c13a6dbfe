"""The ASGI application: rows in, names of labels out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Histogram, Info, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from daskxml._version import __version__
from daskxml.cli.serving.batches import Batches, BusyError
from daskxml.cli.serving.limits import App, BodyLimit, Message, Receive, Send
from daskxml.cli.serving.models import Models, ServedModel
from daskxml.cli.serving.requests import Answer, Problem, Query, matrix_of
from daskxml.core.errors import ConfigError, InputError, ModelError
from daskxml.models.rankings import Ids, Scores, named

logger = logging.getLogger("daskxml.cli.serving")
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (400, 408, 413, 422, 503)
}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Query"}}},
    }
}
_PATHS = frozenset({"/predict", "/model", "/health", "/ready", "/metrics", "/reload"})
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, kw_only=True)
class ServingSettings:
    """How a server answers.

    Attributes
    ----------
    threads
        Batches that are ranked at the same time, on one thread each.
    batch_rows
        Most rows that are ranked together.
    batch_wait_s
        How long a request waits for others although a thread is idle.
    waiting_rows
        Most rows that wait; more are answered with 503.
    request_rows, request_nonzeros, request_bytes
        Most of one request.
    request_s
        Within which the body of a request must be whole.
    allows_reload
        Whether ``POST /reload`` takes the model that is in the directory now.
    watch_s
        How often the directory is looked at for another model; 0: never.
    """

    threads: int = 1
    batch_rows: int = 256
    batch_wait_s: float = 0.0
    waiting_rows: int = 10_000
    request_rows: int = 1_000
    request_nonzeros: int = 1_000_000
    request_bytes: int = 16 * 2**20
    request_s: float = 30.0
    allows_reload: bool = False
    watch_s: float = 0.0


def create_app(directory: str | Path, settings: ServingSettings | None = None) -> FastAPI:
    """Load a model, and return the application that answers for it.

    Parameters
    ----------
    directory
        Of a model or a run.
    settings
        None: the defaults.

    Raises
    ------
    ModelError
        If there is no model, or it is damaged.
    """
    settings = settings or ServingSettings()
    server = Server(Models(Path(directory), 1), settings)
    api = FastAPI(
        title="daskxml", version=__version__, lifespan=server.lifespan,
        description="The best labels of sparse rows, by a model that daskxml has trained.",
    )  # fmt: skip
    api.state.server = server
    add = api.post("/predict", responses=_PROBLEMS, response_model=Answer, openapi_extra=_BODY)
    add(server.predict)
    api.get("/model")(server.describe)
    api.get("/health")(server.health)
    api.get("/ready")(server.ready)
    api.get("/metrics", response_class=Response)(server.metrics)
    if settings.allows_reload:
        api.post("/reload")(server.reload)
    for kind, answer in _ERRORS.items():
        api.add_exception_handler(kind, answer)
    api.add_middleware(BodyLimit, most_bytes=settings.request_bytes, within_s=settings.request_s)
    api.add_middleware(Counted, count=server.count)
    plain = api.openapi

    def described() -> dict[str, Any]:
        """Return the schema with that of a request, which is parsed here and not by FastAPI."""
        schema = Query.model_json_schema(ref_template="#/components/schemas/{model}")
        known = plain()
        known["components"]["schemas"] |= {**schema.pop("$defs"), "Query": schema}
        return known

    api.openapi = described  # type: ignore[method-assign]
    return api


class Server:
    """What the paths of the application do."""

    def __init__(self, models: Models, settings: ServingSettings) -> None:
        self.models, self.settings = models, settings
        self.is_ready = False
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "daskxml_requests", "Requests by path and status.", ["path", "status"],
            registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "daskxml_predict_seconds", "From a whole request to its answer.", buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip
        self._batch_rows = Histogram(
            "daskxml_batch_rows", "Rows that were ranked together.", buckets=_ROWS,
            registry=registry,
        )  # fmt: skip
        self._reloads = Counter(
            "daskxml_reloads", "Models taken since the start.", registry=registry
        )
        self._info = Info("daskxml_model", "The model that answers.", registry=registry)
        self._info.info({"version": models.current.version, "daskxml": __version__})

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Start what answers, and end it after the last request."""
        settings = self.settings
        self._batches = Batches(
            workers=settings.threads, most_rows=settings.batch_rows,
            most_waiting=settings.waiting_rows, wait_s=settings.batch_wait_s,
            on_batch=self._batch_rows.observe,
        )  # fmt: skip
        watching = asyncio.create_task(self._watch()) if settings.watch_s else None
        self.is_ready = True
        yield
        self.is_ready = False
        if watching is not None:
            watching.cancel()
        self._batches.close()

    async def predict(self, request: Request) -> Response:
        """Rank the labels of each row."""
        begun_s = time.perf_counter()
        query = Query.model_validate_json(await request.body())
        served, settings = self.models.current, self.settings
        count = len(query.rows or query.text or ())
        if count > settings.request_rows:
            raise InputError(f"{count:,} rows: send at most {settings.request_rows:,}")
        if query.text:  # cut into words beside the requests that wait
            limit = settings.request_nonzeros
            matrix = await asyncio.to_thread(matrix_of, query, served, limit)
        else:
            matrix = matrix_of(query, served, settings.request_nonzeros)
        ids, scores = await self._batches.rank(served, matrix, query.k)
        rows = _rows(served, ids, scores)
        if query.explain:
            await asyncio.to_thread(_explain, served, matrix, rows, query.explain)
        self._seconds.observe(time.perf_counter() - begun_s)
        return JSONResponse({"predictions": rows, "model": served.version})

    async def describe(self) -> dict[str, Any]:
        """Say what the model is."""
        header = self.models.current.model.header
        return {
            "version": self.models.current.version,
            "features": header.spec.features,
            "labels": header.spec.labels,
            "has_feature_names": bool(header.feature_names),
            "has_label_names": bool(header.label_names),
            "takes_text": header.vectorizer is not None,
            "description": repr(self.models.current.model),
        }

    async def health(self) -> dict[str, str]:
        """Say that the process is alive."""
        return {"status": "alive"}

    async def ready(self) -> Response:
        """Say whether requests are answered: not while the server ends."""
        return JSONResponse({"ready": self.is_ready}, 200 if self.is_ready else 503)

    async def metrics(self) -> Response:
        """Counters and times for Prometheus."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def reload(self) -> dict[str, Any]:
        """Take the model that is in the directory now; requests under way keep theirs."""
        changed = await asyncio.to_thread(self.models.reload)
        if changed:
            version = self.models.current.version
            self._reloads.inc()
            self._info.info({"version": version, "daskxml": __version__})
            logger.info("model %s answers now", version)
        return {"changed": changed, "version": self.models.current.version}

    async def reload_or_tell(self) -> None:
        """Reload; a model that cannot be read is a line of the log, and the current one stays."""
        try:
            await self.reload()
        except ModelError as error:
            logger.error("the model stays: %s", error.message)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.settings.watch_s)
            if not await asyncio.to_thread(self.models.is_current):
                await self.reload_or_tell()

    def count(self, path: str, status: int) -> None:
        """Count a request by its path and status."""
        self._requests.labels(path if path in _PATHS else "other", str(status)).inc()


class Counted:
    """An ASGI application in front of another: it reports the status of every response."""

    def __init__(self, app: App, count: Callable[[str, int], object]) -> None:
        self._app, self._count = app, count

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(scope["path"], message["status"])
            await send(message)

        await self._app(scope, receive, told)


def _rows(served: ServedModel, ids: Ids, scores: Scores) -> list[dict[str, Any]]:
    """Return the labels of each row as an answer has them, without those that are missing."""
    names, found = served.model.header.label_names, []
    for row, values in zip(ids.tolist(), scores.tolist(), strict=True):
        labels = named(row, names)
        count = len(labels)
        found.append({"labels": labels, "ids": row[:count], "scores": values[:count]})
    return found


def _explain(served: ServedModel, matrix: Any, rows: list[dict[str, Any]], count: int) -> None:
    """Add the features that speak most for each label."""
    names = served.model.header.feature_names
    for number, row in enumerate(rows):
        row["explanations"] = []
        for label in row["ids"]:
            ids, added = served.model.explain(matrix[number], label)
            best = (-added).argsort(kind="stable")[:count]
            pairs = zip(named(ids[best].tolist(), names), added[best].tolist(), strict=True)
            row["explanations"].append(list(pairs))


def _problem(status: int) -> Callable[[Request, Any], Awaitable[Response]]:
    async def answer(request: Request, error: Any) -> Response:
        return JSONResponse({"error": error.message}, status)

    return answer


async def _invalid(request: Request, error: Any) -> Response:
    """Answer for what is no JSON, or does not fit the schema, by its first fault."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return JSONResponse({"error": f"not JSON: {first['ctx']['error']}"}, 400)
    place = ".".join(map(str, first["loc"])) or "the body"
    return JSONResponse({"error": f"{place}: {first['msg']}"}, 422)


async def _http(request: Request, error: Any) -> Response:
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


async def _unexpected(request: Request, error: Any) -> Response:
    """Answer after an error of daskxml itself, whose traceback is in the log."""
    return JSONResponse({"error": "internal error; the server's log has more"}, 500)


_ERRORS: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
    InputError: _problem(422),
    ConfigError: _problem(422),
    ModelError: _problem(503),
    BusyError: _problem(503),
    ValidationError: _invalid,
    HTTPException: _http,
    Exception: _unexpected,
}
