"""What the outside sees of a job and a node: JSON values, and no more of them than the one who asks may see.

Also the way back: how an ended job is kept in the store (`outcome_of`), and a job of a stored row (`job_of`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from fairlead.core import codec
from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Job, JobSpec, Node, Phase, Reason
from fairlead.jobfile import JobRequest, request_from, to_data, to_spec
from fairlead.server.auth import Sight
from fairlead.server.published import Published
from fairlead.server.reasons import reason_of
from fairlead.server.store import JobRow

#: The exit code of a job that took longer than it may, and how its detail begins.
TIMEOUT_CODE, TIMEOUT_DETAIL = 124, "time limit"


class State(StrEnum):
    """Where a job is, in the words people know from elsewhere. The last four are final."""

    PENDING = "PENDING"
    HELD = "HELD"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RESCALING = "RESCALING"
    SUSPENDED = "SUSPENDED"
    PREEMPTING = "PREEMPTING"
    CANCELLING = "CANCELLING"
    RECOVERING = "RECOVERING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"


FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.TIMEOUT})

_SAME = {
    phase: State(phase.upper())
    for phase in (Phase.STARTING, Phase.RUNNING, Phase.RESCALING, Phase.SUSPENDED, Phase.SUCCEEDED, Phase.CANCELLED)
}


def state_of(job: Job, now: float) -> State:
    if job.phase is Phase.PENDING:
        if job.on_hold:
            return State.HELD
        return State.RECOVERING if job.failures and job.not_before > now else State.PENDING
    if job.phase is Phase.STARTING and job.not_before > now:  # it waits on its GPUs
        return State.RECOVERING
    if job.phase is Phase.STOPPING:
        return State.CANCELLING if job.cancelled else State.PREEMPTING
    if job.phase is Phase.FAILED:
        timeout = job.exit_code == TIMEOUT_CODE and job.detail.startswith(TIMEOUT_DETAIL)
        return State.TIMEOUT if timeout else State.FAILED
    return _SAME[job.phase]


# -- jobs --------------------------------------------------------------------------------------------------------------

#: What a row leaves out, and what stands in its place.
_HIDDEN: Mapping[str, Any] = {
    "batch": None,
    "goodput": None,
    "progress": None,
    "ends_at": None,
    "starts_at": None,
    "exit_code": None,
    "detail": "",
    "weight": 1.0,
    "labels": {},
    "deadline": None,
    "budget": None,
    "depends_on": [],
    "waits_for": [],
    "command": [],
}


def job_resource(job: Job, published: Published, sight: Sight) -> dict[str, Any]:
    """The job as somebody with this sight sees it. Computes the job's reason, which can take a millisecond."""
    job = seen(job, sight)
    spec, now = job.spec, published.now
    gpu_type = _gpu_type(job, published.nodes)
    resource = {
        "id": job.id,
        "name": spec.name,
        "user": spec.tenant,
        "queue": spec.queue,
        "state": state_of(job, now).value,
        "phase": job.phase.value,
        "reason": reason_resource(reason_of(published, job), sight),
        "gpus": {
            "current": job.allocation.total,
            "min": spec.least,
            "max": spec.most,
            "requested": spec.gpus,
            "allocation": {node: list(gpus) for node, gpus in job.allocation},
            "pinned": job.pinned_from is not None,
            "type": gpu_type or (spec.gpu_types[0] if len(spec.gpu_types) == 1 else None),
        },
        "batch": job.belief.regimes[-1][1] if job.belief.regimes else None,
        "goodput": goodput_of(job, gpu_type),
        "progress": None if job.belief.reported_at is None else job.belief.progress,
        "ends_at": _ends_at(job, gpu_type),
        "starts_at": None,
        "submitted_at": job.submitted_at,
        "started_at": job.first_started_at,
        "ended_at": job.since if job.phase.final else None,
        "attempt": job.attempt,
        "restarts": max(0, job.attempt - 1),
        "failures": job.failures,
        "preemptions": job.preemptions,
        "exit_code": job.exit_code,
        "detail": job.detail,
        "priority": spec.priority,
        "weight": spec.weight,
        "preemptible": spec.preemptible,
        "launch": spec.launch.value,
        "labels": dict(spec.labels),
        "deadline": spec.deadline,
        "budget": spec.budget,
        "depends_on": list(spec.depends_on),
        "waits_for": list(job.waits_for),
        "on_hold": job.on_hold,
        "gpu_seconds": job.held_at(now),
        "command": list(spec.command),
        "seq": published.seq,
    }
    if sight is Sight.ROW:
        resource |= _HIDDEN
    elif sight is Sight.FATE:
        resource["command"] = []
    return resource


def seen(job: Job, sight: Sight) -> Job:
    """The job without what it printed, unless its log may be read as well."""
    return job if sight is Sight.ALL else replace(job, last_line="")


def reason_resource(reason: Reason | None, sight: Sight) -> dict[str, Any] | None:
    """Of somebody else's job only the code: a text can tell what the numbers are."""
    if reason is None:
        return None
    if sight is Sight.ROW:
        return {"code": reason.code, "text": reason.code.replace("-", " "), "numbers": {}, "jobs": []}
    numbers = {name: finite(value) for name, value in reason.numbers.items()}
    return {"code": reason.code, "text": reason.text, "numbers": numbers, "jobs": list(reason.jobs)}


def finite(value: float) -> float | None:
    """JSON knows no infinity."""
    return float(value) if math.isfinite(value) else None


