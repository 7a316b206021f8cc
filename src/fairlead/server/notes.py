"""Notes in one sentence each: what the backend and the controller tell of a job that is not in the journal.

A note's body may be of an older Fairlead, or of a backend that is somebody else's. What has no sentence here, or lacks
what its sentence needs, is told field by field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from fairlead.core.wording import counted
from fairlead.server.store import Note

#: The kinds of note that say who wished what, where the journal does not; and that a job had to give up GPUs.
ASKED, PREEMPTED = "asked", "preempted"

#: What a person does, by the kind of request.
_WISHES: Mapping[str, str] = {
    "hold": "put it on hold",
    "suspend": "suspended it",
    "release": "released it",
    "resume": "let it go on",
    "priority": "changed its priority",
}

#: Those who get GPUs that are named.
_NAMED = 3

#: What a reason says first of a job that waits or has less: here it is said already.
_FATE = re.compile(r"^(waits|has \d+ GPUs?): ")

Body = Mapping[str, Any]


def note_sentence(note: Note) -> str:
    if isinstance(text := note.body.get("text"), str):
        return text
    if note.kind in SENTENCES:
        try:
            return SENTENCES[note.kind](note.body)
        except (LookupError, TypeError, ValueError, AttributeError):  # it lacks something
            pass
    told = {name: value for name, value in note.body.items() if isinstance(value, str | int | float)}
    facts = ", ".join(f"{name} {f'{value:.3g}' if isinstance(value, float) else value}" for name, value in told.items())
    return f"{note.kind}: {facts}" if facts else note.kind


def seconds(value: float) -> str:
    """36 ms, 0.79 s, 12 s."""
    if value < 0.1:
        return f"{1000.0 * value:.0f} ms"
    return f"{value:.2g} s" if value < 10.0 else f"{value:.0f} s"


def _asked(body: Body) -> str:
    return f"{body.get('by', 'somebody')} {_WISHES.get(str(body.get('what')), 'asked for something')}"


def _preempted(body: Body) -> str:
    """By whom, why, and what it cost; all of it as its receipt tells it."""
    before, after = int(body["gpus_before"]), int(body["gpus_after"])
    given = before - after
    if given <= 0:
        raise ValueError(given)
    gave = f"gave up {given} of its {before} GPUs" if after else f"gave up {counted(given, 'GPU')}"
    why = body["reason"]
    said = _FATE.sub("", why["text"])
    return f"{gave}{' to a drain' if why['code'] == 'drain' else _for_whom(body['gets'])}: {said}; {_cost(body)}"


def _for_whom(gets: list[Body]) -> str:
    if not gets:
        return ""
    named = [f"job {each['job']} of {each['user']}" for each in gets[:_NAMED]]
    named += [counted(len(gets) - _NAMED, "other job")] if len(gets) > _NAMED else []
    return f" for {', '.join(named[:-1])} and {named[-1]}" if len(named) > 1 else f" for {named[0]}"


def _cost(body: Body) -> str:
    lost, restart_s = body["lost_gpu_s"], body["restart_s"]
    work = f"lost at most {lost:.3g} GPU-seconds of work" if lost < 1000.0 else f"lost at most {lost:,.0f} GPU-seconds"
    if not lost:
        work = "lost no work"
    return work if restart_s is None else f"{work}, and a restart takes about {seconds(restart_s)}"


def _paused(body: Body) -> str:
    return f"training paused for {seconds(body['seconds'])} to go on with {counted(body['world'], 'worker')}"


def _hung(body: Body) -> str:
    return f"worker {body['worker']} hung, and was ended; it was last heard {seconds(body['silent_s'])} before"


def _slow(body: Body) -> str:
    return f"worker {body['worker']} on {_place(body)} is much slower than the others, and is replaced"


def _refused(body: Body) -> str:
    if "most" in body:
        unused, most = body["asked"] - body["most"], counted(body["most"], "worker")
        return f"takes {most} at most, so that {unused} of its {body['asked']} GPUs are not used"
    how = f"exit code {body['code']}" if body["code"] >= 0 else f"signal {-body['code']}"
    return f"worker {body['worker']} on {_place(body)} ended with {how} before it joined; the others go on without it"


def _place(body: Body) -> str:
    return f"GPU {body['gpu']} of node {body['node']}"


def _left_behind(body: Body) -> str:
    noun = "process" if len(body["pids"]) == 1 else "processes"
    return f"{noun} {', '.join(map(str, body['pids']))} of it could not be ended"


def _order_refused(body: Body) -> str:
    """Of the traceback, what went wrong."""
    return f"could not follow the order to {body['order']['order']}: {body['why'].strip().splitlines()[-1]}"


#: By kind: all that the backend and the controller tell, but for those that bring their own text.
SENTENCES: Mapping[str, Callable[[Body], str]] = {
    ASKED: _asked,
    PREEMPTED: _preempted,
    "paused": _paused,
    "worker-hung": _hung,
    "worker-slow": _slow,
    "worker-refused": _refused,
    "worker-lost": lambda body: f"worker {body['worker']} ended with {body['how']}; the others go on without it",
    "begins": lambda body: f"begins at step {body['step']}",
    "continues": lambda body: f"continues at step {body['step']}",
    "complete": lambda body: f"was already complete at step {body['step']}: nothing to do",
    "foreign": lambda body: f"checkpoint {body['checkpoint']} is of another run",
    "locked": lambda body: f"waits for the lock of {body['directory']}, for at most {seconds(body['within_s'])}",
    "unsaved": lambda body: f"could not be saved at step {body['step']}: {body['why']}",
    "left-behind": _left_behind,
    "order-refused": _order_refused,
    "put-aside": lambda body: f"a directory that belonged to another job lay in its place; it is now {body['moved']}",
    "cannot-start": lambda body: f"cannot be started now, and is tried again: {body['why']}",
    "cannot-hear": lambda body: f"its supervisor cannot be heard: {body['why']}",
    "unreadable": lambda body: f"something that its supervisor said cannot be read: {body['why']}",
}
