"""`fairlead events`: what happened, in sentences."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from fairlead.cli.live.completing import complete_job_ids
from fairlead.cli.live.connect import say, talks
from fairlead.cli.live.drawing import STYLES
from fairlead.cli.live.showing import output_option, print_data
from fairlead.cli.live.watching import leaving_them_alone
from fairlead.cli.live.wording import clean, gpus_of, moment, why
from fairlead.client.calls import Client
from fairlead.client.errors import NotFound
from fairlead.client.resources import ENDED, Job, StoryEvent
from fairlead.core.errors import InvalidSpec

#: Seconds between two looks for something new.
_EVERY_S = 1.0
#: Stories of so many jobs are told, if no job is named.
_JOBS = 20


@click.command()
@click.argument("job_id", required=False, metavar="[ID]", shell_complete=complete_job_ids)
@click.option("-f", "--follow", "follows", is_flag=True, help="Go on until the job has ended, or until Ctrl-C.")
@click.option("-n", "--tail", type=click.IntRange(min=1), metavar="N", help="Only the last so many.")
@click.option("--reports", is_flag=True, help="Also what the job says of its progress, every few seconds.")
@output_option("table", "json", "yaml")
@talks
def events(client: Client, job_id: str | None, follows: bool, tail: int | None, reports: bool, output: str) -> None:
    """Tell what happened to a job, in sentences; without ID, to the newest jobs.

    Also who preempted it, why, and what that cost. With -f, JSON is one event in each line.
    """
    if follows and output == "yaml":
        raise InvalidSpec("-o yaml cannot be followed; use json, which is one event in each line")
    if follows and job_id is not None:
        with leaving_them_alone([job_id]):
            _follow_job(client, job_id, tail, output, reports=reports)
        return
    heard = str(client.cluster()["seq"]) if follows else ""  # so that nothing is missed between the two
    told = _stories(client, job_id, reports=reports)
    told.sort(key=lambda pair: pair[1]["at"])
    told = told[-tail:] if tail else told
    if output != "table" and not follows:
        print_data([_data(*pair) for pair in told], output)
        return
    for each, event in told:
        _print(each, event, output, named=job_id is None)
    if follows:
        _follow_all(client, output, heard)


def _stories(client: Client, job_id: str | None, *, reports: bool) -> list[tuple[str, StoryEvent]]:
    """Of one job; or of the newest, but for those that are not for this user to know."""
    if job_id is not None:
        return [(job_id, event) for event in client.story(job_id, reports=reports)]
    told: list[tuple[str, StoryEvent]] = []
    for job in client.jobs(limit=_JOBS, all=True):
        with contextlib.suppress(NotFound):
            told += [(job["id"], event) for event in client.story(job["id"], reports=reports)]
    return told


def _data(job_id: str, event: Mapping[str, Any]) -> dict[str, Any]:
    return {"job": job_id, **event}


def _print(job_id: str, event: StoryEvent, output: str, *, named: bool) -> None:
    if output == "json":
        click.echo(json.dumps(_data(job_id, event), allow_nan=False))
        return
    who = f"job {clean(job_id)}: " if named else ""
    click.echo(f"{moment(event['at'])}  {who}{clean(event['text'])}")


@dataclass
class _Reading:
    """How far a story was read: where its last page begins, and what of that page was told."""

    after: str = "0"
    seen: set[Any] = field(default_factory=set)

    def news(self, client: Client, job_id: str, *, reports: bool) -> list[StoryEvent]:
        """Everything that is new. What is not in the journal may still come before what was told."""
        told = []
        while True:
            page, following = client.story_page(job_id, after=self.after, reports=reports)
            told += [event for event in page if _key(event) not in self.seen]
            if following is None:
                self.seen |= {_key(event) for event in page}
                return told
            self.after, self.seen = following, set()


def _follow_job(client: Client, job_id: str, tail: int | None, output: str, *, reports: bool) -> None:
    """What happened so far, or the last of it, and what happens until the job has ended."""
    reading = _Reading()
    while True:
        ended = client.job(job_id)["state"] in ENDED
        news = reading.news(client, job_id, reports=reports)
        for event in news[-tail:] if tail else news:
            _print(job_id, event, output, named=False)
        if ended:
            return
        tail = None
        time.sleep(_EVERY_S)


def _key(event: StoryEvent) -> Any:
    return event["seq"], event["at"], event["type"], event["text"]


def _follow_all(client: Client, output: str, heard: str) -> None:
    """Every change of a job, as the server tells it."""
    states: dict[str, tuple[str, int]] = {}
    for event in client.events(last_id=heard):
        if event.event == "reset":
            say("some changes were missed; fairlead queue shows how things are")
        if event.event != "job":
            continue
        job: Job = json.loads(event.data)
        if output == "json":
            click.echo(json.dumps(job, allow_nan=False))
            continue
        now = job["state"], job["gpus"]["current"]
        if states.get(job["id"]) == now:
            continue  # its progress, perhaps
        states[job["id"]] = now
        state = click.style(job["state"], fg=_colour(job["state"]))
        reason = why(job)
        told = f"{state} with {gpus_of(job)} GPUs{f': {reason}' if reason else ''}"
        click.echo(f"{moment(time.time())}  job {clean(job['id'])}: {told}")


def _colour(state: str) -> str | None:
    colour = STYLES.get(state, "").removeprefix("bold ")
    return None if colour in ("", "dim") else colour
