"""Routes of what jobs wrote."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from fairlead.core.errors import InvalidSpec
from fairlead.jobfile import parse_duration
from fairlead.jobfile.times import DURATION
from fairlead.server.api.asked import Asker, JobId, TheService, TheStreams
from fairlead.server.logs import MOST_TAIL, Follower, Wanted

router = APIRouter(prefix="/api/v1/jobs/{job_id}/logs", tags=["logs"])

Rank = Annotated[int | None, Query(ge=0, le=10**6, description="One worker; without it, all of them.")]
Attempt = Annotated[
    str | None,
    Query(pattern=r"^([0-9]{1,9}|all)$", description="A number, or `all`; without it, the last one."),
]
Tail = Annotated[int | None, Query(ge=0, le=MOST_TAIL, description="The last so many lines of each worker.")]
#: UNIX seconds have at least nine digits: no query is about the last thirty years in seconds.
_UNIX = r"[0-9]{9,12}(?:\.[0-9]{1,9})?"
Since = Annotated[
    str | None,
    Query(
        max_length=40,
        description="What was written since: UNIX seconds (9 digits or more), or how long ago: 90, 10m, 1:30:00.",
        json_schema_extra={"pattern": f"^(?:{_UNIX}|{DURATION})$"},  # for the document: `_moment` says it in words
    ),
]

EVENT_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


def _wanted(rank: int | None, attempt: str | None, tail: int | None, since: str | None, now: float) -> Wanted:
    every = attempt == "all"
    number = None if attempt is None or every else int(attempt)
    return Wanted(rank, number, every, tail, None if since is None else _moment(since, now))


def _moment(text: str, now: float) -> float:
    if re.fullmatch(_UNIX, text):
        return float(text)
    if re.fullmatch(DURATION, text):
        return now - parse_duration(text, field="since")
    raise InvalidSpec("since is a number of UNIX seconds, or how long ago: 90s, 10m, 2h30m or 1d")


@router.get(
    "",
    response_class=Response,
    responses={200: {"description": "The text.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def get_logs(
    job_id: JobId,
    caller: Asker,
    service: TheService,
    rank: Rank = None,
    attempt: Attempt = None,
    tail: Tail = None,
    since: Since = None,
) -> Response:
    """What it has written. With several workers each line begins with the worker's rank."""
    wanted = _wanted(rank, attempt, tail, since, service.terms.clock())
    text = await run_in_threadpool(service.read_logs, caller, job_id, wanted)
    return StreamingResponse(text, media_type="text/plain; charset=utf-8")


@router.get("/stream", response_class=Response, responses=EVENT_STREAM)
async def follow_logs(
    job_id: JobId,
    caller: Asker,
    service: TheService,
    streams: TheStreams,
    rank: Rank = None,
    attempt: Attempt = None,
    tail: Tail = None,
    since: Since = None,
    last_event_id: Annotated[str | None, Header(max_length=2**16)] = None,
) -> Response:
    """Lines as they are written: events `line`, and `end` when the job has ended."""
    wanted = _wanted(rank, attempt, tail, since, service.terms.clock())
    follower = Follower.at(last_event_id, wanted) if last_event_id else Follower(wanted)
    await run_in_threadpool(service.check_logs, caller, job_id, wanted, growing=True)
    streams.check_room(caller)
    return event_stream(streams.lines(caller, job_id, follower))


def event_stream(events: AsyncIterator[bytes]) -> Response:
    """Proxies are asked not to keep it until it is long enough."""
    return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


changes = APIRouter(prefix="/api/v1", tags=["events"])


@changes.get("/events", response_class=Response, responses=EVENT_STREAM)
async def follow_changes(
    caller: Asker,
    streams: TheStreams,
    after: Annotated[
        int | None, Query(ge=0, le=2**53, description="Changes after this message of the journal.")
    ] = None,
    last_event_id: Annotated[str | None, Header(max_length=40)] = None,
) -> Response:
    """Jobs and nodes as they change: events `job`, `node`, and `reset` when everything should be read anew."""
    if last_event_id is not None and re.fullmatch("[0-9]{1,15}", last_event_id):
        after = int(last_event_id)  # a browser that comes back knows better than its first address
    streams.check_room(caller)
    return event_stream(streams.changes(caller, after))
