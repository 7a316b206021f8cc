"""From a request to what the scheduler and the backend need: the paths, the elements, the spec."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from fairlead.core.types import JobSpec
from fairlead.jobfile.command import command_of
from fairlead.jobfile.launch import asks_to_change_in_place, launch_of
from fairlead.jobfile.reading import request_from, to_data
from fairlead.jobfile.request import InvalidJob, JobRequest, Problem
from fairlead.jobfile.sizes import MOST_ELEMENTS
from fairlead.jobfile.times import deadline_at


def expand(request: JobRequest) -> list[tuple[int | None, JobRequest]]:
    """One request for each element of its array, with its index; or the request itself."""
    if not request.array:
        return [(None, request)]
    if len(request.array) > MOST_ELEMENTS:
        text = f"array has {len(request.array)} elements; at most {MOST_ELEMENTS} are allowed. Submit it in parts"
        raise InvalidJob.at("array", text)
    element = replace(request, array=())
    return [(index, element) for index in request.array]


def resolve_paths(request: JobRequest, base: Path) -> JobRequest:
    """With a working directory that means the same elsewhere: `base` if none was given, and relative ones below it.

    What begins with ~ stays: it is the home of whoever runs the job, where it runs.
    """
    given = request.workdir or ""
    if given.startswith("~"):
        return request
    return replace(request, workdir=os.path.normpath(base.absolute() / given))


def resolve_deadline(request: JobRequest, now: float) -> JobRequest:
    """With a deadline that means the same elsewhere and later: a time of day is the user's, not the server's."""
    at = _deadline(request, now)
    if at is None:
        return request
    written = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    return replace(request, deadline=written.replace("+00:00", "Z"))


def _deadline(request: JobRequest, now: float) -> float | None:
    if request.deadline is None:
        return None
    at = deadline_at(request.deadline, now)
    if at <= now:
        raise InvalidJob.at("deadline", f"deadline is {request.deadline!r}, which is past; give a later one, or +6h")
    return at


def check_ready(request: JobRequest) -> None:
    """Raise InvalidJob unless every field is valid and the working directory means the same everywhere."""
    problems: list[Problem] = []
    try:
        request_from(to_data(request, secrets=True))
    except InvalidJob as error:
        problems.extend(error.problems)
    if request.workdir is not None and not request.workdir.startswith(("/", "~")):
        text = f"workdir is {request.workdir!r}, which is relative; expected one that begins with / or ~"
        problems.append(Problem("workdir", text))
    if problems:
        raise InvalidJob(problems)


def to_spec(request: JobRequest, *, job_id: str, user: str, now: float, cluster_gpus: int) -> JobSpec:
    """What the scheduler sees of it. `auto` may use the whole cluster; a deadline that is past is refused."""
    gpus = request.gpus
    return JobSpec(
        id=job_id,
        name=request.name,
        tenant=user,
        command=command_of(request),
        gpus=gpus.requested,
        gpus_min=gpus.least,
        gpus_max=max(1, cluster_gpus) if gpus.auto else gpus.most,
        gpu_types=request.gpu_type,
        in_place=asks_to_change_in_place(request),
        launch=launch_of(request).launch,
        preemptible=request.preemptible,
        priority=request.priority,
        weight=request.weight,
        estimate_s=request.time_limit,
        deadline=_deadline(request, now),
        budget=request.budget,
        max_restarts=request.max_restarts,
        batch=request.batch,
        labels=dict(request.labels),
        queue=request.queue,
        depends_on=request.depends_on,
        restart_on=request.restart_on,
        backoff_s=request.backoff,
    )
