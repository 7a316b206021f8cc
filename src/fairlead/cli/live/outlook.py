"""What the server foresees, in sentences; and `fairlead eta`."""

from __future__ import annotations

import time

import click

from fairlead.cli.live.completing import JOB_ID
from fairlead.cli.live.connect import talks
from fairlead.cli.live.showing import output_option, print_data
from fairlead.cli.live.wording import amount, clean, clock, counted, gpu_hours, span
from fairlead.client.calls import Client
from fairlead.client.resources import Answer, Forecast


def answered(answer: Answer | None, now: float) -> list[str]:
    """Whether a job that is handed in now can meet its deadline and budget, and when it would run."""
    if not answer:
        return []
    verdict, gpus = clean(answer["verdict"]), answer["gpus"]
    if verdict == "feasible with other GPUs" and gpus is not None:
        verdict = f"feasible with {counted(gpus, 'GPU')}"
    why = clean(answer["why"])
    return [f"{verdict}{f': {why}' if why else ''}", *foreseen(answer["forecast"], now, new=True)]


def foreseen(forecast: Forecast | None, now: float, *, new: bool) -> list[str]:
    """When a job starts and ends, with how sure that is, and what it takes. A new one cannot have started."""
    if not forecast:
        return []
    told = []
    if forecast["starts_at"] is not None:
        past = "starts now" if new else f"started {clock(forecast['starts_at'], now)}"
        told.append(_when("starts", forecast["starts_at"], forecast["starts_p90"], now) or past)
    if forecast["ends_at"] is not None:
        past = f"ended {clock(forecast['ends_at'], now)}"
        told.append(_when("ends", forecast["ends_at"], forecast["ends_p90"], now) or past)
    said = [", ".join(told)] if told else []
    if (hours := forecast.get("gpu_hours")) is not None:
        cost = forecast.get("cost")
        said.append(f"takes {gpu_hours(hours * 3600.0)} GPU-hours" + (f", which cost {amount(cost)}" if cost else ""))
    if why := clean(forecast["why"]):
        said.append(why)
    return said


def _when(comes: str, at: float, p90: float | None, now: float) -> str:
    """Of what is to come; empty if that is past."""
    if at <= now:
        return ""
    late = "" if p90 is None or p90 - at < 1.0 else f"; nine times in ten by {clock(p90, now)}"
    return f"{comes} {clock(at, now)} (in {span(at - now)}{late})"


@click.command()
@JOB_ID
@output_option("table", "json", "yaml")
@talks
def eta(client: Client, job_id: str, output: str) -> None:
    """Tell when a job starts and ends, by rolling the queue forward with the policy that decides."""
    told = client.eta(job_id)
    if output != "table":
        print_data(told, output)
        return
    for sentence in foreseen(told, time.time(), new=False) or ["nothing can be foreseen"]:
        click.echo(sentence)
