"""Every error has one form: application/problem+json (RFC 9457). What a client sent is not repeated to it."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from fairlead.core.errors import BackendError, FairleadError, InvalidSpec
from fairlead.jobfile import InvalidJob
from fairlead.server.asking import Ended, Forbidden, NotFound, TooMany, Unavailable
from fairlead.server.database import is_disk_full
from fairlead.server.store import Conflict

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"

#: How many mistakes one answer lists.
_MOST_ERRORS = 100


class Json(Response):
    """JSON in ASCII: whatever a text holds, it can be written."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


class ProblemResponse(Json):
    """An error, in the one form that all of them have."""

    media_type = MEDIA_TYPE


#: The end of the `type` of a problem, by status, where nothing says it better.
_KINDS = {
    400: "bad-request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    408: "timeout",
    409: "conflict",
    413: "too-large",
    415: "unsupported-media-type",
    421: "misdirected",
    422: "invalid",
    429: "too-many",
    431: "headers-too-large",
    500: "internal",
    503: "unavailable",
}


def problem(
    status: int,
    detail: str,
    *,
    path: str = "",
    errors: Sequence[Mapping[str, Any]] = (),
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> ProblemResponse:
    """`more` are members that this kind of problem adds."""
    body = {**problem_document(status, detail, path=path), **more}
    if errors:
        body["errors"] = list(errors[:_MOST_ERRORS])
    return ProblemResponse(body, status_code=status, headers=dict(headers or {}))


def problem_document(status: int, detail: str, *, path: str = "") -> dict[str, Any]:
    """The members that every problem has."""
    return {
        "type": f"urn:fairlead:{_KINDS.get(status, 'error')}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": path,
    }


#: Whose fault, and what that is in HTTP; the first that fits.
_STATUS: tuple[tuple[type[FairleadError], int], ...] = (
    (NotFound, 404),
    (Forbidden, 403),
    (Ended, 409),
    (Conflict, 409),
    (TooMany, 429),
    (InvalidSpec, 422),
    (Unavailable, 503),
    (BackendError, 503),
)


def status_of(error: FairleadError) -> int:
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


async def told(request: Request, error: Exception) -> Response:
    """Any error that a route lets out."""
    path = request.url.path
    if isinstance(error, InvalidJob):
        errors = [{"field": p.field, "text": p.text, "line": p.line, "column": p.column} for p in error.problems]
        return problem(422, str(error), path=path, errors=errors)
    if isinstance(error, RequestValidationError):
        return _invalid(path, error)
    if isinstance(error, HTTPException):
        headers = _allowed(request, error) if error.status_code == 405 else error.headers
        return problem(error.status_code, _sentence(error), path=path, headers=headers)
    assert isinstance(error, FairleadError)
    retry = {}
    if isinstance(error, TooMany) and error.again_after_s is not None:
        retry["Retry-After"] = str(math.ceil(error.again_after_s))
    status = status_of(error)
    if status == 500:
        raise error
    if isinstance(error, BackendError):  # it says where the database is, which is nobody's business
        log.error("%s %s cannot be answered: %s", request.method, path, error)
        why = "its disk is full" if is_disk_full(error) else "the server's log says why"
        return problem(status, f"the database cannot be used now ({why}); try again in a while", path=path)
    return problem(status, str(error), path=path, headers=retry)


def _invalid(path: str, error: RequestValidationError) -> Response:
    """What is wrong, and where. Not what was there: it may have been a secret in the wrong place."""
    errors = []
    for found in error.errors():
        where = [str(part) for part in found["loc"] if part not in ("body", "query", "path", "header")]
        errors.append({"field": ".".join(where)[:200], "text": str(found["msg"]), "line": None, "column": None})
    first = errors[0] if errors else {"field": "", "text": "the request cannot be read"}
    return problem(422, f"{first['field']}: {first['text']}".removeprefix(": "), path=path, errors=errors)


#: What FastAPI says of a body that is not UTF-8, or nested too deeply.
_UNREADABLE = "There was an error parsing the body"


def _sentence(error: HTTPException) -> str:
    if error.detail not in (HTTPStatus(error.status_code).phrase, _UNREADABLE):
        return str(error.detail)
    return {
        400: "the body cannot be read; expected JSON in UTF-8",
        404: "there is nothing here; the routes are listed in /openapi.json",
        405: "this method is not allowed here; the header Allow says which are",
    }.get(error.status_code, str(error.detail))


def _allowed(request: Request, error: HTTPException) -> dict[str, str]:
    """Every method of the path. A router knows only of the first route that has it."""
    methods = set[str]()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    return {"Allow": ", ".join(sorted(methods))} if methods else dict(error.headers or {})
