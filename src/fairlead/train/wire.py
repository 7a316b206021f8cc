"""What an agent and its workers say to each other: one JSON object a line, over a socket on which either may begin.

From a worker, with `worker` for who it is:

    hello    {pid, token}                    it has begun, and may be told things
    ready    {most}                          it has booted and waits to be told that it is a member; of at most so many
    store    {generation, host, port}        as the leader of a generation: here the others find each other
    stuck    {generation, why}               it could not join that generation
    joined   {generation, step, epoch}       it trains in this generation
    beat     {step, epoch, phase, since_s, usual_s}
                                             where it is, every second: computing, waiting or scripting; for how long;
                                             and how long its steps usually take
    report   {...}                           what it measured (`chronicle`); for the scheduler
    begins   {text, step, directory}         as the leader: it starts from nothing, and saves there
    continues, complete {text, step, saved_at, checkpoint, differing}
                                             it starts from this checkpoint; or nothing was left to do
    foreign  {text, step, checkpoint, differing}
                                             that checkpoint is another run's, so it ends
    locked   {text, directory, holder, within_s}
                                             it waits for that process (pid, host, job), which saves in the same
                                             directory, to end
    unsaved  {step, why}                     its state could not be saved; it trains on and tries again
    paused   {generation, world, seconds}    as the leader: for so long nobody trained when this generation began
    suspended, resumed {step}                it sleeps, or trains again
    left     {step, finish}                  it is no member any more, and will exit; its script has called `finish`
    done     {}                              training is over

From the agent:

    welcome  {running, epoch, suspended}     other workers train already, and are in this epoch
    plan     {generation, members, hosts, lost}
                                             who trains from now on, in the order of their ranks; `lost` says that the
                                             generation before cannot go on
    store    {generation, host, port}        from the leader, to all others
    suspend, resume, finish, stop {grace_s}
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]

#: Where a worker finds its agent, who it is there, and what proves it. Without the first there is no agent.
ADDRESS, NAME, TOKEN = "FAIRLEAD_AGENT", "FAIRLEAD_WORKER", "FAIRLEAD_AGENT_TOKEN"

#: The type of a worker's GPU, by which what it measures is told apart.
GPU_TYPE = "FAIRLEAD_GPU_TYPE"

#: A file for what people should know of a worker without an agent, under the service: of these messages, with these
#: fields, one a line. No more than so many bytes and lines of it are read.
NOTES = "FAIRLEAD_NOTES"
NOTED = ("begins", "continues", "complete", "foreign", "locked", "unsaved")
NOTE_FIELDS = (
    "worker",
    "text",
    "step",
    "directory",
    "saved_at",
    "checkpoint",
    "differing",
    "holder",
    "within_s",
    "why",
)
MOST_NOTES_BYTES, MOST_NOTES = 1 << 18, 200


def encode(kind: str, **fields: Any) -> bytes:
    return json.dumps({"kind": kind, **fields}, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Raises ValueError for what is no message."""
    message = json.loads(line)
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise ValueError(f"{line[:80]!r} is no message")
    return message


def messages(connection: socket.socket) -> Iterator[Message]:
    """Everything that comes, until the other side is gone."""
    with connection.makefile("rb") as lines:
        for line in lines:
            yield decode(line)
