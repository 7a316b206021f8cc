"""Routes of jobs that are there: list, look at, and change them."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response

from fairlead.server import listing
from fairlead.server.api import models
from fairlead.server.api.asked import ArrayNumber, Asker, Elements, JobId, TheService
from fairlead.server.api.limits import Buckets
from fairlead.server.api.problems import Json
from fairlead.server.api.soon import NotSoon, soon
from fairlead.server.asking import TooMany
from fairlead.server.auth import Caller, Sight
from fairlead.server.outlook import forecast_resource
from fairlead.server.resources import State
from fairlead.server.service import Service

router = APIRouter(prefix="/api/v1", tags=["jobs"])


class Wish(StrEnum):
    """What can be done about a job. `suspend` and `resume` are `hold` and `release` of one that runs."""

    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    SUSPEND = "suspend"
    RESUME = "resume"


class WishConvertor(Convertor[str]):
    """Only what can be done about a job is a path of its own: `/jobs/1/logs` is there to be read, and not to be asked
    for by POST (405)."""

    regex = "|".join(Wish)

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("wish", WishConvertor())


# -- looking -----------------------------------------------------------------------------------------------------------

_Text = Annotated[str | None, Query(max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]
_Labels = Annotated[
    list[Annotated[str, Query(max_length=400, pattern=r"^[^\x00-\x1f\x7f=]+=[^\x00-\x1f\x7f]*$")]],
    Query(description="key=value; of several, all."),
]
Limit = Annotated[int, Query(ge=1, le=1000)]


def _cursor(*kinds: str) -> Any:
    """The pattern is for the document: the list says in words what is wrong."""
    pattern = f"^(?:{'|'.join(listing.CURSORS[kind] for kind in kinds)})$"
    told = "`next` of the page before. It goes with the same other parameters: with others it may be refused (409)."
    return Query(max_length=64, description=told, json_schema_extra={"pattern": pattern})


#: A list of jobs that have not ended goes on in another way than one that shows ended ones, too.
Cursor = Annotated[str | None, _cursor("live", "all")]
StoredCursor = Annotated[str | None, _cursor("all")]


@router.get("/jobs", response_model=models.JobPage)
async def list_jobs(
    caller: Asker,
    service: TheService,
    state: Annotated[list[State], Query(description="Of several, any.")] = [],  # noqa: B006  # FastAPI copies it
    user: _Text = None,
    queue: _Text = None,
    label: _Labels = [],  # noqa: B006
    name: Annotated[_Text, Query(description="Part of the name.")] = None,
    all: Annotated[bool, Query(description="Ended jobs as well.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Jobs, newest first; those that have not ended, unless asked otherwise."""
    query = listing.Query(
        states=frozenset(state),
        user=user,
        queue=queue,
        labels=tuple((key, value) for key, _, value in (each.partition("=") for each in label)),
        name=name or "",
        ended=all,
        limit=limit,
        cursor=cursor,
    )
    return Json(await run_in_threadpool(service.jobs, caller, query))


@router.get("/history", response_model=models.JobPage, tags=["history"])
async def list_history(
    caller: Asker,
    service: TheService,
    user: _Text = None,
    queue: _Text = None,
    limit: Limit = 100,
    cursor: StoredCursor = None,
) -> Response:
    """Jobs that have ended, newest first."""
    query = listing.Query(user=user, queue=queue, ended=True, live=False, limit=limit, cursor=cursor)
    return Json(await run_in_threadpool(service.jobs, caller, query))


@router.get("/jobs/{job_id}", response_model=models.Job)
async def get_job(job_id: JobId, caller: Asker, service: TheService) -> Response:
    """One job; its owner and admins also see what was submitted."""
    return Json(await run_in_threadpool(service.job, caller, job_id))


@router.get("/jobs/{job_id}/events", response_model=models.Story)
async def get_events(
    job_id: JobId,
    caller: Asker,
    service: TheService,
    after: Annotated[
        str, Query(pattern=r"^[0-9]{1,15}(\.[0-9]{1,15})?$", description="`next` of the page before.")
    ] = "0",
    limit: Limit = 100,
    reports: Annotated[bool, Query(description="Also every report of progress.")] = False,
) -> Response:
    """What happened to a job, in order, one sentence each."""
    return Json(await run_in_threadpool(service.events, caller, job_id, after=after, limit=limit, reports=reports))


