"""`fairlead reproduce shockwave`: its canonical trace under our policies, next to the artifact's figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.markup import escape

from fairlead.cli.errors import ends_on_signals, reports_errors
from fairlead.cli.options import policy_list
from fairlead.cli.output import OUTPUT, counted, csv_of, progress_bar
from fairlead.cli.table import print_table
from fairlead.core.errors import InvalidSpec
from fairlead.sim import reproduction_shockwave as paper
from fairlead.sim.report.wording import NONE, duration
from fairlead.sim.reproduction_shockwave import Entrant, ShockwaveRun
from fairlead.sim.shockwave_workload import write_shockwave_workload


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The artifact's jobs-120.trace, tacc_throughputs.json, batch_schedules.json and published figures. "
    "[default: generated jobs]",
)
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE", help="Another trace of the artifact's kind.")
@click.option("--seed", type=click.IntRange(min=0), help="Of generated jobs. [default: 0]")
@click.option("--jobs", type=click.IntRange(min=1), help=f"How many to generate. [default: {paper.JOBS}]")
@click.option("--gpus", type=click.IntRange(min=1), default=paper.GPUS, show_default=True, help="V100s of the cluster.")
@click.option(
    "--semantics",
    type=click.Choice([*paper.SEMANTICS, "both"]),
    default="event",
    show_default=True,
    help="Our simulator, event by event; the rounds of the artifact's; or one after the other.",
)
@click.option(
    "--policies", metavar="A,B,C", help="By the artifact's names, or with options as in `compare`. [default: all]"
)
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Parallel processes.")
@OUTPUT
@reports_errors
@ends_on_signals  # fmt: skip
def shockwave(
    data: Path | None,
    trace: Path | None,
    seed: int | None,
    jobs: int | None,
    gpus: int,
    semantics: str,
    policies: str | None,
    workers: int,
    output: str,
) -> None:
    """Shockwave (NSDI '23): 120 jobs whose batch changes, 32 V100s, rounds of 120 s, 20 s for each start.

    With --data these are the artifact's jobs: under the semantics `rounds` the simulator has its rules, and a policy
    that it has too gives the published completion times. Without it they are generated. Exits with 1 if jobs remain
    unfinished in any run, with 2 if the input cannot be used.
    """
    names = [] if policies is None else policy_list(policies)
    chosen = paper.SEMANTICS if semantics == "both" else (semantics,)
    pairs = [(entrant, each) for each in chosen for entrant in paper.entrants(names, each)]
    if data is not None:
        if seed is not None or jobs is not None:
            raise InvalidSpec("--seed and --jobs are of generated jobs; leave --data out, or name another --trace")
        runs = _run_all(data, trace, gpus, pairs, workers)
    elif trace is not None:
        raise InvalidSpec(
            "--trace needs the throughput table and batch schedules of the artifact; name them with --data"
        )
    else:
        with TemporaryDirectory(prefix="fairlead-shockwave-") as made:
            write_shockwave_workload(Path(made), seed=seed or 0, jobs=jobs or paper.JOBS)
            runs = _run_all(Path(made), None, gpus, pairs, workers)
    _print(runs, output)
    unfinished = sum(run.unfinished for run in runs)
    if unfinished:
        click.echo(f"{counted(unfinished, 'job')} did not finish", err=True)
        raise click.exceptions.Exit(1)


def _run_all(
    data: Path, trace: Path | None, gpus: int, pairs: Sequence[tuple[Entrant, str]], workers: int
) -> list[ShockwaveRun]:
    paper.read_shockwave_data(data, trace)  # a broken file is told before anything runs
    tasks = [(data, trace, entrant, gpus, semantics) for entrant, semantics in pairs]
    runs: list[ShockwaveRun] = []
    with progress_bar(f"simulating {counted(len(tasks), 'run')}") as progress:
        for run in _results(tasks, workers):
            runs.append(run)
            progress(len(runs) / len(tasks))
    return runs


Task = tuple[Path, Path | None, Entrant, int, str]


def _results(tasks: Sequence[Task], workers: int) -> Iterator[ShockwaveRun]:
    """In order, each as soon as it is there."""
    if workers == 1 or len(tasks) == 1:
        yield from map(_run, tasks)
    else:
        with ProcessPoolExecutor(min(workers, len(tasks))) as pool:
            yield from pool.map(_run, tasks)


def _run(task: Task) -> ShockwaveRun:
    directory, trace, entrant, gpus, semantics = task
    return paper.rerun(paper.read_shockwave_data(directory, trace), entrant, gpus=gpus, semantics=semantics)


# -- how it looks ----------------------------------------------------------------------------------------------------

#: Heads, what a row has of each, and how it is shown.
_COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("makespan", "makespan_s", lambda value: f"{value:,.0f} s"),
    ("mean JCT", "jct_mean_s", lambda value: f"{value:,.0f} s"),
    ("worst rho", "rho_worst", lambda value: f"{value:.3f}"),
    ("unfair", "unfair_share", lambda value: f"{100 * value:.2f} %"),
    ("busy", "utilisation", lambda value: f"{100 * value:.1f} %"),
)


def _print(runs: Sequence[ShockwaveRun], output: str) -> None:
    rows = [run.to_dict() for run in runs]
    if output == "json":
        click.echo(json.dumps(rows, indent=2, allow_nan=False))
    elif output == "csv":
        click.echo(csv_of(rows), nl=False)
    else:
        for semantics in dict.fromkeys(run.semantics for run in runs):
            _show([run for run in runs if run.semantics == semantics])
        click.echo(f"{counted(len(runs), 'run')} took {duration(sum(run.cpu_s for run in runs))} of CPU time in all.")


def _show(runs: Sequence[ShockwaveRun]) -> None:
    """Each policy's own figure, and the published one after it where there is one."""
    lines = [["policy", "here", *(head for head, _, _ in _COLUMNS), "jobs as published", "CPU"]]
    for run in runs:
        row, off_s = run.to_dict(), run.differences_s
        cells = []
        for _, name, form in _COLUMNS:
            own, published = (NONE if row[key] is None else form(row[key]) for key in (name, f"published_{name}"))
            cells.append(own if published == NONE else f"{own} ({published})")
        same = NONE if off_s is None else f"{sum(off == 0.0 for off in off_s)} of {len(off_s)}"
        lines.append([escape(run.entrant.name), escape(run.policy), *cells, same, f"{run.cpu_s:.1f} s"])
    rules = "the artifact's rounds" if runs[0].semantics == "rounds" else "event by event"
    note = "; published figures in brackets" if any(run.published for run in runs) else ""
    print_table(f"Shockwave (NSDI '23), {runs[0].gpus} V100s, {rules}{note}", lines, heads=2)
