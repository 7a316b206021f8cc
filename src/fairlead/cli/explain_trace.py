"""`fairlead explain TRACE`: one decision of a simulation, in numbers."""

from __future__ import annotations

import difflib
import json
import math

import click

from fairlead.cli.errors import reports_errors
from fairlead.cli.notes import tell_notes
from fairlead.cli.options import LOAD, duration_s, experiment_options, make_experiment
from fairlead.cli.output import counted
from fairlead.cli.table import print_table
from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Plan, Reason
from fairlead.sim.experiment import Experiment, decision_at, prepare
from fairlead.sim.report.wording import duration, listing


@click.command()
@experiment_options
@click.option(
    "--policy", default="pilot", show_default=True, metavar="NAME[:OPTION=VALUE,...]", help="As in `simulate`."
)
@click.option(
    "--at",
    "at_s",
    callback=duration_s,
    default="0",
    metavar="TIME",
    help="Explain the first decision at or after this time: 5400, 90m or 1.5h.",
)
@click.option("--job", metavar="ID", help="Only this job, with everything the decision knows of it.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of failures and resampling.")
@LOAD
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Form.")
@reports_errors  # fmt: skip
def explain_trace(trace: str, at_s: float, job: str | None, output: str, **options: object) -> None:
    """Replay TRACE up to a time, and explain the policy's first decision at or after it.

    For each job: what it gets and why, how fast that makes it relative to one GPU, and what one GPU less or more would
    do to it and to the objective.
    """
    experiment = make_experiment(trace=trace, **options)  # type: ignore[arg-type]  # click has checked them
    tell_notes([experiment])
    view, plan = decision_at(experiment, at_s)
    if job is not None and job not in view.jobs:
        raise InvalidSpec(_absence(job, experiment, view))
    if (asked := moment(at_s)) != (found := moment(view.now)):
        click.echo(f"note: no decision at {asked}; the next one is at {found}, and explained here", err=True)
    reasons = {job_id: plan.reasons[job_id] for job_id in ([job] if job is not None else view.jobs) if plan.reasons}
    if output == "json":
        told = _to_dict(view, plan, reasons) | {"notes": list(prepare(experiment).notes)}
        click.echo(json.dumps(told, indent=2, allow_nan=False))
    elif job is not None:
        _print_one(job, reasons[job])
    else:
        _print_all(view, plan, reasons)


def _absence(job: str, experiment: Experiment, view: Snapshot) -> str:
    """Why a decision says nothing of a job."""
    comes_s = {each.spec.id: each.submit_at for each in prepare(experiment).jobs}
    live = f"live then: {listing(list(view.jobs)) or 'nobody'}"
    if job not in comes_s:
        close = difflib.get_close_matches(job, comes_s, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return f"there is no job {job!r} in {experiment.trace}{hint}"
    if comes_s[job] > view.now:
        return f"job {job} comes at {moment(comes_s[job])}, and the decision is at {moment(view.now)}; {live}"
    return f"job {job} has ended before the decision at {moment(view.now)}; {live}"


def moment(at_s: float) -> str:
    """A time of the trace to the millisecond, and in words where these are easier to read: 36000 s (10h 00m)."""
    exact = f"{at_s:.3f}".rstrip("0").rstrip(".") + "\u00a0s"
    return exact if at_s < 120.0 else f"{exact} ({duration(at_s)})"


def _to_dict(view: Snapshot, plan: Plan, reasons: dict[str, Reason]) -> dict[str, object]:
    jobs = []
    for job_id, reason in reasons.items():
        allocation = plan.allocations.get(job_id)
        numbers = {name: value if math.isfinite(value) else None for name, value in reason.numbers.items()}
        shares = {} if allocation is None else {node: list(gpus) for node, gpus in allocation}
        held = view.jobs[job_id].allocation.total
        said = {"job": job_id, "code": reason.code, "text": reason.text, "why": reason.text}
        evidence = {**numbers, "jobs": list(reason.jobs)}
        jobs.append({**said, "evidence": evidence, "allocation": shares, **numbers, "held": held})
    return {"at_s": view.now, "bound": plan.bound, "jobs": jobs}


def _print_all(view: Snapshot, plan: Plan, reasons: dict[str, Reason]) -> None:
    lines: list[tuple[str, ...]] = [
        ("job", "GPUs", "speed-up", "one less", "objective", "one more", "objective", "why")
    ]
    for job_id, reason in reasons.items():
        allocation = plan.allocations.get(job_id)
        held, gets = view.jobs[job_id].allocation.total, 0 if allocation is None else allocation.total
        cells = [_number(reason, key) for key in ("speedup", "speedup_less", "objective_less")]
        cells += [_number(reason, key) for key in ("speedup_more", "objective_more")]
        gpus = f"{gets}" if held == gets else f"{held} > {gets}"
        # What follows in brackets on a job that has GPUs is in the columns.
        why = reason.text if allocation is None else reason.text.split(" (")[0]
        lines.append((job_id, gpus, *cells, why))
    bound = "" if plan.bound is None else f"; within {plan.bound:.2%} of the best there is"
    print_table(f"decision at {moment(view.now)}: {counted(len(view.jobs), 'job')}{bound}", lines)


def _print_one(job: str, reason: Reason) -> None:
    click.echo(f"{job}: {reason.text}")
    for name, value in reason.numbers.items():
        click.echo(f"  {name:18} {value:.4g}")


def _number(reason: Reason, key: str) -> str:
    value = reason.numbers.get(key)
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:+.3g}" if key.startswith("objective") else f"{value:.2f}"
