"""`fairlead simulate`: one trace, one policy, one answer."""

from __future__ import annotations

import click

from fairlead.cli.errors import ends_on_signals, reports_errors
from fairlead.cli.notes import tell_notes
from fairlead.cli.options import LOAD, REPORT, experiment_options, make_experiment, measured_options
from fairlead.cli.output import (
    OUTPUT,
    complain_if_unfinished,
    print_results,
    progress_bar,
    save_jobs,
    save_page,
    writable,
)
from fairlead.journal import MemoryJournal, save_journal
from fairlead.sim.experiment import run_experiment


@click.command()
@experiment_options
@measured_options
@REPORT
@click.option(
    "--policy",
    default="fifo",
    show_default=True,
    metavar="NAME[:OPTION=VALUE,...]",
    help="A policy's name, or path/to/file.py:Class. `fairlead policies` lists them.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all that is drawn.")
@LOAD
@click.option("--journal", type=click.Path(), metavar="FILE", help="Write everything that happened to a journal.")
@OUTPUT
@reports_errors
@ends_on_signals  # fmt: skip
def simulate(
    trace: str, output: str, report: str | None, journal: str | None, jobs_csv: str | None, **options: object
) -> None:
    """Replay TRACE under one policy and print what would have happened.

    Exits with 1 if jobs remain unfinished, with 2 if the input cannot be used.
    """
    report_to, journal_to = writable(report, apart_from=[trace, journal]), writable(journal, apart_from=[trace])
    jobs_to = writable(jobs_csv, apart_from=[trace, journal, report])
    experiment = make_experiment(trace=trace, **options)  # type: ignore[arg-type]  # click has checked them
    tell_notes([experiment])
    messages = MemoryJournal()
    with progress_bar(f"simulating {experiment.policy}") as progress:
        result = run_experiment(experiment, progress=progress, journal=messages)
    if journal_to is not None:
        save_journal(journal_to, messages)
        click.echo(f"journal: {journal_to}", err=True)
    if report_to is not None:
        save_page(report_to, [result])
    if jobs_to is not None:
        save_jobs(jobs_to, [result])
    print_results([result], output, one=True)
    complain_if_unfinished([result])
