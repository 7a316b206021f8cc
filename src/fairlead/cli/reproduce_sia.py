"""`fairlead reproduce sia`: jobs on three types of GPUs, next to the paper's headline figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.markup import escape

from fairlead.cli.errors import ends_on_signals, reports_errors
from fairlead.cli.notes import tell_notes
from fairlead.cli.options import number_list, policy_list
from fairlead.cli.output import OUTPUT, complain_if_unfinished, counted, csv_of, progress_bar
from fairlead.cli.table import print_table
from fairlead.core.errors import InvalidSpec
from fairlead.sim import reproduction_sia as paper
from fairlead.sim.experiment import prepare
from fairlead.sim.many import run_many
from fairlead.sim.report.wording import NONE, duration, ratio
from fairlead.sim.reproduction import Variant, mean_of
from fairlead.sim.reproduction_sia import SiaRerun
from fairlead.sim.reproduction_sia_data import SiaData, SiaWorkload, read_sia_data


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The artifact's directory sia-simulator, with traces/ and workloads/. [default: generated jobs]",
)
@click.option(
    "--workloads", metavar="1,3,saturn/2", help="Of the data; numbers alone are Philly's. [default: Philly's]"
)
@click.option("--seeds", metavar="0,1,2", help="Of generated jobs. [default: 0]")
@click.option(
    "--policies", metavar="A,B,C", help=f"With their options, as in `compare`. [default: {','.join(paper.POLICIES)}]"
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help=f"How many to generate [default: {paper.JOBS}], or the first of the data.",
)
@click.option(
    "--cluster", default=paper.CLUSTER, show_default=True, metavar="SPEC", help="Its types are those of the profiles."
)
@click.option("--workers", type=click.IntRange(min=1), help="Parallel processes; as many as there are cores.")
@OUTPUT
@reports_errors
@ends_on_signals  # fmt: skip
def sia(
    data: Path | None,
    workloads: str | None,
    seeds: str | None,
    policies: str | None,
    jobs: int | None,
    cluster: str,
    workers: int | None,
    output: str,
) -> None:
    """Sia (SOSP '23): 64 GPUs of three types, 20 jobs an hour, decisions every 60 s.

    With --data the artifact's workloads run under its simulator's rules, next to what that simulator gave. Without it
    the jobs are generated: then only ratios between policies compare with what was published. Exits with 1 if jobs
    remain unfinished in any run, with 2 if the input cannot be used.
    """
    names = paper.POLICIES if policies is None else policy_list(policies)
    if data is None:
        if workloads is not None:
            raise InvalidSpec("--workloads are those of the paper's data; name it with --data DIR, or use --seeds")
        numbers = list(dict.fromkeys(number_list("0" if seeds is None else seeds, "seeds", int)))
        if min(numbers) < 0:
            raise InvalidSpec(f"--seeds is {seeds!r}; expected numbers of at least 0")
        variants = paper.sia_variants(names, paper.sia_rules(cluster=cluster, jobs=None), released=False)
        with TemporaryDirectory(prefix="fairlead-sia-") as directory:
            made = paper.write_workloads(Path(directory), numbers, jobs=jobs or paper.JOBS, cluster=cluster)
            reruns = _run(made, variants, None, workers)
    else:
        if seeds is not None:
            raise InvalidSpec("--seeds are of generated jobs; leave --data out, or choose --workloads of it")
        found = read_sia_data(data)
        variants = paper.sia_variants(names, paper.sia_rules(cluster=cluster, jobs=jobs), released=True)
        chosen = found.choose([] if workloads is None else [name.strip() for name in workloads.split(",")])
        reruns = _run(chosen, variants, found, workers)
    _print(reruns, output)
    complain_if_unfinished([rerun.result for rerun in reruns])


def _run(
    workloads: Sequence[SiaWorkload], variants: Sequence[Variant], data: SiaData | None, workers: int | None
) -> list[SiaRerun]:
    """Every policy on every workload, in parallel."""
    experiments = [paper.sia_experiment(workload, variant, data=data) for workload in workloads for variant in variants]
    for place in range(0, len(experiments), len(variants)):
        prepare(experiments[place])  # a broken file should not cost the time of the others' runs
    tell_notes(experiments)
    with progress_bar(f"simulating {counted(len(experiments), 'run')}") as progress:
        results = run_many(experiments, workers=workers, progress=progress)
    return paper.sia_reruns(workloads, variants, results)


# -- how it looks ----------------------------------------------------------------------------------------------------


def _print(reruns: Sequence[SiaRerun], output: str) -> None:
    rows = [rerun.to_dict() for rerun in reruns]
    if output == "json":
        click.echo(json.dumps(rows, indent=2, allow_nan=False))
    elif output == "csv":
        click.echo(csv_of(rows), nl=False)
    else:
        _show_runs(reruns)
        _show_ratios(reruns)
        total_s = sum(rerun.result.cpu_s for rerun in reruns)
        click.echo(f"{counted(len(reruns), 'run')} took {duration(total_s)} of CPU time in all.")


def _show_runs(reruns: Sequence[SiaRerun]) -> None:
    heads = ["workload", "policy", "mean JCT", "over artifact", "over sia", "median", "p99", "makespan"]
    lines = [[*heads, "restarts/job", "worst rho", "decision", "CPU"]]
    for rerun in reruns:
        m, result = rerun.result.measured.summary, rerun.result
        lines.append(
            [
                rerun.workload.name,
                escape(f"{rerun.variant.label} (oracle)" if result.oracle else rerun.variant.label),
                _shown(m.jct_mean_s, lambda value: f"{value:,.0f} s"),
                _shown(rerun.over_artifact("jct_mean_s"), ratio),
                _shown(rerun.ratio, ratio),
                _shown(m.jct_p50_s, duration),
                _shown(m.jct_p99_s, duration),
                _shown(m.makespan_s, duration),
                _shown(m.restarts_per_job, ratio),
                _shown(m.rho_worst, ratio),
                f"{result.decision_ms_mean:.0f} ms",
                f"{result.cpu_s:.0f} s",
            ]
        )
    rules = reruns[0].variant.rules
    costs = reruns[0].result.experiment.costs
    print_table(f"Sia (SOSP '23), {rules.cluster}, cadence {rules.cadence}, costs {costs}", lines, heads=2)


def _show_ratios(reruns: Sequence[SiaRerun]) -> None:
    """Each policy over all workloads beside the paper, and what the paper has that we have not."""
    lines = [
        ["policy", "mean JCT over artifact", "over sia", "the paper's", "mean JCT in the paper", "p99 in the paper"]
    ]
    by_label: dict[str, list[SiaRerun]] = {}
    for rerun in reruns:
        by_label.setdefault(rerun.variant.label, []).append(rerun)
    for label, runs in by_label.items():
        means = mean_of(run.over_artifact("jct_mean_s") for run in runs), mean_of(run.ratio for run in runs)
        shown = [_shown(mean, ratio) for mean in means]
        lines.append([escape(label), *shown, *_published(runs[0].variant.against)])
    named = {rerun.variant.against for rerun in reruns}
    lines += [[name, NONE, NONE, *_published(name)] for name in paper.PUBLISHED if name not in named]
    whose = "which ran other jobs on other GPUs" if reruns[0].workload.seed is not None else "over all its workloads"
    print_table(f"Next to the paper, {whose}: only the ratios compare", lines)


def _published(name: str) -> list[str]:
    """Ratio, mean and 99th percentile."""
    if name not in paper.PUBLISHED:
        return [NONE] * 3
    mean_s, p99_s = paper.PUBLISHED[name]
    return [ratio(mean_s / paper.PUBLISHED["sia"][0]), duration(mean_s), duration(p99_s)]


def _shown(value: float | None, form: Callable[[float], str]) -> str:
    return NONE if value is None else form(value)
