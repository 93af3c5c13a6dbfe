"""The ASGI application of ``daskxml serve``: rows in, names of labels out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import scipy.sparse
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from daskxml._version import __version__
from daskxml.cli.batches import Batches, BusyError, ServedModel
from daskxml.core.errors import ConfigError, InputError, ModelError
from daskxml.core.hardware import usable_cores
from daskxml.core.text import one_line
from daskxml.data.scan import count_json
from daskxml.models.rankings import Ids, Scores, is_empty, named
from daskxml.models.store import version_of
from daskxml.observe.html import TEMPLATES

logger = logging.getLogger("daskxml.cli.asgi")
_PATHS = frozenset({"/predict", "/model", "/health", "/ready", "/metrics"})
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_LAST = {"connection": "close"}  # the rest of the body is not read
_LONG_BYTES, _LONG_LABELS = 1 << 14, 1 << 12  # of a body, of an answer: made in another thread
_EXPLAINED_FEATURES = 1_000  # take as long as the explanation of a label with none
_PAGE_MAY = {"content-security-policy": "default-src 'self' 'unsafe-inline'"}  # load from here only


# ---------------------------------------------------------------------- requests and answers


def _given(description: str | None, **limits: Any) -> Any:
    """A list that a request may have; the first wrong item ends its reading."""
    return Field(None, fail_fast=True, description=description, **limits)


class Row(BaseModel):
    """The features of one row, by ids or by names, and their values."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: list[Annotated[int, Field(ge=0)]] | None = _given("Features by number, from 0 on.")
    names: list[str] | None = _given("Features by name, in place of `ids`; all must be known.")
    values: list[FiniteFloat] | None = _given(
        "A value for each; all 1 without. Repeated ids add up."
    )


class Query(BaseModel):
    """Rows or texts, and how many labels of each are wanted."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"rows": [{"ids": [3, 17], "values": [0.5, 2]}], "k": 2}]},
    )

    rows: list[Row] | None = _given(None, min_length=1)
    text: list[str] | None = _given("Documents, for a model of texts.", min_length=1)
    k: int = Field(5, ge=1, description="Labels of each row.")
    explain: int = Field(0, ge=0, le=100, description="Features to report for each label.")


class Labels(BaseModel):
    """The best labels of a row, best first."""

    labels: list[str | int] = Field(description="Names where the model has them, else ids.")
    ids: list[int] = Field(description="Numbers of the labels, from 0 on.")
    scores: list[float] = Field(description="Probabilities.")
    explanations: list[list[tuple[str | int, float]]] | None = Field(
        None, description="For each label: features, and what each adds to the label's score."
    )


class Answer(BaseModel):
    """The labels of each row, and which model found them."""

    predictions: list[Labels]
    model: str = Field(description="The first digits of the model's SHA-256.")


class Problem(BaseModel):
    """What is wrong with a request."""

    error: str


def matrix_of(query: Query, served: ServedModel) -> scipy.sparse.csr_matrix:
    """Return the rows of a query, ``(rows, features)`` float32.

    Raises
    ------
    InputError
        If a row has no features, unknown ones, or another number of values; or a
        text no word that the model knows.
    ConfigError
        If there are texts, but the model was not trained on such.
    """
    if (query.rows is None) == (query.text is None):
        raise InputError("give either rows or text")
    if query.text is not None:
        return _rows_of_texts(query.text, served)
    lengths, columns, values = [0], [], []
    for number, row in enumerate(query.rows or ()):
        try:
            ids = _columns(row, served)
            held = [1.0] * len(ids) if row.values is None else row.values
            if len(held) != len(ids):
                raise InputError(f"{len(ids):,} features have {len(held):,} values")
        except InputError as error:
            raise InputError(f"row {number}: {error.message}") from None
        columns += ids
        values += held
        lengths.append(len(columns))
    shape = len(lengths) - 1, served.model.spec.features
    indices = np.array(columns, np.int32), np.array(lengths, np.int32)
    with np.errstate(over="ignore"):
        matrix = scipy.sparse.csr_matrix((np.array(values, np.float32), *indices), shape)
        matrix.sum_duplicates()
    is_finite = np.isfinite(matrix.data)
    if not is_finite.all():  # refused here: other requests may be in the same batch
        first = int(np.searchsorted(matrix.indptr, np.argmin(is_finite), side="right")) - 1
        raise InputError(f"row {first}: a value is too large for float32")
    if (without := is_empty(matrix)).any():
        raise InputError(f"row {np.argmax(without)}: it has no features")
    return matrix


def _rows_of_texts(texts: list[str], served: ServedModel) -> scipy.sparse.csr_matrix:
    matrix = served.model.text_rows(texts)
    if (without := is_empty(matrix)).any():
        raise InputError(f"text {np.argmax(without)}: it has no word that the model knows")
    return matrix


def _columns(row: Row, served: ServedModel) -> list[int]:
    """Return the numbers of a row's features."""
    if (row.ids is None) == (row.names is None):
        raise InputError("give its features either as ids or as names")
    if row.ids is not None:
        features = served.model.spec.features
        if row.ids and max(row.ids) >= features:
            raise InputError(f"feature {max(row.ids)}: the model has 0 to {features - 1}")
        return row.ids
    if not served.feature_ids:
        raise InputError("the model has no names of features: give ids")
    try:
        return [served.feature_ids[name] for name in row.names or ()]
    except KeyError as error:
        raise InputError(f"the model has no feature of the name {error.args[0]!r}") from None


