"""`fairlead trace`: look at trace files, convert them, cut and reshape them, and generate new ones."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.console import Console

from fairlead.cli.errors import reports_errors
from fairlead.cli.options import FORMAT, SPEEDS
from fairlead.cli.up import STATE, directory_of
from fairlead.core.errors import InvalidSpec
from fairlead.core.hints import did_you_mean
from fairlead.core.types import Node
from fairlead.server.config import load
from fairlead.sim.applications import APPLICATIONS, GoodputTruth
from fairlead.sim.casting import Library
from fairlead.sim.cluster import nodes_of_four, parse_cluster
from fairlead.sim.gpu_types import notes_on_speeds, speeds_of
from fairlead.sim.offered_load import Yardstick
from fairlead.sim.traces import Trace, read_trace, reshape
from fairlead.sim.traces.canonical import to_csv, to_jsonl
from fairlead.sim.traces.describe import as_table, demands_on, true_work_gpu_s
from fairlead.sim.traces.describe import describe as describe_trace
from fairlead.sim.traces.files import write_text
from fairlead.sim.traces.generate import PHILLY_SIZES, Workload, drawn_work
from fairlead.sim.traces.generate import generate as generate_trace

UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def seconds(text: str) -> float:
    """Seconds, or a number with a unit: 90, 15m, 12h, 7d."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,9})?)([a-z]*)", text.strip(), re.ASCII)
    if match is None or match[2] not in UNITS_S:
        raise click.BadParameter(f"found {text!r}; expected seconds, or a number with s, m, h, d or w, like 12h")
    return float(match[1]) * UNITS_S[match[2]]


def numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"found {text!r}; expected numbers separated by commas, like 1.5,2,4") from None


def pairs(*names: str) -> Callable[[str], dict[str, float]]:
    """A parser of `name=number,...` that wants exactly these names."""

    def parse(text: str) -> dict[str, float]:
        parts = [part.partition("=") for part in text.split(",")]
        try:
            found = {name.strip(): float(number) for name, _, number in parts}
        except ValueError:
            found = {}
        if set(found) != set(names) or len(parts) != len(names):
            expected = ",".join(f"{name}=..." for name in names)
            raise click.BadParameter(f"found {text!r}; expected {expected} with a number each")
        return found

    parse.__name__ = "pairs"
    return parse


def sizes(text: str) -> tuple[tuple[int, float], ...]:
    try:
        parts = [part.partition(":") for part in text.split(",")]
        return tuple((int(gpus), float(share)) for gpus, _, share in parts)
    except ValueError:
        raise click.BadParameter(f"found {text!r}; expected GPU counts and shares, like 1:0.9,8:0.1") from None


TO = click.option(
    "--to", type=click.Choice(["jsonl", "csv"]), help="Form to write; by OUT's ending if left out, else jsonl."
)
AS_APPLICATIONS = click.option(
    "--applications",
    metavar="NAMES",
    help=f"Replace jobs by applications of about their GPU-time: all, or some of {', '.join(APPLICATIONS)}.",
)
SEED = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of all drawing.")


@click.group()
def trace() -> None:
    """Describe, convert, sample and generate job traces."""


@trace.command()
@click.argument("trace_path", metavar="TRACE")
@FORMAT
@click.option("--cluster", metavar="SPEC", help="Also tell the load on this cluster: v100=4x4,a100=4x4.")
@click.option("--cluster-gpus", type=click.IntRange(min=1), help="The same for this many GPUs, in nodes of 4.")
@SPEEDS
@click.option("--profiles", type=click.Path(), help="Profiles or throughput tables, if not beside TRACE.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Form to print."
)
@reports_errors
def describe(
    trace_path: str,
    format: str | None,
    cluster: str | None,
    cluster_gpus: int | None,
    speeds: str | None,
    profiles: str | None,
    output: str,
) -> None:
    """Print what is in a trace."""
    nodes = () if cluster is None and cluster_gpus is None else _reference(cluster_gpus, cluster)
    library = Library.beside(trace_path, profiles)
    statistics = describe_trace(_read(trace_path, format), nodes=nodes, library=library, speeds=speeds)
    _tell(statistics.notes)
    if output == "json":
        click.echo(json.dumps(statistics.to_dict(), indent=2))
    else:
        Console().print(as_table(statistics))


@trace.command()
@click.argument("trace_path", metavar="TRACE")
@click.argument("out")
@FORMAT
@TO
@reports_errors
def convert(trace_path: str, out: str, format: str | None, to: str | None) -> None:
    """Read a trace in any format and write it in Fairlead's own to OUT (- for standard output)."""
    _write(_read(trace_path, format), out, to)


