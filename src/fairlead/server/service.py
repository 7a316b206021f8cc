"""What can be asked of the control plane, without HTTP: who may, what is checked, and what is answered.

Reads look at what the loop published last. Wishes are written to the store, and only then handed to the loop; whoever
gets an answer has been heard, whatever happens next. Methods may wait for a disk, so that the event loop calls them in
a thread.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

from fairlead import __version__
from fairlead.core.types import Job
from fairlead.jobfile import JobRequest
from fairlead.policies.middleware.queues import Queue, all_queues
from fairlead.server import listing, logs, reasons, story
from fairlead.server.asking import Controller, Ended, Forbidden, NotFound, Unavailable
from fairlead.server.auth import Auth, Caller, Role, Sight
from fairlead.server.gently import gently
from fairlead.server.notes import ASKED, note_sentence
from fairlead.server.outlook import Outlook, Rules
from fairlead.server.published import Published
from fairlead.server.queues import queue_resources
from fairlead.server.resources import held_gpus, job_of, job_resource, node_resource, reason_resource, seen, state_of
from fairlead.server.store import Request, Store, Submitted
from fairlead.server.submitting import MOST_PRIORITY, Prepared, Submissions, too_urgent

_ARRAY = re.compile(r"[1-9][0-9]{0,17}")
_JOB_ID = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?")

#: Records of the journal that one page of a story looks at.
_MOST_RECORDS = 5000

#: Jobs that the answer to the submission of an array shows.
_MOST_SHOWN = 100

#: What a route is called, and the kind of request it makes.
WISHES: Mapping[str, str] = {
    "cancel": "cancel",
    "hold": "hold",
    "suspend": "hold",
    "release": "release",
    "resume": "release",
}


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What this control plane offers, and under which rules."""

    #: As it was asked for, for people.
    policy: str
    rules: Rules
    #: The default queue is there whether it is named or not.
    queues: Sequence[Queue] = ()
    most_live_jobs_each: int = 20_000
    clock: Callable[[], float] = time.time


