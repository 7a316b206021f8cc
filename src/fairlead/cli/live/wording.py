"""How times, amounts and states read in a line of a table. Pure: nothing here asks for the time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fairlead.client.resources import ENDED, Job
from fairlead.jobfile import JobRequest, launch_of

#: Nothing to show.
NONE = "-"

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400

#: What would steer a terminal, and what would turn a line's direction.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+")


def clean(text: object) -> str:
    """One line of text that somebody else wrote, safe to show."""
    return _UNSAFE.sub(" ", str(text)).strip()


def span(seconds: float) -> str:
    """A duration as narrow as a column wants it: 45s, 3m20s, 2h15m, 3d4h."""
    if seconds < 0:
        return f"-{span(-seconds)}"
    whole = int(seconds)
    if whole < _MINUTE_S:
        return f"{whole}s"
    if whole < 10 * _MINUTE_S:
        return f"{whole // _MINUTE_S}m{whole % _MINUTE_S:02d}s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S}m"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S}h{whole % _HOUR_S // _MINUTE_S:02d}m"
    if whole < 10 * _DAY_S:
        return f"{whole // _DAY_S}d{whole % _DAY_S // _HOUR_S}h"
    return f"{whole // _DAY_S}d"


def moment(at: float) -> str:
    """A point in time, in full."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def clock(at: float, now: float) -> str:
    """A point in time, as short as can be without being mistaken for another."""
    then, today = datetime.fromtimestamp(at), datetime.fromtimestamp(now)
    days = abs((then.date() - today.date()).days)
    return then.strftime("%H:%M" if days == 0 else "%a %H:%M" if days < 7 else "%Y-%m-%d %H:%M")


def amount(value: float) -> str:
    """Three digits, thousands set apart."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def gpu_hours(gpu_seconds: float) -> str:
    """No false precision: what is next to nothing is said to be."""
    hours = gpu_seconds / 3600.0
    return amount(hours) if hours >= 0.01 or hours == 0.0 else "<0.01"


def rate(goodput: float | None) -> str:
    return NONE if goodput is None else f"{amount(goodput)}/s"


def percent(share: float) -> str:
    """What is not done is not 100%."""
    return f"{min(99, int(100 * share)) if share < 1 else 100}%"


def gpus_of(job: Job) -> str:
    """Now, and what it may have: 2/1-8, or 4/4."""
    gpus = job["gpus"]
    least, most = gpus["min"], gpus["max"]
    return f"{gpus['current']}/{least}" + (f"-{most}" if most != least else "")


def places(allocation: Mapping[str, Any]) -> str:
    """n0[0,1] n1[3]"""
    return " ".join(f"{clean(node)}[{','.join(map(str, gpus))}]" for node, gpus in sorted(allocation.items()))


def why(job: Job) -> str:
    """One sentence: why it is where it is, or how it ended."""
    reason = job["reason"]
    return "" if reason is None else clean(reason["text"])


def left(job: Job, now: float) -> str:
    """How long until it ends, as far as that can be foreseen."""
    at = job["ends_at"]
    return NONE if at is None or job["state"] in ENDED else span(max(0.0, at - now))


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def launched(request: JobRequest) -> str:
    """How its command will be started on several GPUs, and how to have it otherwise, if that was chosen for its user.

    A command with a range of GPUs that change in place is what `fairlead.train` is for, and needs no word.
    """
    choice, gpus = launch_of(request), request.gpus
    if choice.stated or gpus.most == 1:
        return ""
    if choice.launch == "once":
        fixed = "; their number does not change while it runs" if gpus.elastic else ""
        many = f"its {gpus.least} GPUs" if not gpus.elastic else "all of its GPUs"
        return f"starts it once, with {many}: {choice.why}{fixed} (for a process on each GPU: --launch per-gpu)"
    if gpus.elastic and request.elastic == "in-place":
        return ""
    each = f"each of its {gpus.least} GPUs" if not gpus.elastic else "each of its GPUs"
    return f"starts it on {each}, as torchrun would (if it starts its workers itself: --launch once)"