# --------------------------------------------------------------------------- the application

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (400, 408, 413, 422, 503)
}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Query"}}},
    }
}


@dataclass(frozen=True, kw_only=True)
class ServingSettings:
    """How a server answers.

    Attributes
    ----------
    threads
        Batches that are ranked at the same time, on one thread each.
    batch_rows
        Most rows that are ranked together.
    waiting_rows
        Most rows that wait; more are answered with 503.
    request_rows, request_nonzeros, request_bytes
        Most of one request; its answer has at most as many labels as the second says, and what is
        explained in it is as little work.
    request_s
        Within which a request's headers must be whole, then its body, and then its answer taken.
    watch_s
        How often the directory is looked at for another model; 0: never.
    """

    threads: int = field(default_factory=usable_cores)
    batch_rows: int = 256
    waiting_rows: int = 10_000
    request_rows: int = 1_000
    request_nonzeros: int = 1_000_000
    request_bytes: int = 16 * 2**20
    request_s: float = 30.0
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
    server = Server(Path(directory), settings)
    api = FastAPI(
        title="daskxml", version=__version__, lifespan=server.lifespan, docs_url=None,
        redoc_url=None,
        description="The best labels of sparse rows, by a model that daskxml has trained.",
    )  # fmt: skip
    api.state.server = server
    add = api.post("/predict", responses=_PROBLEMS, response_model=Answer, openapi_extra=_BODY)
    add(server.predict)
    api.get("/model")(server.describe)
    api.get("/health")(server.health)
    api.get("/ready")(server.ready)
    api.get("/metrics", response_class=Response)(server.metrics)
    api.get("/docs", include_in_schema=False)(_page)
    for kind, answer in _ERRORS.items():
        api.add_exception_handler(kind, answer)
    api.add_middleware(counted, count=server.count)
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

    def __init__(self, directory: Path, settings: ServingSettings) -> None:
        self.directory, self.settings = directory, settings
        self.served = ServedModel.load(directory)
        count_json(np.empty(0, np.uint8), np.zeros(3, np.int64))  # compiled before a request comes
        self.is_ready, self._loading = False, asyncio.Lock()
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

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Start what answers, and end it after the last request."""
        settings = self.settings
        self._batches = Batches(
            workers=settings.threads, most_rows=settings.batch_rows,
            most_waiting=settings.waiting_rows, on_batch=self._batch_rows.observe,
        )  # fmt: skip
        watching = asyncio.create_task(self._watch()) if settings.watch_s else None
        self.is_ready = True
        yield
        self.is_ready = False
        if watching is not None:
            watching.cancel()
        self._batches.close()

    async def predict(self, request: Request) -> Any:
        """Rank the labels of each row."""
        begun_s = time.perf_counter()
        body, served = await self._body(request), self.served
        query, matrix = await _aside(len(body) > _LONG_BYTES, self._parse, body, served)
        ids, scores = await self._batches.rank(served, matrix, query.k)
        is_long = query.explain > 0 or ids.size > _LONG_LABELS
        answer = await _aside(is_long, _answer, served, matrix, ids, scores, query.explain)
        self._seconds.observe(time.perf_counter() - begun_s)
        return answer

    def _parse(self, body: bytes, served: ServedModel) -> tuple[Query, scipy.sparse.csr_matrix]:
        """Return a request and its rows, whose answer is in bounds of size and work."""
        query, settings = Query.model_validate_json(body), self.settings
        count, most = len(query.rows or query.text or ()), settings.request_nonzeros
        if count > settings.request_rows:
            raise InputError(f"{count:,} rows: send at most {settings.request_rows:,}")
        matrix = matrix_of(query, served)
        if matrix.nnz > most:
            raise InputError(f"more than {most:,} features, or words: send fewer rows")
        k = min(query.k, served.model.spec.labels)
        if count * k > most:
            raise InputError(f"{count * k:,} labels: ask for at most {most:,}")
        if query.explain and k * (matrix.nnz + _EXPLAINED_FEATURES * count) > most:
            problem = f"{k:,} labels of {count:,} rows of {matrix.nnz:,} features to explain"
            raise InputError(f"{problem}: ask for fewer at a time")
        return query, matrix

    async def _body(self, request: Request) -> bytes:
        """Return a whole body, in bounds of size and time, before any of it is parsed."""
        body, settings, found = bytearray(), self.settings, np.zeros(3, np.int64)
        rows, nonzeros, size_bytes = settings.request_rows, settings.request_nonzeros, 0
        most_keys, most_items = 4 * (rows + 2), 2 * (nonzeros + 2 * rows + 2)
        try:
            async with asyncio.timeout(settings.request_s):
                async for part in request.stream():
                    size_bytes += len(part)
                    if size_bytes > settings.request_bytes:
                        problem = f"the body is larger than {settings.request_bytes:,} bytes"
                        raise HTTPException(413, problem, _LAST)
                    if found[1] <= most_keys and found[2] <= most_items:
                        body += part
                        count_json(np.frombuffer(part, np.uint8), found)
        except TimeoutError:
            problem = f"the body was not whole within {settings.request_s:g} s"
            raise HTTPException(408, problem, _LAST) from None
        except ClientDisconnect:  # nobody hears the answer
            raise HTTPException(400, "the client has gone") from None
        # Only now: a client that is still sending sees a broken connection and not the answer.
        if found[1] > most_keys or found[2] > most_items:
            problem = f"more than {rows:,} rows or {nonzeros:,} features: send fewer"
            raise HTTPException(413, problem)
        return bytes(body)

    async def describe(self) -> dict[str, Any]:
        """Say what the model is."""
        header = self.served.model.header
        return {
            "version": self.served.version,
            "features": header.spec.features,
            "labels": header.spec.labels,
            "has_feature_names": bool(header.feature_names),
            "has_label_names": bool(header.label_names),
            "takes_text": header.vectorizer is not None,
            "description": repr(self.served.model),
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

    async def reload(self) -> None:
        """Take the model that is in the directory, if it is another.

        Requests under way keep theirs. If it cannot be read, the log says why, and the current one
        stays.
        """
        async with self._loading:
            if await asyncio.to_thread(version_of, self.directory) == self.served.version:
                return
            try:
                self.served = await asyncio.to_thread(ServedModel.load, self.directory)
            except ModelError as error:
                logger.error("the model stays: %s", error.message)
                return
            logger.info("model %s answers now", self.served.version)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.settings.watch_s)
            await self.reload()

    def count(self, path: str, status: int) -> None:
        """Count a request by its path and status."""
        self._requests.labels(path if path in _PATHS else "other", str(status)).inc()


def counted(app: ASGIApp, count: Callable[[str, int], object]) -> ASGIApp:
    """Return an ASGI application in front of another: it reports the status of every response."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(scope["path"], message["status"])
            await send(message)

        await app(scope, receive, noted)

    return answer


