"""A snapshot in a few lines, for the message of a failed check."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, Node

#: Nodes and jobs shown, each.
_SHOWN = 12


def show(view: Snapshot) -> str:
    """The time, the nodes and the jobs: one line each, the first dozen of both."""
    lines = [f"at {view.now:g} s: {len(view.nodes)} nodes, {len(view.jobs)} jobs"]
    lines += _some(_node(node) for node in view.nodes.values())
    lines += _some(_job(job, view.now) for job in view.jobs.values())
    lines += [f"  job {job.id} may not run any more, holds {job.held}" for job in view.barred[:_SHOWN]]
    return "\n".join(lines)


def _some(lines: Iterable[str]) -> list[str]:
    every = list(lines)
    return every if len(every) <= _SHOWN else [*every[:_SHOWN], f"  ... and {len(every) - _SHOWN} more"]


def _node(node: Node) -> str:
    what = "lost" if not node.healthy else "draining" if node.draining else "open"
    return f"  node {node.id}: {node.gpus} x {node.gpu_type}, {what}"


def _job(job: Job, now: float) -> str:
    spec = job.spec
    size = f"{spec.gpus}" if spec.least == spec.most else f"{spec.gpus} ({spec.least} to {spec.most})"
    traits = [
        *([f"of type {' or '.join(spec.gpu_types)}"] if spec.gpu_types else []),
        *([f"priority {spec.priority}"] if spec.priority else []),
        *(["in place"] if spec.in_place else []),
        *([] if spec.preemptible else ["not preemptible"]),
        *([f"promises {spec.estimate_s:g} s"] if spec.estimate_s is not None else []),
        *([f"had {service:g} GPU-s"] if (service := job.service_at(now)) else []),
    ]
    where = f" on {job.allocation}" if job.allocation else ""
    leaving = f", leaves {job.releasing}" if job.releasing else ""
    return f"  job {job.id}: {job.phase}{where}{leaving}; wants {', '.join([size, *traits])}"
