"""Routes for handing jobs in. The first is asked two hundred times a second, and must not be slow.

So it reads its parameters by itself: what FastAPI does to find out what a function wants costs as much as all the rest.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from fairlead.core.errors import InvalidSpec
from fairlead.jobfile import InvalidJob, JobRequest, expand, parse_job, request_from
from fairlead.server.api import models
from fairlead.server.api.asked import Asker, TheService
from fairlead.server.api.problems import Json, problem
from fairlead.server.api.soon import NotSoon, soon
from fairlead.server.asking import TooMany
from fairlead.server.auth import Caller
from fairlead.server.outlook import answer_resource, forecast_resource
from fairlead.server.resources import document_of
from fairlead.server.service import Service
from fairlead.server.submitting import NOT_YET, Prepared

P = ParamSpec("P")
T = TypeVar("T")

router = APIRouter(prefix="/api/v1", tags=["jobs"])

#: A body that is a job file. What is in it says `/api/v1/schema/job`.
_JOB: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/JobRequest"}},
            "application/yaml": {"schema": {"$ref": "#/components/schemas/JobRequest"}},
        },
    }
}

_KEY = r"[!-~]{1,255}"
_PARAMETERS: list[dict[str, Any]] = [
    {
        "name": "strict",
        "in": "query",
        "required": False,
        "schema": {"type": "boolean", "default": False},
        "description": "Refuse a job that cannot meet its deadline or budget as it is.",
    },
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "schema": {"type": "string", "pattern": f"^{_KEY}$"},
        "description": "Any word of your own: a submission that is sent again with it is the same submission.",
    },
]

#: Bytes of a body that is read without delay.
SMALL = 8192

_SWITCH = {**dict.fromkeys(("true", "1", "yes", "on"), True), **dict.fromkeys(("false", "0", "no", "off"), False)}

#: Verdicts about a job that cannot meet its deadline or budget unless something about it is changed.
_NOT_AS_IT_IS = ("infeasible", "feasible with other GPUs")

_YAML = frozenset(("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"))


@router.post(
    "/jobs",
    status_code=201,
    response_model=models.Submission,
    responses={200: {"model": models.Submission, "description": "It was handed in before, with the same key."}},
    openapi_extra={**_JOB, "parameters": _PARAMETERS},
)
async def submit_job(request: Request) -> Response:
    """Hand in a job, or an array of them. It is on disk when this answers."""
    caller: Caller = request.state.caller
    service: Service = request.app.state.service
    body, kind = await request.body(), _media_type(request)
    key, strict = _key(request), _strict(request)
    quick = kind == "json" and len(body) <= SMALL
    job = await _do(quick, read_request, body, kind)
    quick = quick and not job.depends_on and not job.array
    submitted, answer = None if key is None else service.repeated(caller, job, key), None
    if submitted is None:
        try:
            prepared = await _do(quick, service.prepare, caller, job)
            answer = await _answer(service, prepared) if prepared.asks_for_an_answer else None
            if strict and answer is not None and answer["verdict"] in _NOT_AS_IT_IS:
                raise _Infeasible(answer)
            submitted = await asyncio.wrap_future(await _do(quick, service.submit, prepared, key=key))
        except (InvalidJob, TooMany, _Infeasible) as refusal:
            # What is refused now may have been taken in before: the same key is the same submission.
            submitted = None if key is None else await run_in_threadpool(service.repeated_long_ago, caller, job, key)
            if submitted is None and isinstance(refusal, _Infeasible):
                detail = f"nothing was submitted: {refusal.answer['why']}"
                return problem(422, detail, path=request.url.path, answer=refusal.answer)
            if submitted is None:
                raise
            answer = None
    done = await _do(quick and submitted.fresh, service.submission, submitted)
    return Json({**done, "answer": answer}, status_code=201 if submitted.fresh else 200)


class _Infeasible(Exception):
    """Somebody wants it only if it meets its deadline and budget."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(answer["why"])
        self.answer = answer


async def _do(quick: bool, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What is large or has to look something up is done by a thread. The rest costs less than to ask one."""
    return function(*args, **kwargs) if quick else await run_in_threadpool(function, *args, **kwargs)


@router.post("/check", response_model=models.Check, openapi_extra=_JOB)
async def check_job(request: Request, caller: Asker, service: TheService) -> Response:
    """What would become of a job. Nothing is submitted."""
    body, kind = await request.body(), _media_type(request)
    prepared = await run_in_threadpool(lambda: service.prepare(caller, read_request(body, kind)))
    answer = await _answer(service, prepared) if prepared.asks_for_an_answer else None
    outlook, mine, why = service.outlook, None, ""
    try:
        told = await soon(partial(outlook.forecast_with, service.published, prepared.spec), outlook.answer_s)
        mine = told.jobs.get(NOT_YET)
    except NotSoon as error:
        why = str(error)
    return Json(
        {
            "jobs": len(expand(prepared.request)),
            "document": document_of(prepared.request),
            "answer": answer,
            "forecast": None if mine is None else forecast_resource(mine),
            "why": why,
        }
    )


async def _answer(service: Service, prepared: Prepared) -> dict[str, Any]:
    outlook = service.outlook
    try:
        return answer_resource(await soon(partial(outlook.answer, service.published, prepared.spec), outlook.answer_s))
    except NotSoon as error:
        return {"verdict": "unknown", "why": str(error), "gpus": None, "forecast": None}


# -- reading -----------------------------------------------------------------------------------------------------------


def _media_type(request: Request) -> str:
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind in _YAML:
        return "yaml"
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return "json"
    raise HTTPException(415, "a job is sent as application/json or application/yaml")


def _key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not re.fullmatch(_KEY, key):
        raise InvalidSpec("Idempotency-Key is not a word of 1 to 255 printable characters without blanks")
    return key


def _strict(request: Request) -> bool:
    given = request.query_params.get("strict", "false").lower()
    if given not in _SWITCH:
        raise InvalidSpec("strict is neither true nor false")
    return _SWITCH[given]


def read_request(body: bytes, kind: str) -> JobRequest:
    """Raises InvalidJob, which never shows the value of a secret."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidJob.at("", f"byte {error.start + 1} is not UTF-8; save the file as UTF-8") from None
    if kind == "yaml":
        return parse_job(text, source="the job")
    try:
        data = json.loads(text)
    except RecursionError:
        raise InvalidJob.at("", "values are nested too deeply; a job needs three levels") from None
    except json.JSONDecodeError as error:
        raise InvalidJob.at("", f"this is not JSON: {error.msg}", line=error.lineno, column=error.colno) from None
    except ValueError:
        raise InvalidJob.at("", "a number has too many digits") from None
    return request_from(data)
