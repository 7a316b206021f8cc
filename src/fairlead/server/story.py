"""What happened to a job, told in one sentence each: messages of the journal, and notes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairlead.core.messages import (
    JobCancelled,
    JobExited,
    JobHeld,
    JobPinned,
    JobReported,
    JobReprioritised,
    JobRescaled,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Message,
    NodeDrained,
    NodeJoined,
    NodeLost,
    OutsidersSeen,
    Release,
    Remember,
    Rent,
    Resize,
    Start,
    Stop,
    Tick,
    encode,
)
from fairlead.core.types import JobSpec
from fairlead.core.wording import counted
from fairlead.server.notes import note_sentence
from fairlead.server.reasons import clock, ending
from fairlead.server.store import Note

_PINNED = (
    "keeps the GPUs it was given until this attempt ends: its command is started once, or does not use fairlead.train, "
    "so it cannot change size while it runs"
)


def told_message(seq: int, message: Message, *, logs: bool = True) -> dict[str, Any]:
    """A message of the journal, with its fields; but for what the job printed, unless its `logs` may be read."""
    if isinstance(message, JobExited) and not logs:
        message = replace(message, last_line="")
    fields = encode(message)
    del fields["v"]
    if isinstance(message, JobSubmitted):
        del fields["spec"]  # it is the job itself, and the document says more
    return {"seq": seq, **fields, "text": sentence(message)}


def told_note(note: Note) -> dict[str, Any]:
    """A note has no place in the journal, and so no number there."""
    return {"seq": None, "at": note.at, "type": note.kind, "text": note_sentence(note), "body": note.body}


def sentence(message: Message) -> str:  # noqa: C901  # one case for each message, and no more to it
    match message:
        case JobSubmitted(spec=spec):
            return f"{spec.tenant} submitted it to queue {spec.queue}: {_asks_for(spec)}"
        case JobCancelled(by=by, why=why):
            return (f"{by} cancelled it" if by else "was cancelled") + (f": {why}" if why else "")
        case JobHeld(on_hold=on_hold):
            return "is on hold, and holds no GPUs until it is released" if on_hold else "is no longer on hold"
        case JobReprioritised(priority=priority):
            return f"its priority is {priority} now"
        case JobStarted(attempt=attempt):
            return f"attempt {attempt} has started up, and runs"
        case JobReported():
            return _report(message)
        case JobPinned(pinned=pinned):
            return _PINNED if pinned else "uses fairlead.train after all, and can change its GPUs while it runs"
        case JobRescaled():
            return "uses its new GPUs"
        case JobStopped(attempt=attempt):
            return f"attempt {attempt} has stopped"
        case JobExited():
            return _exit(message)
        case Start(attempt=attempt, allocation=allocation):
            return f"attempt {attempt} starts on {counted(allocation.total, 'GPU')}: {allocation}"
        case Resize(allocation=allocation):
            if not allocation:
                return "gives up its GPUs, and its processes stay warm"
            return f"changes to {counted(allocation.total, 'GPU')}: {allocation}"
        case Stop(attempt=attempt):
            return f"attempt {attempt} is asked to stop"
        case NodeJoined(node=node):
            return f"node {node.id} can be used"
        case NodeLost(node=node_id):
            return f"node {node_id} is lost"
        case NodeDrained(node=node_id, draining=draining, by=until):
            due = "" if until is None else f", and has to be empty at {clock(until)}"
            return f"node {node_id} takes nobody new{due}" if draining else f"node {node_id} is open again"
        case OutsidersSeen(node=node_id, gpus=gpus):
            used = f"GPUs {', '.join(map(str, gpus))} of node {node_id} are" if gpus else f"no GPU of node {node_id} is"
            return f"{used} used by processes that no job started"
        case Rent(node=node_id):
            return f"node {node_id} is asked for"
        case Release(node=node_id):
            return f"node {node_id} is given back"
        case Remember():
            return "the policy noted what its next decision needs"
        case Tick():
            return "time passed"


def _asks_for(spec: JobSpec) -> str:
    size = counted(spec.least, "GPU") if spec.least == spec.most else f"{spec.least} to {spec.most} GPUs"
    types = f" of type {' or '.join(spec.gpu_types)}" if spec.gpu_types else ""
    return f"{size}{types}, priority {spec.priority}"


def _report(message: JobReported) -> str:
    batch = "" if message.batch is None else f" at batch {message.batch}"
    saved = ", which is saved" if message.saved else ""
    return f"is {100.0 * message.progress:.1f} % done{batch}{saved}"


def _exit(message: JobExited) -> str:
    if message.code == 0:
        return f"attempt {message.attempt} has succeeded{f': {message.detail}' if message.detail else ''}"
    how, detail = ending(message.code, message.detail)
    said = f"ended{how}" if how else "is over"  # the detail says how it ended
    last = f'; it last printed "{message.last_line}"' if message.last_line else ""
    return f"attempt {message.attempt} {said}{f': {detail}' if detail else ''}{last}"
