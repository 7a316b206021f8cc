"""The app: routes, gate and the OpenAPI document, put together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException

from fairlead import __version__
from fairlead.core.errors import FairleadError
from fairlead.jobfile import schema
from fairlead.server.api import cluster, jobs, logs, models, pages, problems, submit, users
from fairlead.server.api.gate import OPEN, PUBLIC, Gate
from fairlead.server.api.limits import Buckets
from fairlead.server.api.settings import Settings
from fairlead.server.api.streams import Streams
from fairlead.server.metrics import Metrics
from fairlead.server.service import Service

_ABOUT = """Fairlead's control plane. Send `Authorization: Bearer TOKEN`; browsers that have logged in may read.

Times are UNIX seconds. Lists are paged by `cursor`. Every error is `application/problem+json`.
"""


def make_app(service: Service, settings: Settings | None = None, *, metrics: Metrics | None = None) -> FastAPI:
    """An ASGI app. Before its server is stopped, call `app.state.streams.close()`: streams do not end by themselves."""
    settings = settings or Settings()
    metrics = metrics or Metrics(service)
    streams = Streams(service, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await streams.start()
        yield
        streams.close()

    app = FastAPI(title="Fairlead", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service, app.state.settings = service, settings
    app.state.metrics, app.state.streams = metrics, streams
    app.state.elements = Buckets(settings.elements_per_s, settings.elements_burst)
    app.state.static = pages.load_static(settings.static)
    for kind in (FairleadError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, problems.told)
    for router in (submit.router, jobs.router, logs.router, logs.changes, cluster.router, users.router, pages.router):
        app.router.routes.extend(router.routes)  # as they are: to include a router costs every request a little
    app.add_middleware(Gate, auth=service.auth, settings=settings, metrics=metrics)
    document: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not document:
            document.update(_document(app, settings))
        return document

    app.openapi = openapi  # type: ignore[method-assign]
    return app


# -- the OpenAPI document ----------------------------------------------------------------------------------------------

_STATUS = {
    400: "This is not HTTP, or a body that is not JSON in UTF-8.",
    401: "No token, or one that is not known.",
    403: "Not allowed for this role, or by a session.",
    404: "There is no such thing, or it is somebody else's.",
    408: "The request did not come in time.",
    409: "It contradicts what is already there.",
    413: "The body is too large.",
    415: "The body is of another kind.",
    421: "The server does not answer by this name.",
    422: "Something in it is wrong; `errors` says what.",
    429: "Too often, or too many; `Retry-After` says when again.",
    431: "The headers are too large.",
    503: "The control plane cannot do it now.",
}


def _document(app: FastAPI, settings: Settings) -> dict[str, Any]:
    document = get_openapi(title="Fairlead", version=__version__, description=_ABOUT, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    job = schema()
    del job["$schema"]
    schemas["JobRequest"] = job
    for model in (models.Problem, models.Login):
        made = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(made.pop("$defs", {}))
        schemas[model.__name__] = made
    document["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "session": {"type": "apiKey", "in": "cookie", "name": settings.cookie},
    }
    for method, path, operation in _operations(document):
        known = (method.upper(), path)
        if known in PUBLIC | OPEN:
            operation["security"] = []
        else:
            operation["security"] = [{"token": []}] + ([{"session": []}] if method == "get" else [])
        _add_problems(operation, method, path)
    return document


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def _add_problems(operation: dict[str, Any], method: str, path: str) -> None:
    """Every problem that an operation can answer with."""
    statuses = {400, 408, 421, 431, 503}
    if (method.upper(), path) not in PUBLIC | OPEN:
        statuses |= {401, 403, 429}
    if path in ("/session", "/login"):
        statuses |= {401, 403, 429}
    if "{" in path or path == "/":
        statuses |= {404}
    if operation.get("parameters") or "requestBody" in operation:
        statuses |= {422}
    if method != "get":
        statuses |= {409, 413}
    if any(parameter["name"] == "cursor" for parameter in operation.get("parameters", ())):
        statuses |= {409}
    if "requestBody" in operation:
        statuses |= {415}
    responses = operation["responses"]
    responses.pop("422", None)
    for status in sorted(statuses):
        described = responses.setdefault(str(status), {"description": _STATUS[status]})
        content = described.setdefault("content", {})
        content[problems.MEDIA_TYPE] = {"schema": {"$ref": "#/components/schemas/Problem"}}