async def _aside(is_long: bool, call: Callable[..., Any], *given: Any) -> Any:
    """Call, in another thread what takes long: other requests are answered meanwhile."""
    return await asyncio.to_thread(call, *given) if is_long else call(*given)


def _answer(
    served: ServedModel, matrix: Any, ids: Ids, scores: Scores, explained: int
) -> JSONResponse:
    """Return the labels of each row, without those that are missing."""
    names, found = served.model.header.label_names, []
    for number, (row, values) in enumerate(zip(ids.tolist(), scores.tolist(), strict=True)):
        labels = named(row, names)
        count = len(labels)
        answer = {"labels": labels, "ids": row[:count], "scores": values[:count]}
        if explained:
            of_row = (_explained(served, matrix[number], label, explained) for label in row[:count])
            answer["explanations"] = list(of_row)
        found.append(answer)
    return JSONResponse({"predictions": found, "model": served.version})


def _explained(served: ServedModel, row: Any, label: int, count: int) -> list[Any]:
    """Return the features that speak most for a label, and what each adds to its score."""
    ids, added = served.model.explain(row, label)
    best = (-added).argsort(kind="stable")[:count]
    names = named(ids[best].tolist(), served.model.header.feature_names)
    return list(zip(names, added[best].tolist(), strict=True))


async def _page() -> Response:
    """Return a page to try requests, which loads nothing from elsewhere."""
    return HTMLResponse((TEMPLATES / "serve.html").read_text(), headers=_PAGE_MAY)


async def _problem(request: Request, error: Any) -> Response:
    """Answer for what the model, or the server, cannot do."""
    return JSONResponse({"error": error.message}, 503 if isinstance(error, BusyError) else 422)


async def _invalid(request: Request, error: Any) -> Response:
    """Answer for what is no JSON, or does not fit the schema, by its first fault."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return JSONResponse({"error": f"not JSON: {first['ctx']['error']}"}, 400)
    place = ".".join(map(str, first["loc"])) or "the body"
    return JSONResponse({"error": one_line(f"{place}: {first['msg']}")}, 422)


async def _http(request: Request, error: Any) -> Response:
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


async def _unexpected(request: Request, error: Any) -> Response:
    """Answer after an error of daskxml itself, whose traceback is in the log."""
    return JSONResponse({"error": "internal error; the server's log has more"}, 500)


_ERRORS: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
    **dict.fromkeys((InputError, ConfigError, BusyError), _problem),
    ValidationError: _invalid,
    HTTPException: _http,
    Exception: _unexpected,
}