@router.get("/jobs/{job_id}/explain", response_model=models.Explanation)
async def explain_job(job_id: JobId, caller: Asker, service: TheService) -> Response:
    """Why it is where it is, and what can be done about it."""
    return Json(await run_in_threadpool(service.explain, caller, job_id))


@router.get("/jobs/{job_id}/eta", response_model=models.Eta)
async def get_eta(job_id: JobId, caller: Asker, service: TheService) -> Response:
    """When it starts and ends, by rolling the cluster forward under the live policy."""
    job, published = await run_in_threadpool(service.find, caller, job_id, least=Sight.FATE)
    unknown = {"id": job.id, "starts_at": None, "ends_at": None, "starts_p90": None, "ends_p90": None}
    if job.phase.final:
        known = {**unknown, "starts_at": job.first_started_at, "ends_at": job.since}
        return Json({**known, "why": "it has ended"})

    outlook = service.outlook
    try:
        told = await soon(partial(outlook.forecast, published), outlook.forecast_s + 1.0, shared=True)
    except NotSoon as error:
        return Json({**unknown, "why": str(error)})
    if (mine := told.jobs.get(job.id)) is None:
        return Json({**unknown, "why": "it came after the forecast was made; ask again in a few seconds"})
    return Json({"id": job.id, **forecast_resource(mine), "at": told.at, "truncated": told.truncated})


@router.get("/arrays/{number}", response_model=models.Array)
async def get_array(number: ArrayNumber, caller: Asker, service: TheService) -> Response:
    """The jobs that an array has made."""
    return Json(await run_in_threadpool(service.array, caller, number))


# -- changing ----------------------------------------------------------------------------------------------------------


@router.patch("/jobs/{job_id}", status_code=202, response_model=models.Job)
async def change_job(job_id: JobId, change: models.Priority, caller: Asker, service: TheService) -> Response:
    """Give a job another priority. The answer is the job before the loop has heard of it."""
    resource = await run_in_threadpool(service.wish, caller, job_id, "priority", priority=change.priority)
    return Json(resource, status_code=202)


@router.post("/jobs/{job_id}/{wish:wish}", status_code=202, response_model=models.Job)
async def wish_for_job(
    job_id: JobId,
    wish: Wish,
    caller: Asker,
    service: TheService,
    body: models.Cancellation | None = None,
) -> Response:
    """Cancel, hold, release, suspend or resume it. The answer is the job before the loop has heard of it."""
    more = _more(wish, body)
    return Json(await run_in_threadpool(service.wish, caller, job_id, wish.value, **more), status_code=202)


@router.patch("/arrays/{number}", status_code=202, response_model=models.Array)
async def change_array(
    number: ArrayNumber, change: models.Priority, caller: Asker, service: TheService, elements: Elements
) -> Response:
    """Give all jobs of an array that have not ended another priority."""
    await _charge(elements, caller, number, service)
    told = await run_in_threadpool(service.wish_for_array, caller, number, "priority", priority=change.priority)
    return Json(told, status_code=202)


@router.post("/arrays/{number}/{wish:wish}", status_code=202, response_model=models.Array)
async def wish_for_array(
    number: ArrayNumber,
    wish: Wish,
    caller: Asker,
    service: TheService,
    elements: Elements,
    body: models.Cancellation | None = None,
) -> Response:
    """Cancel, hold, release, suspend or resume all its jobs that have not ended; the answer names them."""
    more = _more(wish, body)
    await _charge(elements, caller, number, service)
    return Json(await run_in_threadpool(service.wish_for_array, caller, number, wish.value, **more), status_code=202)


async def _charge(elements: Buckets, caller: Caller, number: str, service: Service) -> None:
    """One request about ten thousand jobs is work for ten thousand."""
    count = len((await run_in_threadpool(service.array, caller, number))["ids"])
    if wait_s := elements.take(caller.name, count):
        raise TooMany("you ask this of too many jobs in a short time; wait", again_after_s=wait_s)


def _more(wish: Wish, body: models.Cancellation | None) -> dict[str, Any]:
    return {"why": body.why if body is not None else ""} if wish is Wish.CANCEL else {}
