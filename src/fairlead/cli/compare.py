"""`fairlead compare`: one trace under many policies, seeds and loads, side by side."""

from __future__ import annotations

from pathlib import Path

import click

from fairlead.cli.errors import ends_on_signals, reports_errors
from fairlead.cli.notes import tell_notes
from fairlead.cli.options import (
    REPORT,
    experiment_options,
    make_experiment,
    measured_options,
    number_list,
    policy_list,
)
from fairlead.cli.output import (
    OUTPUT,
    complain_if_unfinished,
    counted,
    print_results,
    progress_bar,
    save_jobs,
    save_page,
    writable,
)
from fairlead.cli.run_cache import KeptRuns, cache_of, cache_options
from fairlead.core.errors import InvalidSpec
from fairlead.plugins import make_policy
from fairlead.sim.experiment import NAMED, Inputs, prepare
from fairlead.sim.many import run_many


@click.command()
@experiment_options
@measured_options
@REPORT
@click.option(
    "--policies",
    required=True,
    metavar="A,B,C",
    help="With their options: fifo,tiresias:promote=8,thresholds=3600/7200,easy.",
)
@click.option("--seeds", default="0", show_default=True, metavar="0,1,2", help="Of all that is drawn.")
@click.option(
    "--loads",
    metavar="0.5,1,2",
    help="Offered loads, reached by moving arrivals; a low one is not an idle cluster: sessions of jobs still come "
    "together. [default: as in TRACE]",
)
@click.option("--baseline", metavar="POLICY", help="Of --policies, the one the others are compared with: the first.")
@click.option("--workers", type=click.IntRange(min=1), help="Parallel processes; as many as there are cores.")
@cache_options
@OUTPUT
@reports_errors
@ends_on_signals  # fmt: skip
def compare(
    trace: str,
    output: str,
    report: str | None,
    jobs_csv: str | None,
    policies: str,
    baseline: str | None,
    seeds: str,
    loads: str | None,
    workers: int | None,
    no_cache: bool,
    cache_dir: Path | None,
    **options: object,
) -> None:
    """Replay TRACE under every policy, seed and load, and print the metrics side by side.

    Exits with 1 if jobs remain unfinished in any run, with 2 if the input cannot be used, and with 130 after Ctrl-C.
    Finished runs are kept: the same command, or one that shares runs with it, continues with those.
    """
    report_to, names = writable(report, apart_from=[trace]), policy_list(policies)
    jobs_to = writable(jobs_csv, apart_from=[trace, report])
    if baseline is not None and baseline not in names:
        raise InvalidSpec(f"--baseline is {baseline!r}; expected one of --policies: {', '.join(names)}")
    for name in names:
        make_policy(name)  # a wrong name should not cost the time of the others' runs
    experiments = [
        make_experiment(trace=trace, policy=name, seed=seed, load=load, **options)  # type: ignore[arg-type]
        for load in ([None] if loads is None else number_list(loads, "loads", float))
        for seed in number_list(seeds, "seeds", int)
        for name in names
    ]
    if len({e.seed for e in experiments}) > 1 and not experiments[0].by_chance:
        raise InvalidSpec(
            "several seeds would give the same run; add --resample or --failures (or --noise or --estimate-error)"
        )
    prepare(experiments[0])  # nor should a broken trace cost a pool of processes
    tell_notes(experiments)
    kept = KeptRuns(experiments, cache_of(no_cache=no_cache, cache_dir=cache_dir))
    kept.tell()
    with kept.told_when_interrupted(), progress_bar(f"simulating {counted(len(experiments), 'run')}") as progress:
        inputs = [Inputs(NAMED.trace_of(experiments[0]))] * len(experiments)  # all of one moment, if it still grows
        results = run_many(
            experiments, workers=workers, progress=progress, done=kept.done, keep=kept.keep, inputs=inputs
        )
    if report_to is not None:
        save_page(report_to, results, baseline=baseline)
    if jobs_to is not None:
        save_jobs(jobs_to, results)
    print_results(results, output, baseline=baseline)
    complain_if_unfinished(results)