@trace.command()
@click.argument("out")
@TO
@STATE
@click.option("--database", metavar="URL", help="The service's database, if the configuration does not say.")
@click.option("--last", "last_s", type=seconds, metavar="TIME", help="Only jobs submitted in this time, like 7d.")
@click.option("--anonymous", is_flag=True, help="Number the users, and leave out names and labels.")
@reports_errors
def export(
    out: str, to: str | None, state: Path | None, database: str | None, last_s: float | None, anonymous: bool
) -> None:
    """Write what the live service has run to OUT (- for standard output), as a trace that can be replayed.

    It may run meanwhile. Of each job that succeeded there is how fast it was, on which GPUs, and how long its starts
    and changes took.
    """
    directory = directory_of(state)
    made = _read(database or load(directory.path).server.database or str(directory.path), None)
    if last_s is not None:
        assert made.origin is not None, "a journal has its own clock"
        made = reshape.between(made, from_s=max(0.0, time.time() - made.origin - last_s))
    _write(reshape.anonymous(made) if anonymous else made, out, to)
    click.echo(f"{len(made.jobs):,} jobs", err=True)


@trace.command()
@click.argument("trace_path", metavar="TRACE")
@click.argument("out")
@FORMAT
@TO
@click.option("--from", "from_s", type=seconds, default="0", help="Leave out jobs submitted before, like 12h.")
@click.option("--until", "until_s", type=seconds, help="Leave out jobs submitted from then on, like 7d.")
@click.option("--tenant", "tenants", multiple=True, help="Keep this tenant's jobs; may be given several times.")
@click.option("--jobs", type=click.IntRange(min=1), help="Keep this many jobs, the first ones; or draw as many.")
@click.option("--resample", "resampled", is_flag=True, help="Draw jobs with replacement instead of taking the first.")
@click.option("--arrival-factor", type=float, help="Divide the times between arrivals by this: 2 doubles the rate.")
@AS_APPLICATIONS
@click.option("--deadlines", type=numbers, help="Give deadlines of these multiples of the duration, like 1.5,2,4.")
@click.option("--elastic", type=pairs("shrink", "grow"), help="Make jobs elastic, like shrink=0.5,grow=2.")
@click.option("--failures", type=pairs("mtbf_h", "repair_h"), help="Let nodes fail, like mtbf_h=500,repair_h=2.")
@click.option("--nodes", type=click.IntRange(min=1), help="How many nodes may fail; the trace's own if left out.")
@SEED
@reports_errors  # fmt: skip
def sample(  # one parameter per option is click's way
    trace_path: str,
    out: str,
    format: str | None,
    to: str | None,
    from_s: float,
    until_s: float | None,
    tenants: tuple[str, ...],
    jobs: int | None,
    resampled: bool,
    arrival_factor: float | None,
    applications: str | None,
    deadlines: tuple[float, ...] | None,
    elastic: dict[str, float] | None,
    failures: dict[str, float] | None,
    nodes: int | None,
    seed: int,
) -> None:
    """Cut and reshape a trace, in the order of the options below, and write it to OUT (- for standard output)."""
    made = _read(trace_path, format)
    if from_s or until_s is not None:
        made = reshape.between(made, from_s=from_s, until_s=float("inf") if until_s is None else until_s)
    if tenants:
        made = reshape.of_tenants(made, tenants)
    if resampled:
        made = reshape.resample(made, jobs or len(made.jobs), seed=seed)
    elif jobs is not None:
        made = reshape.first(made, jobs)
    if arrival_factor is not None:
        made = reshape.scale_arrivals(made, arrival_factor)
    if applications is not None:
        made = reshape.map_applications(made, _gpu_s(applications), seed=seed)
    if deadlines is not None:
        made = reshape.add_deadlines(made, deadlines, seed=seed)
    if elastic is not None:
        made = reshape.add_elasticity(made, **elastic)
    if failures is not None:
        made = _with_failures(made, failures, nodes, seed)
    _write(made, out, to)


def _gpu_s(names: str) -> dict[str, float]:
    """GPU-seconds of built-in applications, each alone on one GPU."""
    chosen = list(APPLICATIONS) if names == "all" else names.split(",")
    for name in chosen:
        if name not in APPLICATIONS:
            raise InvalidSpec(f"there is no application {name!r}{did_you_mean(name, APPLICATIONS)}")
    return {name: GoodputTruth(APPLICATIONS[name]).remaining_s(0.0) for name in chosen}


