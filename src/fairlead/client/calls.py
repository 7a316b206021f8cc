"""One method for each thing that can be asked of a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast
from urllib.parse import quote

from fairlead.client.errors import Failed, Problem
from fairlead.client.finding import Server
from fairlead.client.http import Http, Patience
from fairlead.client.resources import (
    Array,
    Check,
    Cluster,
    Explanation,
    Forecast,
    Job,
    LogLine,
    NewUser,
    Node,
    Queue,
    StoryEvent,
    Submitted,
    User,
)
from fairlead.client.sse import ServerEvent

_API = "/api/v1"
_PAGE = 500


class Client:
    """A server, as seen by one user. Every call may raise a `ClientError`; all but `add_user` can be repeated safely,
    and are, while the server restarts."""

    def __init__(self, server: Server | Callable[[], Server], *, patience: Patience | None = None) -> None:
        self._find = (lambda: server) if isinstance(server, Server) else server
        self._http = Http(self._find, patience)

    def twin(self, patience: Patience | None = None) -> Client:
        """Another client of the same server, for another thread."""
        return Client(self._find, patience=patience)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where the server is; empty before the first call."""
        return self._http.url

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def submit(self, document: Mapping[str, Any], *, key: str, strict: bool = False) -> Submitted:
        """Hand in a job. The same key means the same job: to repeat it submits nothing new.

        `strict` refuses a job that cannot meet its deadline or budget.
        """
        request = {"json": document, "headers": {"Idempotency-Key": key}, "params": _given({"strict": strict})}
        return cast(Submitted, self._http.json("POST", f"{_API}/jobs", **request))

    def check(self, document: Mapping[str, Any]) -> Check:
        """What would come of a job, were it submitted."""
        return cast(Check, self._http.json("POST", f"{_API}/check", json=document))

    def jobs(self, *, limit: int | None = None, **filters: Any) -> list[Job]:
        """Newest first: live ones, or those that the filters let through (state, user, queue, label, name, all)."""
        return cast(list[Job], self._pages("jobs", limit, filters))

    def history(self, *, limit: int | None = None, **filters: Any) -> list[Job]:
        """Jobs that ended, newest first."""
        return cast(list[Job], self._pages("history", limit, filters))

    def job(self, job_id: str) -> Job:
        return cast(Job, self._http.json("GET", _job(job_id)))

    def reprioritise(self, job_id: str, priority: int) -> Job:
        return cast(Job, self._http.json("PATCH", _job(job_id), json={"priority": priority}))

    def act(self, job_id: str, action: str, **body: Any) -> Job:
        """cancel, hold, release, suspend or resume a job."""
        return cast(Job, self._http.json("POST", _job(job_id, action), json=body))

    def array(self, number: str) -> Array:
        """The jobs of an array. Raises NotFound if there is none of this number, or it was a job alone."""
        return cast(Array, self._http.json("GET", _array(number)))

    def reprioritise_array(self, number: str, priority: int) -> Array:
        """All its jobs that have not ended."""
        return cast(Array, self._http.json("PATCH", _array(number), json={"priority": priority}))

    def act_on_array(self, number: str, action: str, **body: Any) -> Array:
        """cancel, hold, release, suspend or resume all its jobs that have not ended."""
        return cast(Array, self._http.json("POST", f"{_array(number)}/{action}", json=body))

    def explain(self, job_id: str) -> Explanation:
        return cast(Explanation, self._http.json("GET", _job(job_id, "explain")))

    def eta(self, job_id: str) -> Forecast:
        return cast(Forecast, self._http.json("GET", _job(job_id, "eta")))

    def story(self, job_id: str, *, reports: bool = False) -> list[StoryEvent]:
        """What happened to a job, in order; with or without what it said of its progress."""
        told: list[StoryEvent] = []
        after: str | None = "0"
        while after is not None:
            page, after = self.story_page(job_id, after=after, reports=reports)
            told += page
        return told

    def story_page(self, job_id: str, *, after: str, reports: bool) -> tuple[list[StoryEvent], str | None]:
        """One page of it, and where the next begins; None if there is none yet."""
        params = _given({"after": after, "limit": _PAGE, "reports": reports})
        page = self._http.json("GET", _job(job_id, "events"), params=params)
        return page["events"], page.get("next")

    # -- logs ----------------------------------------------------------------------------------------------------------

    def logs(self, job_id: str, **which: Any) -> Iterator[bytes]:
        """Its output so far, in pieces. `which` is rank, attempt, tail or since."""
        return self._http.text(_job(job_id, "logs"), params=_given(which))

    def follow_logs(self, job_id: str, **which: Any) -> Iterator[LogLine]:
        """Its output as it comes, until the job has ended and all was said."""
        ended = False
        for event in self._http.events(_job(job_id, "logs/stream"), params=_given(which)):
            if event is None:
                if ended:
                    return
                # The stream is closed when the job ends, and also when the server does.
                ended = self.job(job_id)["ended_at"] is not None
            elif event.event == "line":
                yield cast(LogLine, _decoded(event))
            elif event.event == "end":
                return

    # -- the cluster ---------------------------------------------------------------------------------------------------

    def events(self, *, last_id: str = "") -> Iterator[ServerEvent]:
        """Changes of jobs ("job") and nodes ("node") as they come, for ever. "reset" says that some were missed."""
        for event in self._http.events(f"{_API}/events", params={}, last_id=last_id):
            if event is not None:
                yield event

    def cluster(self) -> Cluster:
        return cast(Cluster, self._http.json("GET", f"{_API}/cluster"))

    def nodes(self) -> list[Node]:
        return cast(list[Node], self._http.json("GET", f"{_API}/nodes")["nodes"])

    def drain(self, node: str, *, by: float | None = None) -> Node:
        return cast(Node, self._http.json("POST", f"{_API}/nodes/{quote(node, '')}/drain", json={"by": by}))

    def undrain(self, node: str) -> Node:
        return cast(Node, self._http.json("POST", f"{_API}/nodes/{quote(node, '')}/undrain", json={}))

    def queues(self) -> list[Queue]:
        return cast(list[Queue], self._http.json("GET", f"{_API}/queues")["queues"])

    # -- users ---------------------------------------------------------------------------------------------------------

    def whoami(self) -> User:
        return cast(User, self._http.json("GET", f"{_API}/whoami"))

    def users(self) -> list[User]:
        return cast(list[User], self._http.json("GET", f"{_API}/users")["users"])

    def add_user(self, name: str, *, role: str) -> NewUser:
        """The new user's token is in the answer, and never told again."""
        body = {"name": name, "role": role}
        return cast(NewUser, self._http.json("POST", f"{_API}/users", json=body, idempotent=False))

    def remove_user(self, name: str) -> None:
        self._http.json("DELETE", f"{_API}/users/{quote(name, '')}")

    # -- pages ---------------------------------------------------------------------------------------------------------

    def _pages(self, what: str, limit: int | None, filters: Mapping[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        params = _given(filters)
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(found))
            page = self._http.json("GET", f"{_API}/{what}", params={**params, "limit": size})
            found += page["jobs"]
            if page.get("next") is None:
                break
            params["cursor"] = page["next"]
        return found


def _job(job_id: str, what: str = "") -> str:
    return f"{_API}/jobs/{quote(job_id, '')}" + (f"/{what}" if what else "")


def _array(number: str) -> str:
    return f"{_API}/arrays/{quote(number, '')}"


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Without those that were left out. A switch is `true`."""
    switches = {True: "true", False: "false"}
    return {
        name: switches[value] if isinstance(value, bool) else value
        for name, value in options.items()
        if value is not None and value is not False
    }


def _decoded(event: ServerEvent) -> Any:
    try:
        return json.loads(event.data)
    except ValueError:
        raise Failed(Problem(200, detail=f"the server sent an event that is no JSON: {event.data[:80]!r}")) from None
