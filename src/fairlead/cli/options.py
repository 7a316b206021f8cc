"""Options that verbs share, and how they become experiments."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Cadence
from fairlead.plugins import POLICIES
from fairlead.sim.adapting import ADAPTS
from fairlead.sim.costs import CostModel
from fairlead.sim.experiment import Experiment, default_cluster
from fairlead.sim.noise import MOST
from fairlead.sim.traces import format_names

Command = TypeVar("Command", bound=Callable[..., Any])
N = TypeVar("N", int, float)


_FORMAT_HELP = "Format of TRACE; guessed if left out."


class _FormatOption(click.Option):
    """Its help names the formats of installed packages, which are looked for only when it is asked for."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        self.help = f"{_FORMAT_HELP} {', '.join(format_names())}, or path/to/file.py:reader."
        return super().get_help_record(ctx)


FORMAT = click.option("--format", metavar="NAME", cls=_FormatOption, help=_FORMAT_HELP)

SPEEDS = click.option(
    "--speeds",
    metavar="TYPE=SPEED,...",
    help="How fast the cluster's GPU types are where TRACE has durations only, as in a100=2,k80=0.3.",
)

_SHARED = (
    click.argument("trace", type=click.Path()),
    FORMAT,
    click.option("--cluster", metavar="SPEC",
                 help="16x4, or v100=3x4,k80=3x4@0.5 (price per GPU-hour). [default: the trace's nodes, or 16x4]"),
    SPEEDS,
    click.option("--profiles", type=click.Path(), help="Profiles or throughput tables, if not beside TRACE."),
    click.option("--cadence", default="event", show_default=True, metavar="WHEN", help="event, 60s or event+60s."),
    click.option("--costs", default="default", show_default=True, metavar="COSTS",
                 help="none, default, or start=S,restart=S,save=S,rescale=S,checkpoint_every=S,boot=S."),
    click.option("--jobs", type=click.IntRange(min=1), help="Only the first so many jobs."),
    click.option("--arrival-factor", type=float, default=1.0, show_default=True, metavar="X",
                 help="Jobs arrive X times as fast as in TRACE."),
    click.option("--resample", is_flag=True, help="Draw jobs from TRACE with the seed instead of replaying it."),
    click.option("--failures", metavar="MTBF_H,REPAIR_H", help="Nodes fail, and are repaired, after so many hours."),
    click.option("--interference", type=float, default=0.0, show_default=True, metavar="SHARE",
                 help="Speed that multi-node jobs lose to each other on a shared node."),
    click.option("--estimates", type=click.Choice(["exact", "none"]), default="exact", show_default=True,
                 help="Run times that users promise where the trace has none; easy relies on them."),
    click.option("--estimate-error", type=click.FloatRange(0.0, MOST), default=0.0, show_default=True, metavar="SIGMA",
                 help="How wrong those promises are: a log-normal factor of median 1."),
    click.option("--noise", type=click.FloatRange(0.0, MOST), default=0.0, show_default=True, metavar="SIGMA",
                 help="How wrong measured step times and noise scales are: a log-normal factor of mean 1."),
    click.option("--report-every", "report_every_s", type=click.FloatRange(min=0.0), default=0.0, metavar="SECONDS",
                 help="Jobs report this often; only when their pace changes if left out."),
    click.option("--adapt", type=click.Choice(ADAPTS), default="auto", show_default=True,
                 help="What jobs may change: nothing, their GPUs, or GPUs and batch. auto: what the policy can use."),
    click.option("--in-place", is_flag=True, help="Every job can change its GPUs without a restart."),
    click.option("--retune-every", "retune_every_s", type=click.FloatRange(min=0.0), default=30.0, show_default=True,
                 metavar="SECONDS", help="How often jobs that may change their batch reconsider it."),
    click.option("--provision", "provision_s", type=click.FloatRange(min=0.0), default=120.0, show_default=True,
                 metavar="SECONDS", help="How long a node takes to join after the policy rented it."),
    click.option("--oversized", type=click.Choice(["error", "drop", "clip"]), default="error", show_default=True,
                 help="What to do with jobs larger than the cluster."),
)  # fmt: skip


#: The comma between two policies; one before `option=` belongs to the policy.
_BETWEEN = r",(?!\w+=)"


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration_s(_: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """A callback: a time such as 5400, 90m, 1.5h or 2d, in seconds."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is no time; expected one such as 5400, 90m, 1.5h or 2d", param=parameter)
    return float(match[1]) * _UNITS[match[2]]


_MEASURED = (
    click.option("--warmup", "warmup_s", callback=duration_s, default="0", metavar="TIME",
                 help="Jobs that arrive in the first 90m, 1.5h or 2d run, but do not count."),
    click.option("--window", "window_s", callback=duration_s, metavar="TIME",
                 help="Only jobs count that arrive in so long after the warm-up."),
    click.option("--jobs-csv", type=click.Path(), metavar="FILE", help="Write what became of each job, one a line."),
)  # fmt: skip

LOAD = click.option(
    "--load",
    type=float,
    metavar="X",
    help="Move arrivals so that the jobs offer X times the work that the cluster can do. A low load is not an idle "
    "cluster: sessions of jobs still come together. [default: as in TRACE]",
)
REPORT = click.option("--report", type=click.Path(), metavar="FILE", help="Write an HTML page with plots.")


def experiment_options(command: Command) -> Command:
    """Add the options that describe an experiment, in the order of their help."""
    for option in reversed(_SHARED):
        command = option(command)
    return command


def measured_options(command: Command) -> Command:
    """Add the options that say which jobs count, and where the table of jobs goes."""
    for option in reversed(_MEASURED):
        command = option(command)
    return command


def make_experiment(*, failures: str | None, **options: Any) -> Experiment:
    """Check what can be checked before any work is done."""
    if len(names := re.split(_BETWEEN, options["policy"])) > 1 and names[0].partition(":")[0] in POLICIES:
        raise InvalidSpec(f"--policy is {options['policy']!r}; it takes one policy: `fairlead compare` takes several")
    Cadence.parse(options["cadence"])
    CostModel.parse(options["costs"])
    load = options["load"]
    if load is not None and not (math.isfinite(load) and load > 0):
        raise InvalidSpec(f"load is {load}; expected a positive number")
    if options["cluster"] is None:
        options["cluster"] = default_cluster(options["trace"], options["format"])
    return Experiment(**options, failures_h=None if failures is None else _parse_failures(failures))


def _parse_failures(text: str) -> tuple[float, float]:
    try:
        mtbf_h, repair_h = (float(number) for number in text.split(","))
    except ValueError:
        mtbf_h = repair_h = math.nan
    if not (0 < mtbf_h < math.inf and 0 < repair_h < math.inf):
        raise InvalidSpec(f"failures are {text!r}; expected two positive numbers of hours, as in 500,2")
    return mtbf_h, repair_h


def policy_list(text: str) -> list[str]:
    """Names separated by commas or spaces; a comma before `option=` belongs to the policy."""
    names = [name for name in re.split(rf"\s+|{_BETWEEN}", re.sub(r",\s+(?=\w+=)", ",", text)) if name]
    if not names:
        raise InvalidSpec("--policies is empty; `fairlead policies` lists what there is")
    return list(dict.fromkeys(names))


def number_list(text: str, name: str, kind: type[N]) -> list[N]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InvalidSpec(f"--{name} is {text!r}; expected numbers separated by commas") from None
