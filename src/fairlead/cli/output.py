"""How results look: a table for people, JSON and CSV for programs. Progress and complaints go to standard error."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fairlead.sim import experiment
from fairlead.sim.experiment import Result
from fairlead.sim.report import Run, write_report
from fairlead.sim.report.wording import duration

OUTPUT = click.option(
    "-o", "--output", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True, help="Form."
)


@contextmanager
def progress_bar(title: str) -> Iterator[experiment.Progress]:
    """A bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(
        *columns, TextColumn("left"), TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda share: bar.update(task, completed=share)


def print_results(results: Sequence[Result], output: str, *, one: bool = False) -> None:
    if output == "json":
        rows = [result.to_dict() for result in results]
        click.echo(json.dumps(rows[0] if one else rows, indent=2, allow_nan=False))
    elif output == "csv":
        click.echo(_csv(results), nl=False)
    else:
        Console(soft_wrap=not sys.stdout.isatty()).print(_table(results))


def _csv(results: Sequence[Result]) -> str:
    text = io.StringIO()
    rows = [{k: v for k, v in result.to_dict().items() if not isinstance(v, list)} for result in results]
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _table(results: Sequence[Result]) -> Table:
    first = results[0]
    setting = first.experiment
    title = f"{Path(setting.trace).name} on {setting.cluster or 'its own nodes'}, cadence {setting.cadence}, costs {setting.costs}"
    table = Table(title=title, title_justify="left", title_style="dim")
    many_loads = len({r.experiment.load for r in results}) > 1
    many_seeds = len({r.experiment.seed for r in results}) > 1
    heads = ["policy", *["load"] * many_loads, *["seed"] * many_seeds]
    for head in heads:
        table.add_column(head, no_wrap=True)
    for head in ("jobs", "mean JCT", "p50", "p99", "queueing", "makespan", "worst rho", "unfair", "used", "preempted", "decision"):
        table.add_column(head, justify="right", no_wrap=True)
    for result in results:
        m, e = result.measured.summary, result.experiment
        names = [e.policy, *[f"{e.load:g}"] * many_loads, *[str(e.seed)] * many_seeds]
        table.add_row(
            *names,
            f"{m.jobs}" if not m.unfinished else f"[bold red]{m.jobs - m.unfinished} of {m.jobs}[/]",
            *(duration(value) for value in (m.jct_mean_s, m.jct_p50_s, m.jct_p99_s, m.queue_mean_s, m.makespan_s)),
            "-" if m.rho_worst is None else f"{m.rho_worst:.2f}",
            _percent(m.unfair_share),
            _percent(m.utilisation),
            str(m.preemptions),
            f"{result.decision_ms_mean:.2f} ms",
        )
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def save_report(path: Path, results: Sequence[Result]) -> None:
    setting = results[0].experiment
    write_report(path, [_run(result, results) for result in results], title=Path(setting.trace).name)
    click.echo(f"report: {path}", err=True)


def _run(result: Result, results: Sequence[Result]) -> Run:
    setting = {name: str(value) for name, value in result.to_dict().items() if name.startswith("setting_")}
    return Run(
        label=result.experiment.policy,
        setting={name.removeprefix("setting_"): value for name, value in setting.items()},
        metrics=result.measured.summary,
        extra={"decision_ms_mean": result.decision_ms_mean, "wall_s": result.wall_s},
        jobs=result.measured.jobs,
        timeline=result.measured.timeline,
    )


def complain_if_unfinished(results: Sequence[Result]) -> None:
    """Say it loudly and exit with 1 if any job of any run did not finish."""
    failed = [result for result in results if result.measured.summary.unfinished]
    for result in failed:
        m = result.measured.summary
        some = ", ".join(m.unfinished_ids[:5]) + (", ..." if m.unfinished > 5 else "")
        click.echo(
            f"UNFINISHED: {m.unfinished} of {m.jobs} jobs did not finish under {result.experiment.policy}: {some}. "
            "Its figures cover only the jobs that did.",
            err=True,
        )
    if failed:
        sys.exit(1)
