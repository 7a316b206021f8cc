"""Figures for Prometheus. What is, is read off the last published moment; what happened, off the journal.

Labels are bounded: queues and GPU types of the configuration, states, codes of reasons. None names a job or a user.
Counters begin at 0 with each process, as Prometheus expects.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from threading import Lock

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client import Counter as Total
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fairlead import __version__
from fairlead.core.errors import FairleadError
from fairlead.core.messages import (
    JobCancelled,
    JobExited,
    JobHeld,
    JobRescaled,
    JobStopped,
    JobSubmitted,
    Message,
    NodeLost,
    Resize,
    Start,
    Stop,
)
from fairlead.core.types import Job, Phase
from fairlead.server.gently import gently
from fairlead.server.published import Published
from fairlead.server.reasons import reason_of
from fairlead.server.resources import held_gpus
from fairlead.server.service import Service

log = logging.getLogger(__name__)

#: Times as long as a look at all jobs took that it is told again.
KEPT_TIMES = 20.0
#: Seconds that one look may spend on reasons, and how many codes are told apart.
_PATIENCE_S = 0.3
_MOST_CODES = 50
#: Records of the journal that one look takes in. The rest is for the next.
_MOST_RECORDS = 50_000

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_PAUSES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_WAITS = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86400.0, 3 * 86400.0)

_METHODS = frozenset(("GET", "HEAD", "POST", "PATCH", "DELETE", "PUT", "OPTIONS"))


class Metrics:
    """One registry. `turned` and `request` are told what happens; `exposition` is what Prometheus reads."""

    def __init__(self, service: Service) -> None:
        self._service, self._lock = service, Lock()
        registry = self.registry = CollectorRegistry()
        self._decision = Histogram(
            "fairlead_decision_seconds", "How long the policy took to decide.", registry=registry, buckets=_SHORT
        )
        self._lag = Gauge("fairlead_loop_lag_seconds", "How late the loop's last turn began.", registry=registry)
        self._requests = Histogram(
            "fairlead_http_request_duration_seconds",
            "How long an answer took; of streams, until their first byte.",
            ("route", "method", "status"),
            registry=registry,
            buckets=_SHORT,
        )
        self._tally = Tally(registry)
        self._tally.seed(service.published.live.values())
        self._read = service.store.last_seq()
        registry.register(_Now(service))

    def turned(self, lag_s: float, decision_s: float | None = None) -> None:
        """The loop has made a turn; None if the policy was not asked."""
        self._lag.set(lag_s)
        if decision_s is not None:
            self._decision.observe(decision_s)

    def request(self, *, route: str, method: str, status: int, seconds: float) -> None:
        method = method if method in _METHODS else "OTHER"
        self._requests.labels(route, method, str(status)).observe(seconds)

    def exposition(self) -> bytes:
        """Reads what is new in the journal first, so that it may take a while: call it in a thread."""
        with self._lock:
            try:
                self._catch_up()
            except FairleadError as error:  # a damaged record; figures of it are not worth an error here
                log.warning("metrics leave out a part of the journal: %s", error)
                self._read = self._service.published.seq
            return generate_latest(self.registry)

    def _catch_up(self) -> None:
        published = self._service.published
        for record in self._service.store.records(self._read, limit=_MOST_RECORDS):
            if record.type in Tally.TYPES:
                self._tally.take(record.message)
            self._read = record.seq
        self._tally.forget_all_but(published.live)


class Tally:
    """Counts what happens to jobs, message by message."""

    #: The types it wants to see.
    TYPES = frozenset(
        cls.__name__
        for cls in (
            *(JobSubmitted, JobCancelled, JobHeld, Start, Resize, Stop),
            *(JobRescaled, JobStopped, JobExited, NodeLost),
        )
    )

    def __init__(self, registry: CollectorRegistry) -> None:
        self._submitted = Total("fairlead_submitted", "Jobs handed in.", registry=registry)
        self._preempted = Total(
            "fairlead_preempted",
            "Attempts that were stopped, by what stopped them: policy, hold or node-lost.",
            ("reason",),
            registry=registry,
        )
        for reason in ("policy", "hold", "node-lost"):
            self._preempted.labels(reason)
        self._restarts = Total("fairlead_restarts", "Attempts after a job's first.", registry=registry)
        self._rescales = Total("fairlead_rescales", "Changes of a job's GPUs without a restart.", registry=registry)
        self._pauses = Histogram(
            "fairlead_rescale_pause_seconds",
            "From the order to change GPUs until the job used them.",
            registry=registry,
            buckets=_PAUSES,
        )
        self._waits = Histogram(
            "fairlead_admission_wait_seconds",
            "From a job's submission to the start of its first attempt.",
            registry=registry,
            buckets=_WAITS,
        )
        # Of jobs that are live: when they came, what their users want, where they are, since when they change.
        self._came: dict[str, float] = {}
        self._cancelled: set[str] = set()
        self._on_hold: set[str] = set()
        self._nodes: dict[str, tuple[str, ...]] = {}
        self._changing: dict[str, float] = {}

    def seed(self, jobs: Iterable[Job]) -> None:
        """Jobs that were there before."""
        for job in jobs:
            self._came[job.id] = job.submitted_at
            self._nodes[job.id] = job.held.nodes
            if job.cancelled:
                self._cancelled.add(job.id)
            if job.on_hold:
                self._on_hold.add(job.id)
            if job.phase is Phase.RESCALING:
                self._changing[job.id] = job.since

    def take(self, message: Message) -> None:
        match message:
            case JobSubmitted(at=at, spec=spec):
                self._submitted.inc()
                self._came[spec.id] = at
            case JobCancelled(job=job):
                self._cancelled.add(job)
            case JobHeld(job=job, on_hold=on_hold):
                (self._on_hold.add if on_hold else self._on_hold.discard)(job)
            case Start() | Resize():
                self._placed(message)
            case Stop(job=job):
                if job not in self._cancelled:
                    self._preempted.labels("hold" if job in self._on_hold else "policy").inc()
            case JobRescaled(at=at, job=job):
                if (since := self._changing.pop(job, None)) is not None:
                    self._pauses.observe(max(0.0, at - since))
            case JobStopped(job=job) | JobExited(job=job):
                self._nodes.pop(job, None)
                self._changing.pop(job, None)
            case NodeLost(node=node):
                self._lost(node)
            case _:
                pass

    def _placed(self, message: Start | Resize) -> None:
        job = message.job
        self._nodes[job] = message.allocation.nodes
        if isinstance(message, Start):
            if message.attempt > 1:
                self._restarts.inc()
            elif (came := self._came.get(job)) is not None:
                self._waits.observe(max(0.0, message.at - came))
        elif message.allocation:
            self._rescales.inc()
            self._changing[job] = message.at

    def _lost(self, node: str) -> None:
        for job in [job for job, nodes in self._nodes.items() if node in nodes]:
            del self._nodes[job]
            self._changing.pop(job, None)
            if job not in self._cancelled:
                self._preempted.labels("node-lost").inc()

    def forget_all_but(self, live: Iterable[str]) -> None:
        """Jobs that have ended need no memory. What was submitted last is not published yet, and stays."""
        known = live if isinstance(live, dict) else dict.fromkeys(live)
        if len(self._came) <= 2 * len(known) + 1000:
            return
        for memory in (self._came, self._nodes, self._changing):
            for job in [job for job in memory if job not in known]:
                del memory[job]
        self._cancelled &= known.keys()
        self._on_hold &= known.keys()


class _Now(Collector):
    """What is, at the moment of the look. The longer a look took, the longer it is told."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._seen: list[GaugeMetricFamily] = []
        self._until = -math.inf

    def describe(self) -> list[GaugeMetricFamily]:
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        if (began := time.monotonic()) >= self._until:
            self._seen = list(self._look())
            self._until = time.monotonic() + KEPT_TIMES * (time.monotonic() - began)
        yield from self._seen

    def _look(self) -> Iterator[GaugeMetricFamily]:
        published = self._service.published
        info = GaugeMetricFamily("fairlead_info", "Always 1; the labels tell.", labels=("version", "policy"))
        info.add_metric((__version__, self._service.terms.policy), 1.0)
        yield info
        jobs = GaugeMetricFamily("fairlead_jobs", "Jobs that have not ended.", labels=("state", "queue"))
        for (queue, state), count in sorted(self._service.counts(published).items()):
            jobs.add_metric((state, queue), count)
        yield jobs
        pending = GaugeMetricFamily(
            "fairlead_pending_jobs", "Jobs that hold no GPUs and have not started.", labels=("queue", "reason")
        )
        for (queue, reason), count in sorted(_pending(published).items()):
            pending.add_metric((queue, reason), count)
        yield pending
        gpus = GaugeMetricFamily(
            "fairlead_gpus",
            "GPUs: used, free, closed (on draining nodes), outside (used by processes that no job started) or lost.",
            labels=("gpu_type", "state"),
        )
        for (gpu_type, state), count in sorted(_gpus(published).items()):
            gpus.add_metric((gpu_type, state), count)
        yield gpus
        yield GaugeMetricFamily("fairlead_journal_seq", "The last message of the journal.", value=published.seq)


