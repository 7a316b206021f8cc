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
from fairlead.sim.traces import READERS

Command = TypeVar("Command", bound=Callable[..., Any])
N = TypeVar("N", int, float)

_SHARED = (
    click.argument("trace", type=click.Path()),
    click.option("--format", metavar="NAME", help=f"Format of TRACE; guessed if left out. {', '.join(READERS)}."),
    click.option("--cluster", metavar="SPEC",
                 help="16x4, or v100=3x4,k80=3x4@0.5 (price per GPU-hour). [default: the trace's nodes, or 16x4]"),
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

LOAD = click.option(
    "--load",
    type=float,
    metavar="X",
    help="Move arrivals so that the jobs offer X times the work that the cluster can do. [default: as in TRACE]",
)
REPORT = click.option("--report", type=click.Path(), metavar="FILE", help="Write an HTML page with plots.")


def experiment_options(command: Command) -> Command:
    """Add the options that describe an experiment, in the order of their help."""
    for option in reversed(_SHARED):
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