def _gpu_type(job: Job, nodes: Mapping[str, Node]) -> str | None:
    """Of the GPUs it holds."""
    node = nodes.get(job.allocation.shares[0][0]) if job.allocation else None
    return None if node is None else node.gpu_type


def goodput_of(job: Job, gpu_type: str | None) -> float | None:
    """Useful samples per second, by the last measurement on as many GPUs and nodes as it holds now.

    Throughput x statistical efficiency, (phi + M0) / (phi + M). A sample is never worth more than at M0, the batch of
    the job file or else the first one that was seen.
    """
    belief = job.belief
    here = [
        o
        for o in belief.observations
        if (o.gpu_type, o.nodes, o.gpus) == (gpu_type, len(job.allocation.shares), job.allocation.total) and o.step_s
    ]
    if not here:
        return None
    batch_of = {id(o): o.gpus * o.per_gpu_batch * (o.accumulation + 1) for o in here}
    now = belief.regimes[-1][1] if belief.regimes else None
    last = next((o for o in reversed(here) if batch_of[id(o)] == now), here[-1])
    batch = batch_of[id(last)]
    first = belief.regimes[0][1] if belief.regimes else batch
    initial = job.spec.batch.initial if job.spec.batch is not None else first
    worth = 1.0
    if belief.noise_scale is not None and belief.noise_scale >= 0.0:
        worth = min(1.0, (belief.noise_scale + initial) / (belief.noise_scale + batch))
    return finite(batch / last.step_s * worth)


def _ends_at(job: Job, gpu_type: str | None) -> float | None:
    """If it goes on as it does; None if its speed here is not known."""
    belief, speed = job.belief, job.belief.speed
    if job.phase is not Phase.RUNNING or speed is None or belief.reported_at is None or speed.progress_per_s <= 0.0:
        return None
    if (speed.gpu_type, speed.nodes, speed.gpus) != (gpu_type, len(job.allocation.shares), job.allocation.total):
        return None
    return finite(belief.reported_at + (1.0 - belief.progress) / speed.progress_per_s)


# -- jobs in the store -------------------------------------------------------------------------------------------------


def document_of(request: JobRequest) -> dict[str, Any]:
    """What the store keeps and shows of a request; the secrets' values are kept beside it."""
    return to_data(request, secrets=False)


def request_of(row: JobRow) -> JobRequest:
    """What was handed in, secrets included."""
    document = dict(row.document)
    if "secrets" in document:
        document["secrets"] = dict(row.secrets)
    return request_from(document)


def spec_of(request: JobRequest, *, job_id: str, user: str, at: float, nodes: Iterable[Node]) -> JobSpec:
    """What the scheduler sees of a request that was handed in at this time."""
    return to_spec(request, job_id=job_id, user=user, now=at, cluster_gpus=most_gpus(nodes, request.gpu_type))


def most_gpus(nodes: Iterable[Node], gpu_types: Iterable[str] = ()) -> int:
    """The GPUs of the largest type: what `gpus: auto` may use, since a job runs on one type at a time."""
    wanted, total = set(gpu_types), dict[str, int]()
    for node in nodes:
        if not wanted or node.gpu_type in wanted:
            total[node.gpu_type] = total.get(node.gpu_type, 0) + node.gpus
    return max(total.values(), default=1)


def outcome_of(job: Job) -> dict[str, Any]:
    """How a job ended, for the store. Measurements are in the journal, and would be most of it."""
    encoded: dict[str, Any] = codec.encode(
        replace(job, belief=replace(job.belief, observations=(), packed=(), speeds=()))
    )
    return encoded


def job_of(row: JobRow, nodes: Iterable[Node]) -> Job:
    """A job that the loop does not know (any more, or yet)."""
    if row.outcome is not None:
        try:
            job: Job = codec.decode(Job, row.outcome, place=f"job {row.id}")
            return job
        except InvalidSpec:  # of a version that kept less
            pass
    try:
        spec = spec_of(request_of(row), job_id=row.id, user=row.user, at=row.submitted_at, nodes=nodes)
    except InvalidSpec:  # a document that today's rules refuse
        spec = JobSpec(id=row.id, name=row.name, tenant=row.user, queue=row.queue)
    phase = Phase(row.phase) if row.phase is not None else Phase.PENDING
    since = row.submitted_at if row.ended_at is None else row.ended_at
    detail = str((row.outcome or {}).get("detail", ""))
    return Job(spec, row.submitted_at, phase=phase, since=since, accounted_at=since, detail=detail)


# -- nodes -------------------------------------------------------------------------------------------------------------


def held_gpus(published: Published) -> dict[str, dict[str, list[int]]]:
    """By node: the jobs on it, each with the GPUs it holds there or still gives up."""
    held: dict[str, dict[str, list[int]]] = {}
    for job in published.live.values():
        if job.allocation or job.releasing:
            for node, gpus in job.held:
                held.setdefault(node, {})[job.id] = list(gpus)
    return held


def node_resource(node: Node, held: Mapping[str, list[int]]) -> dict[str, Any]:
    used = {gpu for gpus in held.values() for gpu in gpus}
    return {
        "id": node.id,
        "gpus": node.gpus,
        "gpu_type": node.gpu_type,
        "used": len(used),
        "free": max(0, node.gpus - len(used.union(node.outside))) if node.open else 0,
        "outside": list(node.outside),
        "healthy": node.healthy,
        "draining": node.draining,
        "drain_by": node.drain_by,
        "price_per_hour": node.price_per_hour,
        "speed": node.speed,
        "labels": dict(node.labels),
        "jobs": dict(held),
    }
