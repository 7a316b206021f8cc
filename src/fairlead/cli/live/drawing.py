"""What a live view shows: bars, GPUs as blocks, and the frame of `fairlead top`. Pure: job resources in, text out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group
from rich.text import Text

from fairlead.cli.live.tables import Column, Look, lay_out
from fairlead.cli.live.wording import NONE, clean, counted, gpus_of, left, percent, rate, why
from fairlead.client.resources import ENDED, STATES, Cluster, Job

#: The colour of each state.
STYLES = {
    "PENDING": "yellow",
    "HELD": "dim",
    "STARTING": "cyan",
    "RUNNING": "green",
    "RESCALING": "cyan",
    "SUSPENDED": "dim",
    "PREEMPTING": "magenta",
    "CANCELLING": "magenta",
    "RECOVERING": "magenta",
    "SUCCEEDED": "green",
    "FAILED": "bold red",
    "CANCELLED": "dim",
    "TIMEOUT": "red",
}

_EIGHTHS = " ▏▎▍▌▋▊▉█"
#: More GPUs than this are a number, and no blocks.
_MOST_BLOCKS = 16
#: A change of goodput that is worth an arrow.
_CHANGE = 0.02

#: In which order the view lists jobs: those that hold GPUs first, those that ended last.
_ORDER = {
    **dict.fromkeys(("RUNNING", "RESCALING", "STARTING", "PREEMPTING", "CANCELLING"), 0),
    **dict.fromkeys(("SUSPENDED", "RECOVERING"), 1),
    "PENDING": 2,
    "HELD": 3,
}


@dataclass(frozen=True)
class View:
    """What a frame is drawn from."""

    jobs: Sequence[Job]
    #: The server's summary; None if it is not known.
    cluster: Cluster | None = None
    #: The goodput that each job had before this one.
    before: Mapping[str, float] = field(default_factory=dict)
    #: Something to say at the bottom, such as that the server is away.
    note: str = ""


def state_of(job: Job) -> Text:
    return Text(job["state"], style=STYLES.get(job["state"], ""))


def bar(share: float, width: int, *, ascii: bool = False) -> Text:
    """A bar that is filled by a share of it, to the eighth of a character."""
    share = min(1.0, max(0.0, share))
    if ascii:
        full = int(share * width)
        return Text("#" * full + "." * (width - full))
    eighths = int(share * width * 8)
    full, part = divmod(eighths, 8)
    filled = "█" * full + (_EIGHTHS[part] if part else "")
    return Text.assemble((filled, "green"), (" " * (width - len(filled)), ""), style="on grey23")


def gpu_blocks(current: int, most: int, *, ascii: bool = False) -> Text:
    """One block for each GPU it may have: those it has are filled."""
    if most > _MOST_BLOCKS:
        return Text(f"{current} of {most}")
    full, empty = ("#", ".") if ascii else ("▮", "▯")
    return Text.assemble((full * current, "green"), (empty * max(0, most - current), "dim"))


def trend(goodput: float | None, before: float | None, *, ascii: bool = False) -> Text:
    """The goodput, with an arrow if it is not what it was."""
    text = Text(rate(goodput))
    up, down, same = ("^", "v", " ") if ascii else ("↑", "↓", " ")
    if goodput is None or not before or abs(goodput / before - 1.0) < _CHANGE:
        return text.append(f" {same}")
    return text.append(f" {up}", style="green") if goodput > before else text.append(f" {down}", style="red")


def progress_of(job: Job, look: Look, *, width: int = 10) -> Text:
    if job["progress"] is None:
        return Text(NONE)
    share = Text(f"{percent(job['progress']):>4}" if look.bars else percent(job["progress"]))
    return share.append(" ").append_text(bar(job["progress"], width, ascii=look.ascii)) if look.bars else share


def job_lines(view: View, look: Look) -> list[Text]:
    """One line for each job under their headings: who holds GPUs comes first."""
    columns: list[Column[Job]] = [
        Column("ID", lambda job, _: clean(job["id"]), right=True),
        Column("NAME", lambda job, _: clean(job["name"])[:24] or NONE),
        Column("USER", lambda job, _: clean(job["user"]), spare=3),
        Column("ST", lambda job, _: state_of(job)),
        Column("GPUS", _gpus),
        Column("BATCH", lambda job, _: NONE if job["batch"] is None else f"{job['batch']:,}", right=True, spare=2),
        Column(
            "GOODPUT",
            lambda job, look: trend(job["goodput"], view.before.get(job["id"]), ascii=look.ascii),
            right=True,
            spare=1,
        ),
        Column("PROGRESS", lambda job, look: progress_of(job, look, width=16)),
        Column("ETA", lambda job, look: left(job, look.now), right=True),
        Column("REASON", lambda job, _: Text(why(job), style="dim"), cut=True, spare=4),
    ]
    return lay_out(columns, in_order(view.jobs), look)


def in_order(jobs: Sequence[Job]) -> list[Job]:
    """Those that hold GPUs, those that wait for some, those that ended; each in order of arrival."""
    return sorted(jobs, key=lambda job: (_ORDER.get(job["state"], 9), job["submitted_at"], job["id"]))


def _gpus(job: Job, look: Look) -> Text:
    gpus = job["gpus"]
    if job["state"] in ENDED or not look.bars:
        return Text(gpus_of(job))
    return gpu_blocks(gpus["current"], gpus["max"], ascii=look.ascii).append(f" {gpus['current']}")


def header(view: View, look: Look) -> list[Text]:
    """How full the cluster is, how many jobs are in which state, and who decides."""
    used, total = gpus_in_use(view)
    first = Text("GPUs ", style="bold")
    if total:
        first.append_text(bar(used / total, 20, ascii=look.ascii)).append(" ")
        first.append(f"{used} of {total} in use")
    else:
        first.append(f"{used} in use")
    if view.cluster is not None:
        first.append("   policy ", style="bold").append(clean(view.cluster["policy"]))
    counts = Counter(job["state"] for job in view.jobs)
    second = Text("Jobs ", style="bold")
    told = [Text(f"{counts[state]} {state.lower()}", style=STYLES[state]) for state in STATES if counts[state]]
    second.append_text(Text(", ").join(told) if told else Text("none"))
    return [first, second]


def gpus_in_use(view: View) -> tuple[int, int]:
    """Held, and there to be held (0 if that is not known)."""
    if view.cluster is None:
        return sum(job["gpus"]["current"] for job in view.jobs), 0
    types = view.cluster["gpus"].values()
    return sum(kind["used"] for kind in types), sum(kind["total"] for kind in types)


def frame(view: View, look: Look, *, height: int | None = None) -> Group:
    """The whole picture, of at most `height` lines."""
    head = header(view, look)
    lines = job_lines(view, look)
    note = [Text(view.note, style="dim")] if view.note else []
    room = None if height is None else max(2, height - len(head) - 2 - len(note))
    if room is not None and len(lines) > room:
        hidden = len(lines) - room + 1
        lines = [*lines[: room - 1], Text(f"and {counted(hidden, 'job')} more", style="dim")]
    if not view.jobs:
        lines = [Text("No jobs. To submit one: fairlead submit -- python train.py", style="dim")]
    for line in (*head, *note):
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*head, Text(""), *lines, *([Text(""), *note] if note else []))
