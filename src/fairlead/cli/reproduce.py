"""`fairlead reproduce`: a paper's experiment next to its published figures. One subcommand for each paper."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.markup import escape

from fairlead.cli.errors import ends_on_signals, reports_errors
from fairlead.cli.notes import tell_notes
from fairlead.cli.options import number_list, policy_list
from fairlead.cli.output import OUTPUT, complain_if_unfinished, counted, csv_of, progress_bar, writable
from fairlead.cli.reproduce_elasticity import elasticity
from fairlead.cli.reproduce_gavel import gavel
from fairlead.cli.reproduce_shockwave import shockwave
from fairlead.cli.reproduce_sia import sia
from fairlead.cli.table import print_table
from fairlead.core.errors import InvalidSpec
from fairlead.sim import reproduction as paper
from fairlead.sim.experiment import prepare
from fairlead.sim.many import run_many
from fairlead.sim.report import Run, write_report
from fairlead.sim.report.wording import NONE, duration, listing, percent, ratio
from fairlead.sim.reproduction import Rerun, Variant, by_label, mean_of


@click.group()
def reproduce() -> None:
    """Rerun a paper's experiment next to its published figures.

    The papers' data is not ours to ship; each subcommand says where it comes from.
    """


reproduce.add_command(gavel)
reproduce.add_command(sia)
reproduce.add_command(elasticity)
reproduce.add_command(shockwave)


@reproduce.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The artifact's data: workloads/, profiles/ and, if there, published_jct.json.",
)
@click.option("--workloads", metavar="1,3,6", help="By number. [default: all there are]")
@click.option(
    "--policies", metavar="A,B,C", help=f"With their options, as in `compare`. [default: {','.join(paper.POLICIES)}]"
)
@click.option("--levers", is_flag=True, help="Instead of policies: what each lever of pilot gives, and all together.")
@click.option(
    "--cluster",
    default=paper.CLUSTER,
    show_default=True,
    metavar="SPEC",
    help="Another one than the paper's has no published figures.",
)
@click.option("--cadence", metavar="WHEN", help=f"60s, event or event+60s. [default: {paper.CADENCE}]")
@click.option(
    "--restart-s",
    type=click.FloatRange(min=0.0),
    default=paper.RESTART_S,
    show_default=True,
    metavar="SECONDS",
    help="What every start of a job takes.",
)
@click.option("--in-place", is_flag=True, help="Jobs that adapt do so without a restart.")
@click.option(
    "--rescale-s",
    type=click.FloatRange(min=0.0),
    default=paper.RESCALE_S,
    show_default=True,
    metavar="SECONDS",
    help="The pause of a change in place.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Only the first so many; fewer than all have no published figures."
)
@click.option("--workers", type=click.IntRange(min=1), help="Parallel processes; as many as there are cores.")
@click.option("--report", type=click.Path(), metavar="FILE", help="Write an HTML page with plots.")
@OUTPUT
@reports_errors
@ends_on_signals  # fmt: skip
def pollux(
    data: Path | None,
    workloads: str | None,
    policies: str | None,
    levers: bool,
    in_place: bool,
    rescale_s: float,
    cluster: str,
    cadence: str | None,
    restart_s: float,
    jobs: int | None,
    workers: int | None,
    report: str | None,
    output: str,
) -> None:
    """Pollux (OSDI '21): 160 jobs on 16 nodes of four GPUs, decisions every 60 s, restarts of 30 s.

    Tiresias and Optimus are the artifact's, job by job. Pollux and all other policies are compared with the mean that
    the artifact has of Pollux. Exits with 1 if jobs remain unfinished in any run, with 2 if the input cannot be used.
    """
    found = paper.read_pollux_data(data)
    numbers = [] if workloads is None else list(dict.fromkeys(number_list(workloads, "workloads", int)))
    if numbers and min(numbers) < 0:
        raise InvalidSpec(f"--workloads is {workloads!r}; expected numbers of at least 0, as in workload-N.csv")
    chosen = found.choose(numbers)
    if levers and (policies is not None or cadence is not None or in_place):
        raise InvalidSpec("--levers chooses policies, cadence and changes in place itself; leave those options out")
    rules = paper.pollux_rules(
        cluster=cluster,
        cadence=paper.CADENCE if cadence is None else cadence,
        restart_s=restart_s,
        rescale_s=rescale_s if in_place else None,
        jobs=jobs,
    )
    if levers:
        variants = paper.pollux_levers(rules, rescale_s=rescale_s)
    else:
        variants = paper.pollux_variants(paper.POLICIES if policies is None else policy_list(policies), rules)
    report_to = writable(report, apart_from=[*map(str, chosen.values()), str(found.directory / paper.PUBLISHED_NAME)])
    reruns = _run(found, list(chosen), variants, workers)
    if report_to is not None:
        _save_report(report_to, reruns)
    _print(reruns, output, _show_levers if levers else _show_policies)
    complain_if_unfinished([rerun.result for rerun in reruns])


def _run(
    data: paper.PolluxData, workloads: Sequence[int], variants: Sequence[Variant], workers: int | None
) -> list[Rerun]:
    """Every variant on every workload, in parallel."""
    pairs = [(workload, variant) for workload in workloads for variant in variants]
    experiments = [paper.pollux_experiment(data, workload, variant) for workload, variant in pairs]
    for place in range(0, len(experiments), len(variants)):
        paper.check_room(Path(experiments[place].trace), variants[0].rules)
        prepare(experiments[place])  # a broken file should not cost the time of the others' runs
    tell_notes(experiments)
    with progress_bar(f"simulating {counted(len(experiments), 'run')}") as progress:
        results = run_many(experiments, workers=workers, progress=progress)
    return [paper.pollux_rerun(data, *pair, result) for pair, result in zip(pairs, results, strict=True)]


# -- how it looks ----------------------------------------------------------------------------------------------------


def _print(reruns: Sequence[Rerun], output: str, show: Callable[[Sequence[Rerun]], None]) -> None:
    rows = [rerun.to_dict() for rerun in reruns]
    if output == "json":
        click.echo(json.dumps(rows, indent=2, allow_nan=False))
    elif output == "csv":
        click.echo(csv_of(rows), nl=False)
    else:
        show(reruns)
        for line in _unpublished(reruns):
            click.echo(line)
        click.echo(_effort(reruns))


def _unpublished(reruns: Sequence[Rerun]) -> list[str]:
    """Why there is nothing to compare with, one line for each reason."""
    found: dict[str, list[Rerun]] = {}
    for rerun in reruns:
        if rerun.unpublished:
            found.setdefault(rerun.unpublished, []).append(rerun)
    return [f"No published figures on {_workloads(there)}: {why}." for why, there in found.items()]


#: Columns that stand for a comparison with what was published.
_COMPARING = ("published", "reduction", "ratio", "jobs as published")


def _compared(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """Without those columns in which nothing is compared."""
    heads, rows = lines[0], lines[1:]
    kept = [
        k for k, head in enumerate(heads) if head not in _COMPARING or any(row[k] not in (NONE, "") for row in rows)
    ]
    return [[line[k] for k in kept] for line in lines]


def _show_policies(reruns: Sequence[Rerun]) -> None:
    """Each run next to its published figure, then each policy over all workloads."""
    lines = [
        [
            *("workload", "policy", "published", "mean JCT", "reduction", "median", "p99", "makespan"),
            *("restarts/job", "rescales/job", "CPU", "jobs as published"),
        ]
    ]
    for rerun in reruns:
        m, off_s = rerun.result.measured.summary, rerun.differences_s
        lines.append(
            [
                str(rerun.workload),
                escape(_label(rerun)),
                _shown(None if rerun.published is None else rerun.published.jct_mean_s, _seconds),
                _shown(m.jct_mean_s, _seconds),
                _shown(rerun.reduction, _percent),
                _shown(m.jct_p50_s, duration),
                _shown(m.jct_p99_s, duration),
                _shown(m.makespan_s, duration),
                _shown(m.restarts_per_job, ratio),
                ratio(m.rescales / m.jobs),
                f"{rerun.result.cpu_s:.0f} s",
                "" if off_s is None else f"{sum(off == 0.0 for off in off_s.values())} of {len(off_s)}",
            ]
        )
    print_table(f"Pollux (OSDI '21), {_workloads(reruns)}, {_how(reruns)}", _compared(lines), heads=2)
    if all(rerun.yardstick_s is None for rerun in reruns):
        return
    over = [["policy", "ratio", "reduction"]]
    for runs in by_label(reruns).values():
        mean = mean_of(run.ratio for run in runs)
        over.append([escape(_label(runs[0])), _shown(mean, _three), _shown(_reduction(mean), _percent)])
    print_table(f"Mean JCT over Pollux's published one, averaged over {_workloads(reruns)}", over)


def _show_levers(reruns: Sequence[Rerun]) -> None:
    """Each variant of the flagship, averaged over the workloads."""
    lines = [
        [
            *("policy", "cadence", "changes", "ratio", "reduction", "mean JCT", "median", "p99"),
            *("restarts/job", "rescales/job", "CPU"),
        ]
    ]
    for label, runs in by_label(reruns).items():
        rules, metrics = runs[0].variant.rules, [run.result.measured.summary for run in runs]
        mean = mean_of(run.ratio for run in runs)
        lines.append(
            [
                escape(label),
                rules.cadence,
                "restart" if rules.rescale_s is None else "in place",
                _shown(mean, _three),
                _shown(_reduction(mean), _percent),
                _shown(mean_of(run.jct_mean_s for run in runs), _seconds),
                _shown(mean_of(m.jct_p50_s for m in metrics), duration),
                _shown(mean_of(m.jct_p99_s for m in metrics), duration),
                _shown(mean_of(m.restarts_per_job for m in metrics), ratio),
                _shown(mean_of(m.rescales / m.jobs for m in metrics), ratio),
                f"{sum(run.result.cpu_s for run in runs) / len(runs):.0f} s",
            ]
        )
    ratios = "" if all(rerun.yardstick_s is None for rerun in reruns) else "; ratio: to Pollux's published mean JCT"
    print_table(f"Means over {_workloads(reruns)}{ratios}", _compared(lines), heads=3)


def _shown(value: float | None, form: Callable[[float], str]) -> str:
    return NONE if value is None else form(value)


def _percent(share: float) -> str:
    """One digit always: what a column of small differences is read for."""
    return f"{100.0 * share:.1f} %"


def _seconds(value: float) -> str:
    return f"{value:,.0f} s"


def _reduction(mean: float | None) -> float | None:
    return None if mean is None else 1.0 - mean


def _three(value: float) -> str:
    return f"{value:.3f}"


def _label(rerun: Rerun) -> str:
    return f"{rerun.variant.label} (oracle)" if rerun.result.oracle else rerun.variant.label


def _workloads(reruns: Sequence[Rerun]) -> str:
    numbers = list(dict.fromkeys(str(rerun.workload) for rerun in reruns))
    return f"workload{'s' * (len(numbers) > 1)} {listing(numbers, 20)}"


def _how(reruns: Sequence[Rerun]) -> str:
    """The rules of those that may do the most."""
    rules = max((rerun.variant.rules for rerun in reruns), key=lambda rules: rules.rescale_s is not None)
    return f"{rules.cluster}, cadence {rules.cadence}, costs {rules.costs}"


def _effort(reruns: Sequence[Rerun]) -> str:
    total_s, (low, high) = sum(rerun.result.cpu_s for rerun in reruns), paper.REFERENCE_CPU_MIN
    return (
        f"{counted(len(reruns), 'run')} took {duration(total_s)} of CPU time in all. "
        f"The artifact's simulator takes {low} to {high} CPU minutes for one workload under Pollux."
    )


def _save_report(path: Path, reruns: Sequence[Rerun]) -> None:
    """One page: a case for each workload, and a headline over all of them."""
    runs = []
    for rerun in reruns:
        rules, published = rerun.variant.rules, rerun.published
        result = rerun.result
        extra: dict[str, float | None] = {"decision_ms_mean": result.decision_ms_mean, "cpu_s": result.cpu_s}
        if published is not None and rerun.reduction is not None:
            extra["published mean, in seconds"] = published.jct_mean_s
            extra["less than published, in percent"] = 100.0 * rerun.reduction
        setting = {"cluster": rules.cluster, "cadence": rules.cadence, "costs": rules.costs}
        setting |= {"policy": rerun.variant.policy, "workload": str(rerun.workload)}
        label, oracle = _label(rerun), result.oracle
        runs.append(Run.of(result.measured, label=label, oracle=oracle, setting=setting, extra=extra))
    title = f"Pollux (OSDI '21), {_workloads(reruns)}"
    write_report(path, runs, title=title, headline=_headline(reruns))
    click.echo(f"report: {path}", err=True)


#: Policies in a headline.
_TOLD = 4


def _headline(reruns: Sequence[Rerun]) -> str | None:
    """The best policy next to what was published of Pollux, over all workloads; None if nothing was."""
    means = {
        label: mean
        for label, runs in by_label(reruns).items()
        if not runs[0].result.oracle and (mean := mean_of(run.ratio for run in runs)) is not None
    }
    if not means:
        return None
    best = sorted(means.items(), key=lambda item: item[1])
    told = "; ".join(f"{label} {_against(mean)}" for label, mean in best[:_TOLD])
    more = f"; and {len(best) - _TOLD} more" if len(best) > _TOLD else ""
    return f"Mean completion time over {_workloads(reruns)}, next to Pollux as published: {told}{more}."


def _against(mean: float) -> str:
    return f"{percent(1.0 - mean)} less" if mean <= 1.0 else f"{percent(mean - 1.0)} more"
