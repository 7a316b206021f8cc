"""A thin, typed client of a Fairlead server.

    from fairlead.client import Client, find_server

    with Client(find_server()) as fairlead:
        for job in fairlead.jobs():
            print(job["id"], job["state"])

`finding.py` says where the server is, `http.py` how to talk to one that restarts, `calls.py` what can be asked,
`resources.py` what it answers, and `errors.py` what can go wrong.
"""

from fairlead.client.calls import Client
from fairlead.client.errors import (
    ClientError,
    Conflict,
    Failed,
    Invalid,
    NoServer,
    NotAllowed,
    NotFound,
    Problem,
    Refused,
    Unreachable,
)
from fairlead.client.finding import Server, default_state, find_server, read_token
from fairlead.client.http import Patience
from fairlead.client.resources import ENDED, STATES, Job, LogLine, StoryEvent, Submitted, exit_code_of
from fairlead.client.sse import ServerEvent

__all__ = [
    "ENDED",
    "STATES",
    "Client",
    "ClientError",
    "Conflict",
    "Failed",
    "Invalid",
    "Job",
    "LogLine",
    "NoServer",
    "NotAllowed",
    "NotFound",
    "Patience",
    "Problem",
    "Refused",
    "Server",
    "ServerEvent",
    "StoryEvent",
    "Submitted",
    "Unreachable",
    "default_state",
    "exit_code_of",
    "find_server",
    "read_token",
]