@trace.command()
@click.argument("out")
@TO
@click.option("--jobs", type=click.IntRange(min=1), default=1000, show_default=True, help="Number of jobs.")
@click.option("--gpus", type=click.IntRange(min=1), help="GPUs of the cluster, in nodes of 4. [default: 64]")
@click.option("--cluster", metavar="SPEC", help="The cluster instead, as in `simulate`: v100=4x4,a100=4x4.")
@click.option("--speeds", metavar="TYPE=SPEED,...", help="How fast its GPU types are, as in `simulate`: v100=1,a100=2.")
@click.option(
    "--load",
    type=float,
    help="True work over the cluster's capacity; a low one is not an idle cluster: sessions of jobs still come "
    "together. [default: 0.8, without --rate]",
)
@click.option("--rate", type=float, help="Jobs per hour, instead of a load.")
@click.option(
    "--sizes", "size_shares", type=sizes, help="GPU counts and their shares, like 1:0.9,8:0.1. [default: Philly's]"
)
@click.option("--tenants", type=click.IntRange(min=1), default=8, show_default=True, help="Number of tenants.")
@click.option("--tenant-skew", type=float, default=1.2, show_default=True, help="Zipf exponent of their shares.")
@click.option("--run-median", type=seconds, default="40m", show_default=True, help="Median length of long jobs.")
@click.option("--run-sigma", type=float, default=1.9, show_default=True, help="Spread of their logarithm.")
@click.option("--trial-share", type=float, default=0.3, show_default=True, help="Share of short trial jobs.")
@click.option("--daily-swing", type=float, default=0.5, show_default=True, help="Swing of the rate over a day, 0 to 1.")
@click.option("--weekend", type=float, default=0.5, show_default=True, help="Weekend's rate relative to a weekday's.")
@click.option("--session-jobs", type=float, default=4.0, show_default=True, help="Mean jobs submitted in one go.")
@AS_APPLICATIONS
@SEED
@reports_errors
def generate(  # one parameter per option is click's way
    out: str,
    to: str | None,
    jobs: int,
    gpus: int | None,
    cluster: str | None,
    speeds: str | None,
    load: float | None,
    rate: float | None,
    size_shares: tuple[tuple[int, float], ...] | None,
    tenants: int,
    tenant_skew: float,
    run_median: float,
    run_sigma: float,
    trial_share: float,
    daily_swing: float,
    weekend: float,
    session_jobs: float,
    applications: str | None,
    seed: int,
) -> None:
    """Make a synthetic trace shaped like Philly's and write it to OUT (- for standard output)."""
    nodes = _reference(gpus, cluster)
    _check_speeds_count(speeds, cluster, rate, applications)
    workload = Workload(
        jobs=jobs,
        gpus=sum(node.gpus for node in nodes),
        widest=max(Yardstick(nodes).gpus.values()),
        load=0.8 if load is None and rate is None else load,
        rate_per_h=rate,
        sizes=size_shares or PHILLY_SIZES,
        tenants=tenants,
        tenant_skew=tenant_skew,
        run_median_s=run_median,
        run_sigma=run_sigma,
        trial_share=trial_share,
        daily_swing=daily_swing,
        weekend=weekend,
        session_jobs=session_jobs,
        seed=seed,
    )
    if left_out := workload.too_large:
        told = f"jobs of {' and '.join(map(str, left_out))} GPUs, which {workload.most} cannot hold"
        click.echo(f"note: the default mix of sizes goes without {told}; state another with --sizes", err=True)
    stated = speeds_of(speeds, nodes)
    gpu_s = None if applications is None else _gpu_s(applications)

    def recast(drawn: Trace) -> tuple[Trace, Sequence[float]]:
        mapped = drawn if gpu_s is None else reshape.map_applications(drawn, gpu_s, seed=seed)
        demands = demands_on(mapped.jobs, Library(), nodes, stated)
        if rate is None:
            _tell(notes_on_speeds(speeds, demands, nodes))
        if mapped is drawn and not stated:
            return drawn_work(drawn)
        return mapped, true_work_gpu_s(mapped.jobs, demands, nodes)

    _write(generate_trace(workload, recast), out, to)


def _check_speeds_count(speeds: str | None, cluster: str | None, rate: float | None, applications: str | None) -> None:
    """Raise InvalidSpec where --speeds would change nothing."""
    if speeds is None:
        return
    if cluster is None:
        raise InvalidSpec(f"--speeds {speeds!r} are those of a cluster's GPU types; name the cluster with --cluster")
    if rate is not None:
        raise InvalidSpec("--speeds tells what the cluster can do, which is for --load; leave out --speeds or --rate")
    if applications is not None:
        raise InvalidSpec("--speeds is for plain durations: applications have speeds of their own; leave it out")


def _tell(notes: Sequence[str]) -> None:
    for note in notes:
        click.echo(f"note: {note}", err=True)


def _reference(gpus: int | None, cluster: str | None) -> tuple[Node, ...]:
    """The cluster that a load is relative to."""
    if gpus is not None and cluster is not None:
        raise InvalidSpec("--gpus and --cluster both say how large the cluster is; give one of them")
    return parse_cluster(cluster) if cluster is not None else nodes_of_four(64 if gpus is None else gpus)


def _with_failures(made: Trace, failures: dict[str, float], nodes: int | None, seed: int) -> Trace:
    count = nodes or len(made.nodes)
    if not count:
        raise InvalidSpec("--failures needs --nodes: the trace does not say how many nodes there are")
    return reshape.inject_failures(
        made, nodes=count, mtbf_s=failures["mtbf_h"] * 3600, repair_s=failures["repair_h"] * 3600, seed=seed
    )


def _read(path: str, format: str | None) -> Trace:
    made = read_trace(path, format)
    for reason, count in made.skipped.items():
        click.echo(f"warning: {made.source}: left out {count:,} of the entries: {reason}", err=True)
    return made


def _write(made: Trace, out: str, to: str | None) -> None:
    named_csv = ".csv" in Path(out).suffixes[-2:]
    if to == "jsonl" or (to is None and not named_csv):
        write_text(out, to_jsonl(made))
        return
    if made.nodes or made.failures:
        click.echo("warning: CSV holds jobs only; nodes and failures are not written", err=True)
    write_text(out, to_csv(made))
