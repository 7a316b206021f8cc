"""`fairlead status`: everything about one job on one sheet."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import click
from rich.text import Text

from fairlead.cli.live.columns import labels
from fairlead.cli.live.completing import JOB_ID
from fairlead.cli.live.connect import QUIET, talks, typed
from fairlead.cli.live.drawing import progress_of, state_of
from fairlead.cli.live.showing import WATCH, console, look_of, output_option, print_data, print_lines
from fairlead.cli.live.tables import Look
from fairlead.cli.live.watching import redraw
from fairlead.cli.live.wording import amount, clean, clock, counted, gpu_hours, moment, places, rate, span, why
from fairlead.client.calls import Client
from fairlead.client.errors import NotAllowed, NotFound
from fairlead.client.resources import ENDED, Job, StoryEvent

_INDENT = 12

#: In words for people.
LAUNCHES = {"once": "once, with all of its GPUs", "per-gpu": "per-gpu: a process on each of its GPUs"}


@click.command()
@JOB_ID
@output_option("table", "json", "yaml", "name")
@WATCH
@QUIET
@talks
def status(client: Client, job_id: str, output: str, watch: bool, quiet: bool) -> None:
    """Show one job: its state and why, its GPUs, progress, attempts, and where its output is."""
    if quiet or output == "name":
        click.echo(client.job(job_id)["state"])
        return
    screen = console()
    if watch and output == "table":
        redraw(screen, lambda: _sheet_of(client, job_id, look_of(screen)))
    if output != "table":
        print_data(client.job(job_id), output)
        return
    print_lines(screen, _sheet_of(client, job_id, look_of(screen)))


def _sheet_of(client: Client, job_id: str, look: Look) -> list[Text]:
    job = client.job(job_id)
    try:
        story = client.story(job_id)
    except (NotAllowed, NotFound):  # somebody else's
        story = []
    return list(sheet(job, attempts(story), look))


def sheet(job: Job, tries: Sequence[str], look: Look) -> Iterator[Text]:
    """The lines of the sheet. `tries` are those about its attempts."""
    name = f" {clean(job['name'])}" if job["name"] else ""
    yield Text.assemble((f"Job {clean(job['id'])}", "bold"), f"{name}  ", state_of(job))
    for title, content in _rows(job, look):
        yield _row(title, content)
    for place, each in enumerate(tries):
        yield _row("attempts" if place == 0 else "", each)
    yield _row("output", typed(f"logs {clean(job['id'])}"))


def _row(title: str, content: str | Text) -> Text:
    return Text(f"  {title:<{_INDENT}}").append_text(content if isinstance(content, Text) else Text(content))


def _rows(job: Job, look: Look) -> Iterator[tuple[str, str | Text]]:
    if reason := why(job):
        yield "why", reason
    yield "user", f"{clean(job['user'])}, queue {clean(job['queue'])}, priority {job['priority']}"
    yield "GPUs", _gpus(job)
    if job["gpus"]["max"] > 1:
        yield "launch", LAUNCHES.get(job["launch"], clean(job["launch"]))
    if job["batch"] is not None or job["goodput"] is not None:
        batch = "" if job["batch"] is None else f"batch {job['batch']:,}"
        goodput = "" if job["goodput"] is None else f"goodput {rate(job['goodput'])}"
        yield "trains", ", ".join(filter(None, (batch, goodput)))
    if job["progress"] is not None:
        yield "progress", progress_of(job, look, width=24)
    yield from _times(job, look.now)
    if waits := job["waits_for"] or job["depends_on"]:
        yield "depends on", ", ".join(map(clean, waits)) + ("" if job["waits_for"] else ", which succeeded")
    if (limits := _limits(job, look.now)) is not None:
        yield "limits", limits
    if given := job.get("labels"):
        yield "labels", labels(given)
    if command := job.get("command"):
        yield "command", clean(shlex.join(command))
    if workdir := (job.get("document") or {}).get("workdir"):
        yield "directory", clean(workdir)


def _gpus(job: Job) -> str:
    gpus = job["gpus"]
    size = str(gpus["min"]) if gpus["min"] == gpus["max"] else f"{gpus['min']} to {gpus['max']}"
    size += ", pinned" if gpus.get("pinned") else ""
    kind = f" of type {clean(gpus['type'])}" if gpus.get("type") else ""
    where = places(gpus.get("allocation") or {})
    used = f"{gpu_hours(job['gpu_seconds'])} GPU-hours" + ("" if job["state"] in ENDED else " so far")
    return f"{gpus['current']} of {size}{kind}{f': {where}' if where else ''}; {used}"


def _times(job: Job, now: float) -> Iterator[tuple[str, str]]:
    ended = job["ended_at"]
    yield "submitted", f"{moment(job['submitted_at'])} ({span(max(0.0, now - job['submitted_at']))} ago)"
    if job["started_at"] is not None:
        yield "started", f"{moment(job['started_at'])} (after {span(job['started_at'] - job['submitted_at'])})"
    elif job["starts_at"] is not None and ended is None:
        yield "starts", f"{clock(job['starts_at'], now)} (in {span(max(0.0, job['starts_at'] - now))})"
    if ended is not None:
        yield "ended", f"{moment(ended)} (after {span(ended - job['submitted_at'])})"
    elif job["ends_at"] is not None:
        yield (
            "ends",
            f"{clock(job['ends_at'], now)} (in {span(max(0.0, job['ends_at'] - now))}), if it goes on like this",
        )


def _limits(job: Job, now: float) -> str | None:
    deadline, budget = job["deadline"], job["budget"]
    told = []
    if deadline is not None:
        late = job["ends_at"] is not None and job["ends_at"] > deadline and job["state"] not in ENDED
        told.append(f"deadline {clock(deadline, now)}" + (", which it will miss" if late else ""))
    if budget is not None:
        told.append(f"budget {amount(budget)}")
    if not job["preemptible"]:
        told.append("not preemptible")
    return ", ".join(told) or None


def attempts(story: Sequence[StoryEvent]) -> list[str]:
    """One line for each start of the job: when, on what, and how it ended."""
    lines: dict[int, list[str]] = {}
    for event in story:
        fields: dict[str, Any] = dict(event)
        number = fields.get("attempt")
        if not isinstance(number, int):
            continue
        told = lines.setdefault(number, [f"{number}"])
        if event["type"] == "Start":
            told.append(f"{moment(event['at'])} on {counted(_total(fields), 'GPU')}")
        elif event["type"] == "JobExited":
            how = _ending(f"exit code {fields.get('code', 0)}", clean(fields.get("detail", "")))
            told.append(f"{how} at {moment(event['at'])}")
        elif event["type"] == "JobStopped":
            told.append(f"stopped at {moment(event['at'])}")
    return [", ".join(told) for _, told in sorted(lines.items())]


def _ending(code: str, detail: str) -> str:
    """With the exit code said once: the detail may name it."""
    if detail in ("", f"it ended with {code}"):
        return code
    return detail if re.search(rf"\b{code}\b", detail) else f"{code} ({detail})"


def _total(fields: dict[str, Any]) -> int:
    """GPUs of an allocation, as the journal writes it."""
    shares = (fields.get("allocation") or {}).get("shares", ())
    return sum(len(gpus) for _, gpus in shares)