class Service:
    """The control plane as its users see it. Any thread may call it."""

    def __init__(self, store: Store, controller: Controller, *, auth: Auth, log_files: logs.LogFiles, terms: Terms):
        self.auth, self.terms = auth, terms
        self.outlook = Outlook(terms.rules)
        self._store, self._controller, self._log_files = store, controller, log_files
        self._submissions = Submissions(
            store,
            controller,
            queues=terms.queues,
            most_live_jobs_each=terms.most_live_jobs_each,
        )
        self._lock = Lock()
        self._queues: tuple[Published, list[dict[str, Any]]] | None = None
        self._counted: tuple[Published, Counter[tuple[str, str]]] | None = None

    @property
    def published(self) -> Published:
        return self._controller.published

    @property
    def controller(self) -> Controller:
        return self._controller

    @property
    def store(self) -> Store:
        return self._store

    def close(self) -> None:
        self.outlook.close()

    def unready(self) -> str | None:
        """Why nothing should be asked now; None if all is well."""
        if (failure := self._controller.failure()) is not None:
            return f"the loop has stopped: {failure}"
        if complaints := self._controller.complaints:
            return f"the loop waits: {'; '.join(complaints)}"
        return None if self._controller.ready else "the control plane is starting"

    # -- jobs --------------------------------------------------------------------------------------------------------

    def find(self, caller: Caller, job_id: str, *, least: Sight) -> tuple[Job, Published]:
        """The job, if the caller may see that much of it. Otherwise it does not exist, as far as they are told."""
        published = self.published
        job = self._submissions.find(job_id, published) if _JOB_ID.fullmatch(job_id) else None
        if job is None and _JOB_ID.fullmatch(job_id) and (row := self._store.job(job_id)) is not None:
            job = job_of(row, published.nodes.values())
        if job is None or caller.sight(job.spec.tenant) < least:
            raise NotFound(f"there is no job {job_id[:40]!r} that you may see{self._hint(caller, job_id)}")
        return job, published

    def _hint(self, caller: Caller, job_id: str) -> str:
        """Somebody who names an array where a job is expected is told what its jobs are called."""
        try:
            ids = self.array(caller, job_id)["ids"]
        except NotFound:
            return ""
        return f"; {job_id} is an array, and its jobs are {ids[0]} to {ids[-1]}"

    def job(self, caller: Caller, job_id: str) -> dict[str, Any]:
        """The resource, with the document for those who may see it."""
        job, published = self.find(caller, job_id, least=Sight.FATE)
        sight = caller.sight(job.spec.tenant)
        resource = job_resource(job, published, sight)
        if (told := self.outlook.latest(job.id)) is not None:
            resource["starts_at"] = told.starts_at
            resource["ends_at"] = told.ends_at if resource["ends_at"] is None else resource["ends_at"]
        if sight is Sight.ALL:
            row = self._store.job(job.id)
            resource["document"] = None if row is None else row.document
        return resource

    def jobs(self, caller: Caller, query: listing.Query) -> dict[str, Any]:
        return listing.page(query, caller, self.published, self._store, self._submissions)

    def explain(self, caller: Caller, job_id: str) -> dict[str, Any]:
        """{"reason": the one that counts, "text": sentences: where it is, why, on what grounds, what to do}."""
        job, published = self.find(caller, job_id, least=Sight.FATE)
        job = seen(job, caller.sight(job.spec.tenant))
        reason = reasons.reason_of(published, job)
        text = [f"job {job.id} is {state_of(job, published.now).value} since {reasons.clock(job.since)}"]
        if reason is not None:
            text.append(reason.text)
            if reason.numbers:
                text.append("; ".join(f"{name} {value:g}" for name, value in reason.numbers.items()))
            if job.on_hold and (asked := self._last_asked(job.id, ("hold", "suspend"))) is not None:
                text.append(asked)
            if reason.code in reasons.ADVICE:
                text.append(reasons.ADVICE[reason.code])
        return {"id": job.id, "reason": reason_resource(reason, caller.sight(job.spec.tenant)), "text": text}

    def _last_asked(self, job_id: str, what: tuple[str, ...]) -> str | None:
        notes = [n for n in self._store.notes(job_id) if n.kind == ASKED and n.body.get("what") in what]
        return f"{note_sentence(notes[-1])} at {reasons.clock(notes[-1].at)}" if notes else None

    def events(self, caller: Caller, job_id: str, *, after: str, limit: int, reports: bool) -> dict[str, Any]:
        """The story of a job: the journal and notes, by time. `after` is how far both were read: "77" or "77.12"."""
        job, _ = self.find(caller, job_id, least=Sight.FATE)
        may_read = caller.sight(job.spec.tenant) is Sight.ALL
        seq, _, note = after.partition(".")
        read, noted = int(seq), int(note or 0)
        told: list[dict[str, Any]] = []
        notes = iter(self._store.notes(job.id, noted, limit + 1))
        pending = next(notes, None)
        looked = 0
        for record in self._store.records(read, job=job.id, limit=_MOST_RECORDS):
            while pending is not None and pending.at < record.at and len(told) < limit:
                told.append(story.told_note(pending))
                noted, pending = pending.seq, next(notes, None)
            if len(told) == limit:
                return {"events": told, "next": f"{read}.{noted}"}
            if reports or record.type != "JobReported":
                told.append(story.told_message(record.seq, record.message, logs=may_read))
            read, looked = record.seq, looked + 1
        while pending is not None and len(told) < limit and looked < _MOST_RECORDS:
            told.append(story.told_note(pending))
            noted, pending = pending.seq, next(notes, None)
        more = pending is not None or looked == _MOST_RECORDS
        return {"events": told, "next": f"{read}.{noted}" if more else None}

    # -- logs --------------------------------------------------------------------------------------------------------

    def log_files(self, caller: Caller, job_id: str) -> Sequence[logs.LogFile]:
        job, _ = self.find(caller, job_id, least=Sight.ALL)
        return self._log_files(job.id)

    def read_logs(self, caller: Caller, job_id: str, wanted: logs.Wanted) -> Iterator[bytes]:
        self.check_logs(caller, job_id, wanted)
        return logs.read(self.log_files(caller, job_id), wanted)

    def check_logs(self, caller: Caller, job_id: str, wanted: logs.Wanted, *, growing: bool = False) -> None:
        """Raise NotFound for an attempt or a worker that is not there; if they are `growing`, that never will be."""
        job, _ = self.find(caller, job_id, least=Sight.ALL)
        missing = wanted.missing(self._log_files(job.id), attempts=job.attempt)
        if missing and (job.phase.final or not growing):
            raise NotFound(f"job {job.id} {missing}")

    # -- submitting --------------------------------------------------------------------------------------------------

    def prepare(self, caller: Caller, request: JobRequest) -> Prepared:
        self._may_write(caller)
        return self._submissions.prepare(caller, request, now=self.terms.clock())

    def repeated(self, caller: Caller, request: JobRequest, key: str) -> Submitted | None:
        """What became of a submission that was taken in before under this key, if that is known offhand."""
        return self._submissions.repeated(caller, request, key)

    def repeated_long_ago(self, caller: Caller, request: JobRequest, key: str) -> Submitted | None:
        """The same, if it has to be looked up."""
        return self._submissions.repeated_long_ago(caller, request, key)

    def submit(self, prepared: Prepared, *, key: str | None) -> Future[Submitted]:
        return self._submissions.commit(prepared, key=key)

    def submission(self, submitted: Submitted) -> dict[str, Any]:
        """{"ids", "jobs": the first of them}. Of new jobs, nothing has to be read for it."""
        published, shown = self.published, submitted.ids[:_MOST_SHOWN]
        known = {job_id: self._submissions.find(job_id, published) for job_id in shown}
        unknown = [job_id for job_id, job in known.items() if job is None]
        rows, nodes = self._store.jobs(unknown) if unknown else {}, published.nodes.values()
        jobs = (job or job_of(rows[job_id], nodes) for job_id, job in known.items())
        return {"ids": list(submitted.ids), "jobs": [job_resource(job, published, Sight.ALL) for job in jobs]}

    # -- wishes ------------------------------------------------------------------------------------------------------

    def wish(self, caller: Caller, job_id: str, what: str, **body: Any) -> dict[str, Any]:
        """Cancel, hold, release or reprioritise a job. The resource as it is before the loop has heard of it."""
        self._may_write(caller)
        job, published = self.find(caller, job_id, least=Sight.ALL)
        if job.phase.final:
            state = state_of(job, published.now).value
            raise Ended(f"job {job.id} has ended ({state}); nothing can be done about it any more")
        self._wish(caller, [job.id], what, body)
        return job_resource(job, published, caller.sight(job.spec.tenant))

    def wish_for_array(self, caller: Caller, number: str, what: str, **body: Any) -> dict[str, Any]:
        """The same for every job of an array that has not ended."""
        self._may_write(caller)
        published, ids = self.published, self.array(caller, number)["ids"]
        known = ((job_id, self._submissions.find(job_id, published)) for job_id in ids)
        live = [job_id for job_id, job in known if job is not None and not job.phase.final]
        if not live:
            raise Ended(f"all jobs of array {number} have ended; nothing can be done about them any more")
        self._wish(caller, live, what, body)
        return {"id": number, "ids": live}

    def array(self, caller: Caller, number: str) -> dict[str, Any]:
        """{"id", "ids": of its jobs}. All of them belong to one user, so that it is enough to look at the first."""
        ids = self._store.elements(int(number)) if _ARRAY.fullmatch(number) else ()
        if ids and "." in ids[0]:
            with suppress(NotFound):  # somebody else's
                self.find(caller, ids[0], least=Sight.ALL)
                return {"id": number, "ids": list(ids)}
        raise NotFound(f"there is no array {number[:40]!r} that you may see")

    def _wish(self, caller: Caller, ids: Sequence[str], what: str, body: Mapping[str, Any]) -> None:
        if body.get("priority", 0) > MOST_PRIORITY and caller.role is not Role.ADMIN:
            raise Forbidden(too_urgent(body["priority"]))
        at = self.terms.clock()
        self._request(caller, WISHES.get(what, what), {"jobs": list(ids), **body}, at=at)
        if what != "cancel":  # of which the journal says who did it
            self._store.note(ids, ASKED, at, {"by": caller.name, "what": what, **body})

    def _request(self, caller: Caller, kind: str, body: Mapping[str, Any], *, at: float) -> None:
        if (failure := self._controller.failure()) is not None:
            raise Unavailable(f"the control plane has stopped ({failure}); nothing was changed")
        seq = self._store.request(kind, user=caller.name, at=at, body=body)
        self._controller.hand_over(Request(seq, at, caller.name, kind, dict(body)))

    def _may_write(self, caller: Caller) -> None:
        if caller.role is Role.VIEWER:
            raise Forbidden("a viewer may only look; ask an admin for the role `user`")

    def must_be_admin(self, caller: Caller) -> None:
        if caller.role is not Role.ADMIN:
            raise Forbidden(f"only an admin may do this; your role is {caller.role}")

    # -- the cluster -------------------------------------------------------------------------------------------------

    def nodes(self) -> dict[str, Any]:
        published = self.published
        held = held_gpus(published)
        nodes = [node_resource(node, held.get(node.id, {})) for node in published.nodes.values()]
        return {"nodes": nodes, "seq": published.seq}

    def drain(self, caller: Caller, node_id: str, *, by: float | None) -> dict[str, Any]:
        return self._to_node(caller, node_id, "drain", {"by": by})

    def undrain(self, caller: Caller, node_id: str) -> dict[str, Any]:
        return self._to_node(caller, node_id, "undrain", {})

    def _to_node(self, caller: Caller, node_id: str, kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self.must_be_admin(caller)
        published = self.published
        node = published.nodes.get(node_id)
        if node is None:
            known = ", ".join(list(published.nodes)[:20]) or "none"
            raise NotFound(f"there is no node {node_id[:80]!r}; known are {known}")
        self._request(caller, kind, {"node": node.id, **body}, at=self.terms.clock())
        return node_resource(node, held_gpus(published).get(node.id, {}))

    def queues(self) -> dict[str, Any]:
        published = self.published
        known = self._queues
        if known is None or known[0] is not published:
            known = self._queues = (published, queue_resources(self.terms.queues, published))
        return {"queues": known[1], "seq": published.seq}

    def counts(self, published: Published) -> Counter[tuple[str, str]]:
        """Live jobs by (queue, state); counted once for each moment that is asked for."""
        with self._lock:
            if self._counted is None or self._counted[0] is not published:
                jobs = gently(published.live.values(), at_a_time=200)
                counts = Counter((job.spec.queue, state_of(job, published.now).value) for job in jobs)
                self._counted = (published, counts)
            return self._counted[1]

    def cluster(self) -> dict[str, Any]:
        """The summary: what there is, who decides, and how many jobs are where."""
        published = self.published
        held, gpus = held_gpus(published), dict[str, dict[str, int]]()
        for node in published.nodes.values():
            resource = node_resource(node, held.get(node.id, {}))
            kind = gpus.setdefault(node.gpu_type, {"total": 0, "used": 0, "free": 0})
            kind["total"] += node.gpus
            kind["used"] += resource["used"]
            kind["free"] += resource["free"]
        states: Counter[str] = Counter()
        for (_, state), count in self.counts(published).items():
            states[state] += count
        nodes = published.nodes.values()
        return {
            "version": __version__,
            "policy": self.terms.policy,
            "cadence": str(self.terms.rules.cadence),
            "now": published.now,
            "seq": published.seq,
            "ready": self.unready() is None,
            "nodes": {
                "total": len(nodes),
                "open": sum(node.open for node in nodes),
                "draining": sum(node.healthy and node.draining for node in nodes),
                "lost": sum(not node.healthy for node in nodes),
            },
            "gpus": gpus,
            "jobs": dict(sorted(states.items())),
            "queues": list(all_queues(self.terms.queues)),
        }
