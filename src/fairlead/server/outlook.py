"""Looking ahead for whoever asks: when a job starts and ends, and whether a deadline can be met.

Forecasts run in one worker thread, one after the other, each for a bounded time. What was told is told again for a
few seconds, since it concerns all jobs at once. Nobody waits for more than their share: a queue that is too long is
refused, and what is not ready in time is unknown.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

from fairlead.core.errors import FairleadError
from fairlead.core.loop import Cadence, Policy
from fairlead.core.types import Job, JobSpec, Phase
from fairlead.server.asking import TooMany
from fairlead.server.published import Published
from fairlead.sim.feasibility import Answer, feasibility
from fairlead.sim.forecast import Effort, Forecast, JobForecast, forecast

log = logging.getLogger(__name__)

#: Forecasts that may wait for the worker.
MOST_WAITING = 16
#: A forecast is told for so long at least, and for so many times as long as it took.
KEPT_S, KEPT_TIMES = 3.0, 5.0


@dataclass(frozen=True, slots=True)
class Rules:
    """The live policy, and how hard to look. `make_policy` gives one that has seen nothing."""

    make_policy: Callable[[], Policy]
    cadence: Cadence
    #: The longest that a forecast, and that the answer to one submission, may take.
    forecast_s: float = 5.0
    answer_s: float = 2.0
    #: Further rolls, for the p90.
    samples: int = 8


class Outlook:
    """One worker and what it found last."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fairlead-outlook")
        self._lock = Lock()
        self._counting = Lock()
        self._waiting = 0
        self._latest: tuple[int, float, Future[Forecast]] | None = None  # (seq, told until, what)

    @property
    def answer_s(self) -> float:
        return self._rules.answer_s

    @property
    def forecast_s(self) -> float:
        return self._rules.forecast_s

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)

    def forecast(self, published: Published) -> Future[Forecast]:
        """Of all jobs. The same one for everybody who asks within a few seconds."""
        with self._lock:
            if self._latest is not None:
                seq, until, future = self._latest
                usable = not future.done() or (not future.cancelled() and future.exception() is None)
                if usable and (seq == published.seq or time.monotonic() < until):
                    return future
            future = self._run(self._forecast, published)
            self._latest = (published.seq, time.monotonic() + KEPT_S, future)
        future.add_done_callback(self._keep)
        return future

    def latest(self, job_id: str) -> JobForecast | None:
        """What was last said of a job, if anybody asked lately. Costs nothing."""
        latest = self._latest
        if latest is None or time.monotonic() > latest[1] or not latest[2].done() or latest[2].cancelled():
            return None
        return None if latest[2].exception() else latest[2].result().jobs.get(job_id)

    def answer(self, published: Published, spec: JobSpec) -> Future[Answer]:
        """Whether this job, submitted now, would meet its deadline and its budget."""
        with self._lock:
            return self._run(self._answer, published, spec)

    def forecast_with(self, published: Published, spec: JobSpec) -> Future[Forecast]:
        """Of all jobs, and of one that would be submitted now."""
        with self._lock:
            return self._run(self._forecast, published, spec)

    def _run(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        with self._counting:
            if self._waiting >= MOST_WAITING:
                raise TooMany("too many forecasts are waited for; ask again in a few seconds", again_after_s=5.0)
            self._waiting += 1
        future = self._worker.submit(function, *args)
        future.add_done_callback(self._done)
        return future

    def _done(self, _: Future[Any]) -> None:
        with self._counting:
            self._waiting -= 1

    def _keep(self, future: Future[Forecast]) -> None:
        """The longer it took, the longer it is told."""
        if future.cancelled() or future.exception() is not None:
            return
        until = time.monotonic() + max(KEPT_S, KEPT_TIMES * future.result().took_s)
        latest = self._latest
        if latest is not None and latest[2] is future:
            self._latest = (latest[0], until, future)

    def _forecast(self, published: Published, *also: JobSpec) -> Forecast:
        view = published.view
        if view is None:
            raise NothingKnown("no decision has been made yet; ask again in a moment")
        rules = self._rules
        return forecast(
            view,
            policy=rules.make_policy(),
            cadence=rules.cadence,
            also=also,
            others=_others(published),
            now=published.now,
            effort=Effort(samples=0 if also else rules.samples, most_s=rules.answer_s if also else rules.forecast_s),
        )

    def _answer(self, published: Published, spec: JobSpec) -> Answer:
        if published.view is None:
            return Answer(verdict="unknown", why="no decision has been made yet")
        rules = self._rules
        try:
            return feasibility(
                published.view,
                spec,
                policy=rules.make_policy(),
                cadence=rules.cadence,
                now=published.now,
                others=_others(published),
                effort=Effort(most_s=rules.answer_s),
            )
        except FairleadError as error:  # the policy's fault; the job is as good as before
            log.warning("whether job %s meets its deadline cannot be told: %s", spec.id, error)
            return Answer(verdict="unknown", why="the forecast failed; see the server's log")


class NothingKnown(FairleadError):
    """A forecast that cannot be made, and why."""


def _others(published: Published) -> list[Job]:
    """Jobs that the policy did not see: they came later, or may not run."""
    view = published.view
    assert view is not None
    seen = view.jobs.keys() | {job.id for job in view.barred}
    return [job for job in published.live.values() if job.id not in seen and job.phase is Phase.PENDING]


def answer_resource(answer: Answer) -> dict[str, Any]:
    return {
        "verdict": answer.verdict,
        "why": answer.why,
        "gpus": answer.gpus,
        "forecast": None if answer.forecast is None else forecast_resource(answer.forecast),
    }


def forecast_resource(told: JobForecast) -> dict[str, Any]:
    return {
        "starts_at": told.starts_at,
        "ends_at": told.ends_at,
        "starts_p90": told.starts_p90,
        "ends_p90": told.ends_p90,
        "gpus_at": [list(step) for step in told.gpus_at],
        "restarts": told.restarts,
        "gpu_hours": told.gpu_h,
        "cost": told.cost,
        "basis": told.basis.value,
        "why": told.why,
    }
