"""The columns of every table that a verb prints, in the order in which they stand."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from fairlead.cli.live.drawing import progress_of, state_of
from fairlead.cli.live.tables import Column, Look
from fairlead.cli.live.wording import (
    NONE,
    amount,
    clean,
    clock,
    gpu_hours,
    gpus_of,
    left,
    moment,
    places,
    rate,
    span,
    why,
)
from fairlead.client.resources import Job

Row = Mapping[str, Any]


def _ago(at: float | None, look: Look) -> str:
    return NONE if at is None else span(max(0.0, look.now - at))


def _command(job: Job) -> str:
    return clean(shlex.join(job.get("command") or [])) or NONE


_QUEUE: tuple[Column[Job], ...] = (
    Column("ID", lambda job, _: clean(job["id"])),
    Column("NAME", lambda job, _: clean(job["name"]) or NONE, spare=1),
    Column("USER", lambda job, _: clean(job["user"]), spare=4),
    Column("QUEUE", lambda job, _: clean(job["queue"]), spare=5),
    Column("ST", lambda job, _: state_of(job)),
    Column("GPUS", lambda job, _: gpus_of(job)),
    Column("BATCH", lambda job, _: NONE if job["batch"] is None else str(job["batch"]), right=True, spare=7),
    Column("GOODPUT", lambda job, _: rate(job["goodput"]), right=True, spare=6),
    Column("PROGRESS", lambda job, look: progress_of(job, look, width=8), spare=2),
    Column("ETA", lambda job, look: left(job, look.now), right=True),
    Column("AGE", lambda job, look: _ago(job["submitted_at"], look), right=True, spare=3),
)
_REASON: Column[Job] = Column("REASON", lambda job, _: why(job) or NONE, cut=True)
_MORE: tuple[Column[Job], ...] = (
    Column("NODES", lambda job, _: places(job["gpus"].get("allocation") or {}) or NONE),
    Column("PRIORITY", lambda job, _: str(job["priority"]), right=True),
    Column("ATTEMPT", lambda job, _: str(job["attempt"]), right=True),
    Column("SUBMITTED", lambda job, _: moment(job["submitted_at"])),
    Column("COMMAND", lambda job, _: _command(job)),
)

QUEUE = (*_QUEUE, _REASON)
QUEUE_WIDE = (*_QUEUE, _REASON, *_MORE)


def _exit(job: Job) -> str:
    return NONE if job["exit_code"] is None else str(job["exit_code"])


def _took(job: Job) -> str:
    if job["started_at"] is None or job["ended_at"] is None:
        return NONE
    return span(job["ended_at"] - job["started_at"])


HISTORY: tuple[Column[Job], ...] = (
    Column("ID", lambda job, _: clean(job["id"])),
    Column("NAME", lambda job, _: clean(job["name"]) or NONE),
    Column("USER", lambda job, _: clean(job["user"]), spare=3),
    Column("QUEUE", lambda job, _: clean(job["queue"]), spare=5),
    Column("ST", lambda job, _: state_of(job)),
    Column("EXIT", lambda job, _: _exit(job), right=True),
    Column("TOOK", lambda job, _: _took(job), right=True),
    Column("GPU-H", lambda job, _: gpu_hours(job["gpu_seconds"]), right=True, spare=2),
    Column("ATTEMPTS", lambda job, _: str(job["attempt"]), right=True, spare=4),
    Column("ENDED", lambda job, _: NONE if job["ended_at"] is None else moment(job["ended_at"]), spare=1),
    _REASON,
)
HISTORY_WIDE = (*HISTORY, *(column for column in _MORE if column.title in ("PRIORITY", "SUBMITTED", "COMMAND")))


def _health(node: Row, look: Look) -> Text:
    if not node["healthy"]:
        return Text("LOST", style="bold red")
    if not node["draining"]:
        return Text("OPEN", style="green")
    by = node.get("drain_by")
    return Text("DRAINING" if by is None else f"DRAINING by {clock(by, look.now)}", style="yellow")


def _used(node: Row) -> str:
    """By jobs, of all; and by processes that no job started."""
    outside = f", {len(node['outside'])} outside" if node.get("outside") else ""
    return f"{node['used']}/{node['gpus']}{outside}"


def _type(node: Row) -> str:
    """Of its GPUs; with the share of the CPU time that its jobs get, where CPU slots stand in for GPUs."""
    share = node.get("labels", {}).get("cpu-share")
    return clean(node["gpu_type"]) + (f"@{clean(share)}" if share else "")


NODES: tuple[Column[Row], ...] = (
    Column("NODE", lambda node, _: clean(node["id"])),
    Column("ST", _health),
    Column("TYPE", lambda node, _: _type(node)),
    Column("GPUS", lambda node, _: _used(node)),
    Column("FREE", lambda node, _: str(node["free"]), right=True),
    Column("JOBS", lambda node, _: places(node["jobs"]) or NONE, cut=True),
)
NODES_WIDE: tuple[Column[Row], ...] = (
    *NODES,
    Column("PRICE/H", lambda node, _: amount(node["price_per_hour"]), right=True),
    Column("SPEED", lambda node, _: _some(node, "speed"), right=True),
    Column("LABELS", lambda node, _: labels(node["labels"]) or NONE),
)


def labels(given: Mapping[str, Any]) -> str:
    return ",".join(f"{clean(key)}={clean(value)}" for key, value in sorted(given.items()))


def _some(row: Row, key: str) -> str:
    value = row.get(key)
    return NONE if value is None else amount(value) if isinstance(value, int | float) else clean(value)


QUEUES: tuple[Column[Row], ...] = (
    Column("QUEUE", lambda queue, _: _some(queue, "name")),
    Column("QUOTA", lambda queue, _: _some(queue, "quota"), right=True),
    Column("WEIGHT", lambda queue, _: _some(queue, "weight"), right=True),
    Column("ENTITLED", lambda queue, _: _some(queue, "entitled"), right=True),
    Column("USED", lambda queue, _: _some(queue, "used"), right=True),
    Column("RUNNING", lambda queue, _: _some(queue, "running"), right=True),
    Column("PENDING", lambda queue, _: _some(queue, "pending"), right=True),
)


def _flag(row: Row, key: str) -> str:
    return NONE if row.get(key) is None else "yes" if row[key] else "no"


QUEUES_WIDE: tuple[Column[Row], ...] = (
    *QUEUES,
    Column("PRIORITY", lambda queue, _: _some(queue, "priority"), right=True),
    Column("MAX-GPUS", lambda queue, _: _some(queue, "max_gpus"), right=True),
    Column("MAX-GPUS/USER", lambda queue, _: _some(queue, "max_gpus_per_user"), right=True),
    Column("MAX-JOBS/USER", lambda queue, _: _some(queue, "max_jobs_per_user"), right=True),
    Column("BORROWS", lambda queue, _: _flag(queue, "borrow")),
    Column("LENDS", lambda queue, _: _flag(queue, "lend")),
)

USERS: tuple[Column[Row], ...] = (
    Column("NAME", lambda user, _: _some(user, "name")),
    Column("ROLE", lambda user, _: _some(user, "role")),
    Column("ADDED", lambda user, look: _ago(user.get("created_at"), look), right=True),
)
