"""`fairlead compare`: one trace under many policies, seeds and loads, side by side."""

from __future__ import annotations

import click

from fairlead.cli.errors import reports_errors
from fairlead.cli.notes import tell_notes
from fairlead.cli.options import REPORT, experiment_options, make_experiment, number_list, policy_list
from fairlead.cli.output import (
    OUTPUT,
    complain_if_unfinished,
    counted,
    print_results,
    progress_bar,
    save_report,
    writable,
)
from fairlead.core.errors import InvalidSpec
from fairlead.plugins import make_policy
from fairlead.sim.experiment import prepare
from fairlead.sim.many import run_many


@click.command()
@experiment_options
@REPORT
@click.option(
    "--policies",
    required=True,
    metavar="A,B,C",
    help="With their options: fifo,tiresias:promote=8,thresholds=3600/7200,easy.",
)
@click.option("--seeds", default="0", show_default=True, metavar="0,1,2", help="Of failures and resampling.")
@click.option("--loads", metavar="0.5,1,2", help="Offered loads, reached by moving arrivals. [default: as in TRACE]")
@click.option("--workers", type=click.IntRange(min=1), help="Parallel processes; as many as there are cores.")
@OUTPUT
@reports_errors  # fmt: skip
def compare(
    trace: str,
    output: str,
    report: str | None,
    policies: str,
    seeds: str,
    loads: str | None,
    workers: int | None,
    **options: object,
) -> None:
    """Replay TRACE under every policy, seed and load, and print the metrics side by side.

    Exits with 1 if jobs remain unfinished in any run, with 2 if the input cannot be used.
    """
    report_to, names = writable(report, apart_from=[trace]), policy_list(policies)
    for name in names:
        make_policy(name)  # a wrong name should not cost the time of the others' runs
    experiments = [
        make_experiment(trace=trace, policy=name, seed=seed, load=load, **options)  # type: ignore[arg-type]
        for load in ([None] if loads is None else number_list(loads, "loads", float))
        for seed in number_list(seeds, "seeds", int)
        for name in names
    ]
    if len({e.seed for e in experiments}) > 1 and not experiments[0].resample and experiments[0].failures_h is None:
        raise InvalidSpec("several seeds would give the same run; add --resample or --failures")
    prepare(experiments[0])  # nor should a broken trace cost a pool of processes
    tell_notes(experiments)
    with progress_bar(f"simulating {counted(len(experiments), 'run')}") as progress:
        results = run_many(experiments, workers=workers, progress=progress)
    if report_to is not None:
        save_report(report_to, results)
    print_results(results, output)
    complain_if_unfinished(results)
