"""What a server can be told about HTTP. Everything has a default that is right on one's own machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

#: The page's files are shipped beside this package.
STATIC = Path(__file__).parents[1] / "static"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the API protects itself, and by which names it may be called."""

    #: Names beyond those of this machine (localhost, 127.0.0.1, ::1) by which clients may call it, without a port.
    hosts: tuple[str, ...] = ()
    #: The name of the browser's cookie. Servers on one machine share cookies, so that each needs its own.
    cookie: str = "fairlead_session"
    #: Browsers reach it by https, through a proxy: the cookie is sent over nothing else.
    secure: bool = False
    static: Path = field(default=STATIC)

    largest_body_bytes: int = 2**20
    #: Seconds for the headers of a request, for its body, and between two requests of a connection.
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    idle_timeout_s: float = 15.0
    #: Connections that are open at the same time.
    most_connections: int = 2000
    #: Requests of each user: so many a second, and so many at once.
    requests_per_s: float = 300.0
    requests_burst: int = 600
    #: Jobs that a user's wishes for whole arrays may be about. The largest array is half of what is possible at once.
    elements_per_s: float = 200.0
    elements_burst: int = 20_000
    #: Failed attempts to say who one is, from each address.
    failures_per_s: float = 0.5
    failures_burst: int = 20
    #: Streams that are open at the same time.
    most_streams_each: int = 200
    most_streams: int = 1000
    #: Changes that are remembered for those who are slow, or come back.
    most_changes: int = 5000
    #: For so long after the last listener has gone.
    remembered_s: float = 60.0
    heartbeat_s: float = 15.0
    #: How often changes are told, and how often growing logs are looked at.
    tell_s: float = 0.1
    look_s: float = 0.5