def _pending(published: Published) -> Counter[tuple[str, str]]:
    """By queue and reason. Beyond the time for it a reason is `uncounted`."""
    counts: Counter[tuple[str, str]] = Counter()
    ends_at, codes = time.monotonic() + _PATIENCE_S, set[str]()
    for job in gently(published.live.values(), at_a_time=20):
        if job.phase is not Phase.PENDING:
            continue
        code = "uncounted"
        if time.monotonic() < ends_at:
            reason = reason_of(published, job)
            code = "unknown" if reason is None else reason.code
            if code not in codes and len(codes) >= _MOST_CODES:
                code = "other"
            codes.add(code)
        counts[job.spec.queue, code] += 1
    return counts


def _gpus(published: Published) -> Counter[tuple[str, str]]:
    held, counts = held_gpus(published), Counter[tuple[str, str]]()
    for node in published.nodes.values():
        used = {gpu for gpus in held.get(node.id, {}).values() for gpu in gpus} if node.healthy else set()
        outside = len(set(node.outside) - used) if node.healthy else 0
        rest = "lost" if not node.healthy else "free" if node.open else "closed"
        counts[node.gpu_type, "used"] += len(used)
        counts[node.gpu_type, rest] += node.gpus - len(used) - outside
        if outside:
            counts[node.gpu_type, "outside"] += outside
    return counts
