"""How results look: a table for people, JSON and CSV for programs. Progress and complaints go to standard error."""

from __future__ import annotations

import csv
import io
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fairlead.cli.comparison import print_comparison
from fairlead.cli.table import console
from fairlead.core.errors import InvalidSpec
from fairlead.sim import experiment, job_table
from fairlead.sim.experiment import Result
from fairlead.sim.report.results import baseline_label, cases, label_of, over_seeds, save_report, setting_of
from fairlead.sim.report.wording import NONE, TABLE, duration
from fairlead.sim.traces.files import write_text

OUTPUT = click.option(
    "-o", "--output", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True, help="Form."
)


#: Without a terminal, a line of progress comes this often.
_LINE_EVERY_S = 15.0


@contextmanager
def progress_bar(title: str) -> Iterator[experiment.Progress]:
    """Progress on standard error: a bar if that is a terminal, else a line now and then."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(title)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda share: bar.update(task, completed=share)


def _lines(title: str) -> experiment.Progress:
    last = time.monotonic()

    def note(share: float) -> None:
        nonlocal last
        if time.monotonic() - last >= _LINE_EVERY_S:
            last = time.monotonic()
            click.echo(f"{title}: {share:.0%} of the jobs have ended", err=True)

    return note


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def print_results(results: Sequence[Result], output: str, *, one: bool = False, baseline: str | None = None) -> None:
    if output == "json":
        rows = _json_rows(results, baseline)
        click.echo(json.dumps(rows[0] if one else rows, indent=2, allow_nan=False))
    elif output == "csv":
        click.echo(csv_of([result.to_dict() for result in results]), nl=False)
    elif one:
        console().print(_sheet(results[0]), crop=False, overflow="ignore", no_wrap=True)
    else:
        title = _title(results[0].experiment) + _told_load(results)
        print_comparison(results, title, baseline=baseline)


def _json_rows(results: Sequence[Result], baseline: str | None) -> list[dict[str, Any]]:
    """One for each run; of several seeds, or where a baseline is named, each with what comes of all its seeds."""
    rows = [result.to_dict() for result in results]
    if baseline is None and len({result.experiment.seed for result in results}) < 2:
        return rows
    label, by_load = baseline_label(results, baseline), {case.load: case for case in cases(results)}
    for row, result in zip(rows, results, strict=True):
        case = by_load.get(result.experiment.load) or by_load[None]
        row["over_seeds"] = over_seeds(case, label_of(result), label)
    return rows


def csv_of(results: Sequence[Mapping[str, Any]]) -> str:
    """A line for each, under the keys of the first; lists and what is nested are left out."""
    text = io.StringIO()
    rows = [{k: v for k, v in result.items() if not isinstance(v, list | tuple | dict)} for result in results]
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _title(setting: experiment.Experiment) -> str:
    where = setting.cluster or "its own nodes"
    shown_elsewhere = ("policy", "cluster", "seed", "load")
    told = [(name, value) for name, value in setting_of(setting).items() if name not in shown_elsewhere]
    return f"{Path(setting.trace).name} on {where}{''.join(f', {_told(*pair)}' for pair in told)}"


def _told(name: str, value: str) -> str:
    """A setting in words: what is switched on, a time, or a value."""
    if value == "True":
        return name.replace("_", " ")
    if name.endswith("_s"):
        return f"{name.removesuffix('_s').replace('_', ' ')} {duration(float(value))}"
    return f"{name.replace('_', ' ')} {value}"


def _told_load(results: Sequence[Result]) -> str:
    """The offered load, for a title: nothing if the runs differ in it, or it is not known."""
    loads = {None if r.offered_load is None else f"{r.offered_load:.2f}" for r in results}
    return f", load {loads.pop()}" if len(loads) == 1 and None not in loads else ""


def _sheet(result: Result) -> Table:
    """Every metric of one run, one a line."""
    table = Table(box=None, show_header=False, title=f"{result.experiment.policy}: {_title(result.experiment)}")
    table.title_justify, table.title_style = "left", "bold"
    figures = result.to_dict()
    for group, rows in TABLE:
        shown = [row for row in rows if figures[row.field] or not row.optional]
        for place, row in enumerate(shown):
            value = figures[row.field]
            table.add_row(group if place == 0 else "", row.label, NONE if value is None else row.form(value))
    decisions = (
        f"{result.decisions:,}, {result.decision_ms_mean:.2f} ms on average, p99 {result.decision_ms_p99:.2f} ms"
    )
    offered = NONE if result.offered_load is None else f"{result.offered_load:.3f}"
    table.add_row("", "offered load", offered)
    table.add_row("Scheduler", "decisions", decisions)
    table.add_row("", "the simulation took", duration(result.wall_s))
    return table


def save_page(path: Path, results: Sequence[Result], *, baseline: str | None = None) -> None:
    save_report(path, results, baseline=baseline)
    click.echo(f"report: {path}", err=True)


def save_jobs(path: Path, results: Sequence[Result]) -> None:
    """One line for each job of each run."""
    write_text(path, job_table.to_csv(results))
    click.echo(f"jobs: {path}", err=True)


def writable(path: str | None, *, apart_from: Sequence[str | None]) -> Path | None:
    """Where to write, so that a link stays one and no other file of the command is lost; found out before the work."""
    if path is None:
        return None
    try:
        return _writable(Path(path), [Path(other) for other in apart_from if other is not None])
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, or what cannot be a path
        raise InvalidSpec(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from None


def _writable(target: Path, others: Sequence[Path]) -> Path:
    if target.resolve() in [other.resolve() for other in others]:
        raise InvalidSpec(f"cannot write {target}: the command uses that file for something else; name another")
    if target.is_dir():
        raise InvalidSpec(f"cannot write {target}: it is a directory; name a file in it")
    if target.exists() and not target.is_file():
        raise InvalidSpec(f"cannot write {target}: it is a device or a pipe; name a file")
    if target.is_symlink():
        target = target.resolve()
    if not target.parent.is_dir():
        raise InvalidSpec(f"cannot write {target}: there is no directory {target.parent}")
    # What takes the file's place is made beside it. Permissions alone do not tell whether that works: see /proc.
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}."):
        return target


def complain_if_unfinished(results: Sequence[Result]) -> None:
    """Say what was left out; say loudly, and exit with 1, if any job of any run did not finish."""
    for reason, count in results[0].left_out.items():
        click.echo(f"note: left out of the trace: {count}, {reason}", err=True)
    if results[0].clipped:
        click.echo(f"note: cut down to the size of the cluster: {results[0].clipped}", err=True)
    whole = [result for result in results if result.experiment.stop == "end"]
    outside = sum(not job.counted and not job.phase.final for result in whole for job in result.jobs)
    if outside:
        click.echo(f"note: {counted(outside, 'job')} that arrived outside the window did not finish", err=True)
    failed = [result for result in results if result.measured.summary.unfinished]
    several = len({result.experiment.trace for result in results}) > 1
    for result in failed:
        m, e = result.measured.summary, result.experiment
        some = ", ".join(m.unfinished_ids[:5]) + (" and more" if m.unfinished > 5 else "")
        where = f" on {Path(e.trace).name}" if several else ""
        click.echo(
            f"UNFINISHED: {m.unfinished} of {counted(m.jobs, 'job')} did not finish under {e.policy}{where}: {some}. "
            "Its figures cover only the jobs that did.",
            err=True,
        )
    if failed:
        sys.exit(1)
