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
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fairlead.core.errors import InvalidSpec
from fairlead.sim import experiment
from fairlead.sim.experiment import Result
from fairlead.sim.report import Run, write_report
from fairlead.sim.report.wording import NONE, TABLE, duration

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


def print_results(results: Sequence[Result], output: str, *, one: bool = False) -> None:
    if output == "json":
        rows = [result.to_dict() for result in results]
        click.echo(json.dumps(rows[0] if one else rows, indent=2, allow_nan=False))
    elif output == "csv":
        click.echo(csv_of([result.to_dict() for result in results]), nl=False)
    elif one:
        _console().print(_sheet(results[0]), crop=False, overflow="ignore", no_wrap=True)
    else:
        lines, heads = _lines_of(results)
        print_table(_title(results[0].experiment) + _told_load(results), lines, heads=heads)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 500)  # a pipe has no width to fit into


def print_table(title: str, lines: Sequence[Sequence[str]], *, heads: int = 1) -> None:
    """Headings, then one run a line; or upright, one run a column, for a narrow terminal.

    `heads` columns say what a run is, the others what came of it.
    """
    console = _console()
    table = _grid(title, lines, heads=heads)
    if table.__rich_measure__(console, console.options.update(max_width=10_000)).maximum > console.width:
        table = _grid(title, list(zip(*lines, strict=True)), heads=1)
    console.print(table, crop=False, overflow="ignore", no_wrap=True)


def _grid(title: str, lines: Sequence[Sequence[str]], *, heads: int) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for place, heading in enumerate(lines[0]):
        table.add_column(heading, justify="left" if place < heads else "right", no_wrap=True)
    for line in lines[1:]:
        table.add_row(*line)
    return table


def csv_of(results: Sequence[Mapping[str, Any]]) -> str:
    """A line for each, under the keys of the first; lists are left out."""
    text = io.StringIO()
    rows = [{k: v for k, v in result.items() if not isinstance(v, list | tuple)} for result in results]
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _title(setting: experiment.Experiment) -> str:
    where = setting.cluster or "its own nodes"
    shown_elsewhere = ("policy", "cluster", "seed", "load")
    told = [(name, value) for name, value in _setting(setting).items() if name not in shown_elsewhere]
    more = "".join(f", {name.replace('_', ' ') if value == 'True' else f'{name} {value}'}" for name, value in told)
    return f"{Path(setting.trace).name} on {where}{more}"


def _plain(number: float | None) -> str:
    return NONE if number is None else f"{number:g}"


def _told_load(results: Sequence[Result]) -> str:
    """The offered load, for a title: nothing if the runs differ in it, or it is not known."""
    loads = {None if r.offered_load is None else f"{r.offered_load:.2f}" for r in results}
    return f", load {loads.pop()}" if len(loads) == 1 and None not in loads else ""


def _label(result: Result) -> str:
    return f"{result.experiment.policy} (oracle)" if result.oracle else result.experiment.policy


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


#: What a comparison shows of each run: heading and metric.
_COLUMNS = (
    ("mean JCT", "jct_mean_s"),
    ("median", "jct_p50_s"),
    ("p99", "jct_p99_s"),
    ("no GPUs", "queue_mean_s"),
    ("makespan", "makespan_s"),
    ("worst rho", "rho_worst"),
    ("unfair", "unfair_share"),
    ("in use", "utilisation"),
    ("restarts/job", "restarts_per_job"),
)


def _lines_of(results: Sequence[Result]) -> tuple[list[list[str]], int]:
    """The main metrics of many runs, for `print_table`, and how many columns say which run it is."""
    forms = {row.field: row.form for _, rows in TABLE for row in rows}
    loads, seeds = {r.experiment.load for r in results}, {r.experiment.seed for r in results}
    heads = ["policy", *["load"] * (len(loads) > 1), *["seed"] * (len(seeds) > 1)]
    lines = [[*heads, "jobs", *(heading for heading, _ in _COLUMNS), "decision"]]
    for result in results:
        e, figures = result.experiment, result.to_dict()
        jobs, left = figures["jobs"], figures["unfinished"]
        lines.append(
            [
                *(_label(result), *[_plain(e.load)] * (len(loads) > 1), *[str(e.seed)] * (len(seeds) > 1)),
                f"[bold red]{jobs - left} of {jobs}[/]" if left else str(jobs),
                *(NONE if figures[name] is None else forms[name](figures[name]) for _, name in _COLUMNS),
                f"{result.decision_ms_mean:.2f} ms",
            ]
        )
    return lines, len(heads)


def save_report(path: Path, results: Sequence[Result]) -> None:
    runs = [
        Run.of(
            result.measured,
            label=_label(result),
            oracle=result.oracle,
            setting=_setting(result.experiment),
            extra={"decision_ms_mean": result.decision_ms_mean, "wall_s": result.wall_s},
        )
        for result in results
    ]
    write_report(path, runs, title=Path(results[0].experiment.trace).name)
    click.echo(f"report: {path}", err=True)


def _setting(run: experiment.Experiment) -> dict[str, str]:
    """What the report says of a run: always where, when and at what cost; the rest if it is not the default."""
    always = ("cluster", "cadence", "costs", "seed", "load")
    return {
        f.name: str(value)
        for f in fields(run)
        if (value := getattr(run, f.name)) is not None and (f.name in always or value not in (f.default, run.trace))
    }


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
