"""A paper's experiment, rerun next to the figures its authors published. Knows files and experiments, not the terminal.

The parts that any paper needs come first: under which rules a policy ran, what was published of it, and how the two
compare. Then Pollux (Qiao et al., OSDI '21): its data, its rules, and the levers with which `pilot` goes beyond them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Cadence
from fairlead.plugins import make_policy
from fairlead.sim.adapting import adapts
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.costs import CostModel
from fairlead.sim.experiment import Experiment, Result
from fairlead.sim.measured import applications_in
from fairlead.sim.traces import read_trace
from fairlead.sim.traces.table import listed, shown

# -- any paper -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Published:
    """What the authors report of one policy on one workload."""

    jct_mean_s: float
    #: Of each job; empty if they published the mean only.
    jct_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for a run, whatever its policy."""

    cluster: str
    cadence: str
    #: Every start takes this long, the first one included.
    restart_s: float
    #: Jobs whose GPUs may change do so in place, with a pause of so long; None: they restart.
    rescale_s: float | None = None
    #: Jobs that tune their batch do so this often.
    retune_every_s: float
    #: Only the first so many jobs.
    jobs: int | None = None

    @property
    def costs(self) -> str:
        rescale = "" if self.rescale_s is None else f",rescale={self.rescale_s:.15g}"
        return f"start={self.restart_s:.15g},restart={self.restart_s:.15g}{rescale}"


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy under rules: one line of the answer."""

    label: str
    #: As `make_policy` reads it.
    policy: str
    rules: Rules
    #: Whose published figures it is compared with.
    against: str
    #: The published policy is the same one and has no randomness in it: its jobs can be compared one by one.
    same: bool = False


@dataclass(frozen=True, slots=True)
class Rerun:
    """A variant on a workload, and what was published: None where nothing was, or under other rules than these."""

    workload: int
    variant: Variant
    result: Result
    published: Published | None
    #: Mean JCT of the paper's own policy, the yardstick of all variants.
    yardstick_s: float | None
    #: Why something published is missing here; empty if nothing is.
    unpublished: str = ""

    @property
    def jct_mean_s(self) -> float | None:
        """None if jobs are missing in it: such a mean compares with nothing."""
        summary = self.result.measured.summary
        return None if summary.unfinished else summary.jct_mean_s

    @property
    def reduction(self) -> float | None:
        """The share by which the mean JCT is below the published one."""
        mean_s = self.jct_mean_s
        return None if self.published is None or mean_s is None else 1.0 - mean_s / self.published.jct_mean_s

    @property
    def ratio(self) -> float | None:
        """Mean JCT over that of the paper's own policy."""
        mean_s = self.jct_mean_s
        return None if self.yardstick_s is None or mean_s is None else mean_s / self.yardstick_s

    @property
    def differences_s(self) -> Mapping[str, float] | None:
        """Of each job with a published JCT, how far ours is off; infinite if it did not end."""
        if not self.variant.same or self.published is None or not self.published.jct_s:
            return None
        ours = {job.job: job.jct_s for job in self.result.measured.jobs}
        return {
            job: math.inf if (jct_s := ours.get(job)) is None else abs(jct_s - published_s)
            for job, published_s in self.published.jct_s.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """What was published and how ours compares, then everything of the result, flat; JSON without NaN."""
        off_s = self.differences_s
        largest_s = None if off_s is None else max(off_s.values())
        compared = {
            "workload": self.workload,
            "policy": self.variant.label,
            "policy_spec": self.variant.policy,
            "published_policy": self.variant.against,
            "published_jct_mean_s": None if self.published is None else self.published.jct_mean_s,
            "reduction_vs_published": self.reduction,
            "jobs_equal": None if off_s is None else sum(off == 0.0 for off in off_s.values()),
            "jct_max_difference_s": None if largest_s is None or math.isinf(largest_s) else largest_s,
        }
        return compared | {name: value for name, value in self.result.to_dict().items() if name not in compared}


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean; None if there is nothing, or if one of them is unknown: means over different workloads mislead."""
    found = list(values)
    known = [value for value in found if value is not None]
    return fmean(known) if known and len(known) == len(found) else None


def by_label(reruns: Sequence[Rerun]) -> dict[str, list[Rerun]]:
    """The workloads of each variant, in order of appearance."""
    grouped: dict[str, list[Rerun]] = {}
    for rerun in reruns:
        grouped.setdefault(rerun.variant.label, []).append(rerun)
    return grouped


# -- Pollux: the data ------------------------------------------------------------------------------------------------

SOURCE = """\
the OSDI '21 artifact of Pollux: https://github.com/petuum/adaptdl, branch osdi21-artifact. Expected is a directory with
  workloads/workload-N.csv          simulator/workloads there
  profiles/<application>/*.csv      simulator/traces there
  published_jct.json                optional: {policy: simulator/results-jobload/<policy>-1.0/summary.json}"""

PUBLISHED_NAME = "published_jct.json"


@dataclass(frozen=True, slots=True)
class PolluxData:
    """What lies in a directory laid out as SOURCE says."""

    directory: Path
    #: By number, ascending.
    workloads: Mapping[int, Path]
    #: By policy and workload.
    published: Mapping[str, Mapping[int, Published]]

    @property
    def profiles(self) -> Path:
        return self.directory / "profiles"

    def jobs_published(self, workload: int) -> int:
        """How many jobs the published run had: as many as the workload, where only means were published."""
        told = max((len(runs[workload].jct_s) for runs in self.published.values() if workload in runs), default=0)
        return told or len(read_trace(self.workloads[workload], "pollux").jobs)

    def choose(self, numbers: Sequence[int]) -> dict[int, Path]:
        """Those workloads, or all for none, after a look at whether everything they need is there."""
        for number in numbers:
            if number not in self.workloads:
                there = listed([path.name for path in self.workloads.values()])
                raise InvalidSpec(f"{self.directory / 'workloads'} has no workload-{number}.csv; it has {there}")
        chosen = {number: self.workloads[number] for number in numbers or self.workloads}
        profiled = tuple(applications_in(self.profiles))
        for path in chosen.values():
            needed = {job.model for job in read_trace(path, "pollux").jobs if job.model is not None}
            if missing := sorted(needed - set(profiled)):
                raise InvalidSpec(
                    f"{path.name} has jobs of {listed(missing)}, which {self.profiles} has no profile of; it has "
                    f"{listed(profiled)}. A profile is a directory of the application's name with placements.csv, "
                    f"scalability.csv and validation-<batch>.csv, as in simulator/traces of the artifact"
                )
        return chosen


def read_pollux_data(directory: Path | None) -> PolluxData:
    """Look at a directory of the artifact's data; InvalidSpec says what is missing and where to get it."""
    if directory is None:
        raise InvalidSpec(f"name the paper's data with --data DIR; it does not come with Fairlead but from {SOURCE}")
    if not directory.is_dir():
        raise InvalidSpec(f"there is no directory {directory}; the data comes from {SOURCE}")
    found: dict[int, Path] = {}
    for path in (directory / "workloads").glob("workload-*.csv"):
        if number := re.fullmatch(r"workload-(\d{1,9})\.csv", path.name):
            found[int(number[1])] = path
    if not found or next(applications_in(directory / "profiles"), None) is None:
        lacks = "profiles/<application>/placements.csv" if found else "workloads/workload-N.csv"
        there = listed(sorted(path.name for path in directory.iterdir()))
        raise InvalidSpec(f"{directory} has no {lacks}; it has {there}. The data comes from {SOURCE}")
    return PolluxData(directory, dict(sorted(found.items())), _read_published(directory / PUBLISHED_NAME))


def _read_published(path: Path) -> dict[str, dict[int, Published]]:
    """By policy and number of the workload; nothing if there is no such file."""
    if not path.is_file():
        return {}
    expected = "expected {policy: {avgs: {workload-N: seconds}, jcts: {workload-N: {job: seconds}}}}"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InvalidSpec(f"{path} cannot be used: it is not JSON ({error}); {expected}, or leave it out") from None
    try:
        return {
            policy: {
                int(name.removeprefix("workload-")): _published(mean_s, summary.get("jcts", {}).get(name, {}))
                for name, mean_s in summary["avgs"].items()
            }
            for policy, summary in content.items()
        }
    except (ValueError, TypeError, AttributeError, KeyError):  # whatever else a file may hold
        raise InvalidSpec(f"{path} cannot be used: {_shape(content)}; {expected}, or leave it out") from None


def _shape(content: object) -> str:
    """What a file holds that is not laid out as expected."""
    if not isinstance(content, dict):
        return f"it holds {shown(content)}"
    for policy, summary in content.items():
        if not isinstance(summary, dict) or not isinstance(summary.get("avgs"), dict):
            return f"{policy!r} has {shown(summary)}"
    return "it has a workload without a number, or a completion time that is no positive number of seconds"


def _published(mean_s: float, jct_s: Mapping[str, float]) -> Published:
    if not all(0.0 < float(value) < math.inf for value in (mean_s, *jct_s.values())):
        raise ValueError("a completion time that is no positive number")
    return Published(float(mean_s), {job: float(value) for job, value in jct_s.items()})


# -- Pollux: the experiment ------------------------------------------------------------------------------------------

CLUSTER, CADENCE, RESTART_S, RESCALE_S = "16x4", "60s", 30.0, 2.0

POLICIES = ("tiresias", "optimus", "pollux", "pilot")

#: Names that stand for a policy as the artifact has it. Pollux itself is a random search there; ours is exact.
AS_PUBLISHED = {
    "tiresias": "tiresias:thresholds=57600,within=entry,service=held,placing=spread",
    "optimus": "optimus",
}

#: Of the artifact's simulator, for one workload under Pollux.
REFERENCE_CPU_MIN = (35, 50)

#: Jobs' agents think again this often (section 4.1), where decisions have no period; more often if a change is cheap.
_RETUNE_S, _RETUNE_IN_PLACE_S = 30.0, 10.0


def pollux_rules(
    *,
    cluster: str = CLUSTER,
    cadence: str = CADENCE,
    restart_s: float = RESTART_S,
    rescale_s: float | None = None,
    jobs: int | None = None,
) -> Rules:
    """The paper's, unless told otherwise; InvalidSpec for what cannot be meant."""
    parse_cluster(cluster)
    rules = Rules(
        cluster=cluster, cadence=cadence, restart_s=restart_s, rescale_s=rescale_s, retune_every_s=_RETUNE_S, jobs=jobs
    )
    CostModel.parse(rules.costs)
    return _retuned(rules)


def _retuned(rules: Rules) -> Rules:
    """In the artifact's simulator jobs tune their batch when decisions are made."""
    period_s = Cadence.parse(rules.cadence).period_s
    often_s = _RETUNE_IN_PLACE_S if rules.rescale_s is not None else _RETUNE_S if period_s is None else period_s
    return replace(rules, retune_every_s=often_s)


def pollux_variants(names: Sequence[str], rules: Rules) -> list[Variant]:
    """Policies by name or with options. Those that leave jobs as they are have nothing to do in place."""
    restarting = _retuned(replace(rules, rescale_s=None))
    variants = []
    for name in names:
        policy = AS_PUBLISHED.get(name, name)
        rigid = adapts("auto", make_policy(policy)) == "nothing"
        base = name.partition(":")[0]
        same = base in AS_PUBLISHED
        variants.append(Variant(name, policy, restarting if rigid else rules, base if same else "pollux", same=same))
    return variants


#: What `pilot` does beyond the paper: two options of its own, here as they are turned off, and two of the cluster.
LEVERS: Mapping[str, str | None] = {"hurry": "hurry=0", "lore": "lore=false", "events": None, "in place": None}


def pollux_levers(rules: Rules, *, rescale_s: float = RESCALE_S) -> list[Variant]:
    """Pollux, then pilot: by these rules, with each lever alone, with all of them, and with all but each."""
    every = tuple(LEVERS)
    told = {"no lever": (), **{f"+ {lever}": (lever,) for lever in every}, "all levers": every}
    told |= {f"all but {lever}": tuple(other for other in every if other != lever) for lever in every}
    found = [Variant("pollux", "pollux", rules, "pollux")]
    for label, pulled in told.items():
        off = [option for lever, option in LEVERS.items() if option is not None and lever not in pulled]
        policy = f"pilot:{','.join(off)}" if off else "pilot"
        make_policy(policy)
        own = replace(
            rules,
            cadence="event" if "events" in pulled else rules.cadence,
            rescale_s=rescale_s if "in place" in pulled else None,
        )
        found.append(Variant(f"pilot, {label}", policy, _retuned(own), "pollux"))
    return found


def pollux_experiment(data: PolluxData, workload: int, variant: Variant) -> Experiment:
    rules = variant.rules
    return Experiment(
        trace=str(data.workloads[workload]),
        policy=variant.policy,
        cluster=rules.cluster,
        format="pollux",
        profiles=str(data.profiles),
        cadence=rules.cadence,
        costs=rules.costs,
        jobs=rules.jobs,
        estimates="none",  # nobody promises a run time in the paper
        in_place=rules.rescale_s is not None,
        retune_every_s=rules.retune_every_s,
    )


def check_room(path: Path, rules: Rules) -> None:
    """Refuse a workload with a job that the cluster cannot hold: here none is left out or cut down."""
    total: dict[str, int] = {}
    for node in parse_cluster(rules.cluster):
        total[node.gpu_type] = total.get(node.gpu_type, 0) + node.gpus
    room = max(total.values())
    for job in read_trace(path, "pollux").jobs[: rules.jobs]:
        if job.gpus > room:
            raise InvalidSpec(
                f"{path.name}: job {job.id} needs {job.gpus} GPUs of one type, of which {rules.cluster} has {room}; "
                "use a larger --cluster"
            )


def pollux_rerun(data: PolluxData, workload: int, variant: Variant, result: Result) -> Rerun:
    """What was published is of all jobs on 16 nodes of four GPUs: nothing else compares with it."""
    sizes = [node.gpus for node in parse_cluster(variant.rules.cluster)]
    ran, there = result.measured.summary.jobs, data.jobs_published(workload)
    told = {policy: runs[workload] for policy, runs in data.published.items() if workload in runs}
    if not told:
        why = f"{PUBLISHED_NAME} has nothing of it" if data.published else f"{data.directory} has no {PUBLISHED_NAME}"
    elif sizes != [4] * 16:
        why, told = f"they are of 16 nodes of four GPUs, not of {variant.rules.cluster}", {}
    elif ran != there:
        why, told = f"they are of {there} {'job' if there == 1 else 'jobs'}, and {ran} ran", {}
    else:
        lacking = [name for name in dict.fromkeys((variant.against, "pollux")) if name not in told]
        why = f"{PUBLISHED_NAME} has nothing of {' and '.join(lacking)} there" if lacking else ""
    yardstick = told.get("pollux")
    return Rerun(
        workload, variant, result, told.get(variant.against), None if yardstick is None else yardstick.jct_mean_s, why
    )
