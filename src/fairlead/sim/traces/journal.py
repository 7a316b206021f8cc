"""A Fairlead journal as a trace: last week, to be replayed under another policy.

Of each job that succeeded the trace has what was measured (`Recording`): all that it did is its work, the steps that it
observed tell how fast it would be on other GPUs, and its starts and changes take as long as they did. Its duration is
the GPU-time it really trained, spread over the GPUs it asked for. The nodes and their outages come along. Jobs that had
not succeeded when the journal ends are left out: how long they would take is not known.
"""

from __future__ import annotations

from pathlib import Path

from fairlead.core.errors import InvalidSpec
from fairlead.core.messages import JobSubmitted, Message, NodeJoined, NodeLost
from fairlead.core.types import JobSpec
from fairlead.database_url import without_password
from fairlead.journal import read_journal
from fairlead.sim.metrics import JobOutcome, measure
from fairlead.sim.traces.assemble import JobFields, TraceBuilder
from fairlead.sim.traces.record import InvalidTrace, NodeFailure, Recording, Trace, TraceNode

#: How every SQLite file begins.
MAGIC = "SQLite format 3\0"


def read_journal_trace(path: Path | str) -> Trace:
    """Of a journal file, the database of a service, its state directory, or its PostgreSQL URL."""
    from fairlead.sim.recorded import recorded_jobs  # which needs the simulator's jobs, and these need traces

    try:
        messages = [message for _, message in read_journal(path)]
        measured, recordings = measure(messages), recorded_jobs(messages)
    except InvalidTrace:
        raise
    except InvalidSpec as error:
        raise InvalidTrace(str(error).removeprefix(f"{path}: "), source=_name(path)) from None
    specs = {m.spec.id: m.spec for m in messages if isinstance(m, JobSubmitted)}
    builder = TraceBuilder("journal", source=_name(path))
    begin = messages[0].at if messages else 0.0
    for job in measured.jobs:
        if job.jct_s is None:
            builder.skip("had not succeeded")
        else:
            builder.add(_fields(specs[job.job], job, recordings.get(job.job)), line=None)
    nodes, failures = _nodes(messages, begin)
    return builder.build(zero_s=begin, origin=begin, nodes=nodes, failures=failures)


def _name(path: Path | str) -> str:
    return without_password(path) if isinstance(path, str) else str(path)


def _fields(spec: JobSpec, job: JobOutcome, recording: Recording | None) -> JobFields:
    mean_gpus = job.held_gpu_s / job.held_s if job.held_s > 0 else spec.gpus
    return {
        "id": spec.id,
        "submit_s": job.submitted_at,
        "gpus": spec.gpus,
        "gpus_min": spec.least,
        "gpus_max": spec.most,
        "duration_s": job.run_s * mean_gpus / spec.gpus,
        "estimate_s": spec.estimate_s,
        "name": spec.name,
        "tenant": spec.tenant,
        "model": spec.labels.get("model"),
        "batch": None if spec.batch is None else spec.batch.initial,
        "gpu_types": spec.gpu_types,
        "in_place": spec.in_place,
        "preemptible": spec.preemptible,
        "priority": spec.priority,
        "weight": spec.weight,
        "deadline_s": None if spec.deadline is None else max(job.submitted_at, spec.deadline),
        "outcome": "completed",
        "labels": {name: value for name, value in spec.labels.items() if name != "model"},
        "recording": recording,
    }


def _nodes(messages: list[Message], begin: float) -> tuple[tuple[TraceNode, ...], tuple[NodeFailure, ...]]:
    nodes: dict[str, TraceNode] = {}
    lost_at: dict[str, float] = {}
    failures: list[NodeFailure] = []
    for message in messages:
        if isinstance(message, NodeJoined):
            node = message.node
            nodes.setdefault(node.id, TraceNode(node.id, node.gpu_type, node.gpus))
            if node.id in lost_at:
                at = lost_at.pop(node.id)
                failures.append(NodeFailure(list(nodes).index(node.id), at - begin, message.at - at))
        elif isinstance(message, NodeLost):
            lost_at[message.node] = message.at
    return tuple(nodes.values()), tuple(failures)
