"""The simulator as a library: `import fairlead` has these functions. docs/experiments.md is their manual.

Traces, policies and clusters are objects or the texts of the command line. Everything else an experiment can be told
is a keyword of the name it has in `Experiment`.
"""

from __future__ import annotations

import copy
import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

from fairlead.core.errors import FairleadError, InvalidSpec
from fairlead.core.hints import did_you_mean
from fairlead.core.loop import Policy
from fairlead.sim import job_table
from fairlead.sim.cluster import Cluster
from fairlead.sim.experiment import DEFAULT_CLUSTER, Experiment, Inputs, Result, prepare, run_experiment
from fairlead.sim.fingerprint import fingerprint
from fairlead.sim.many import run_many
from fairlead.sim.metrics import JobOutcome
from fairlead.sim.report.results import baseline_label, cases, label_of, over_seeds, save_report
from fairlead.sim.result_cache import ResultCache, default_directory
from fairlead.sim.traces import Trace, TraceJob, read_trace
from fairlead.sim.traces.assemble import trace_of_rows

#: What `read_trace` returns, a file that it can read, or rows with the columns of the canonical form.
AnyTrace = Trace | str | Path | Iterable[TraceJob | Mapping[str, Any]]

__all__ = [
    "Cluster",
    "Comparison",
    "FairleadError",
    "InvalidSpec",
    "Options",
    "Result",
    "Trace",
    "TraceJob",
    "compare",
    "read_trace",
    "simulate",
]


class Options(TypedDict, total=False):
    """What an experiment can be told; the fields of `Experiment` say what each means."""

    profiles: str | None
    speeds: str | None
    cadence: str
    costs: str
    arrival_factor: float
    jobs: int | None
    resample: bool
    failures_h: tuple[float, float] | None
    interference: float
    report_every_s: float
    estimates: str
    estimate_error: float
    noise: float
    oversized: str
    adapt: str
    in_place: bool
    retune_every_s: float
    provision_s: float
    warmup_s: float
    window_s: float | None
    stop: str


def simulate(
    trace: AnyTrace,
    policy: Policy | str = "fifo",
    *,
    cluster: Cluster | str | None = None,
    seed: int = 0,
    load: float | None = None,
    **options: Unpack[Options],
) -> Result:
    """Replay a trace under one policy, in this process. Without a load, jobs arrive as in the trace."""
    _check_names(options, simulate, compare)
    experiment, inputs = _setup(_Given(_trace(trace), _cluster(cluster), options), None, policy, seed=seed, load=load)
    return run_experiment(experiment, inputs=inputs)


def compare(
    trace: AnyTrace,
    policies: Iterable[Policy | str] | Mapping[str, Policy | str],
    *,
    cluster: Cluster | str | None = None,
    seeds: Iterable[int] = (0,),
    loads: Iterable[float | None] = (None,),
    baseline: str | None = None,
    workers: int | None = None,
    cache: bool = False,
    **options: Unpack[Options],
) -> Comparison:
    """Replay a trace under every policy, seed and load.

    policies: objects or texts; of a mapping, the keys are what they are called.
    baseline: the name of the policy that the others are compared with; the first one if left out.
    workers: processes. 1 is this one, and what is taken where a policy is an object; else as many as there are cores.
    cache: find runs that were done before, and keep those that are done now, as `fairlead compare` does.
    """
    _check_names(options, compare, simulate)
    given, named = _Given(_trace(trace), _cluster(cluster), options), _named(policies)
    seeds, loads = list(seeds), list(loads)
    pairs = [
        _setup(given, name, policy, seed=seed, load=load)
        for load in loads
        for seed in seeds
        for name, policy in named.items()
    ]
    if not pairs:
        raise InvalidSpec("there is nothing to compare: name at least one policy, seed and load")
    if len(set(seeds)) > 1 and not pairs[0][0].by_chance:
        raise InvalidSpec("several seeds would give the same run; add resample, failures_h, noise or estimate_error")
    if baseline is not None and baseline not in named:
        raise InvalidSpec(f"the baseline {baseline!r} is none of the policies: {', '.join(named)}")
    objects = any(not isinstance(policy, str) for policy in named.values())
    results = _run(pairs, 1 if workers is None and objects else workers, cache=cache)
    return Comparison(tuple(results), baseline)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results of many runs, in order of load, seed and policy."""

    results: tuple[Result, ...]
    baseline: str | None = None

    @property
    def jobs(self) -> tuple[JobOutcome, ...]:
        """The jobs of all runs."""
        return tuple(job for result in self.results for job in result.jobs)

    def summary(self) -> list[dict[str, Any]]:
        """For each policy and load: every figure's mean over seeds, its 95 % interval and the paired difference.

        `figures` has them by metric: `mean`, `ci95` ([low, high], None for one seed), `n`, and for all but the baseline
        `difference`, with the same keys and `relative`.
        """
        label = baseline_label(self.results, self.baseline)
        names = {label_of(result): result.experiment.policy for result in self.results}
        return [
            {"policy": names[entry.label], "load": self._load(case.load), **over_seeds(case, entry.label, label)}
            for case in cases(self.results)
            for entry in case.entries
        ]

    def _load(self, load: float | None) -> float | None:
        return self.results[0].experiment.load if load is None else load

    def rows(self) -> list[dict[str, Any]]:
        """One for each job of each run, with the columns of `--jobs-csv`."""
        return list(job_table.rows(self.results))

    def to_pandas(self) -> Any:
        """The same rows as a pandas DataFrame. Needs pandas."""
        return job_table.to_pandas(self.results)

    def report(self, path: str | Path) -> None:
        """Write an HTML page with tables and plots."""
        save_report(Path(path), self.results, baseline=self.baseline)


# -- from objects to experiments -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Given:
    """What all runs of a call share."""

    trace: Trace
    cluster: Cluster | None
    options: Options


#: What the calls here make of their own arguments.
_OF_CALLS = ("trace", "format", "policy", "cluster", "seed", "load")


def _check_names(options: Mapping[str, object], called: Callable[..., object], other: Callable[..., object]) -> None:
    """Raise InvalidSpec for a keyword that `called` does not have, though `other` may."""
    known = [field.name for field in fields(Experiment) if field.name not in _OF_CALLS]
    unknown = next((name for name in options if name not in known), None)
    if unknown is None:
        return
    own, theirs = (list(inspect.signature(each).parameters)[:-1] for each in (called, other))
    if unknown == "format":
        raise InvalidSpec(f"{called.__name__} has no option 'format': give it read_trace(path, format)")
    close = difflib.get_close_matches(unknown, theirs, n=1)
    if close and not difflib.get_close_matches(unknown, [*known, *own]):
        hint = f"; did you mean {close[0]!r}? That is an option of fairlead.{other.__name__}"
    else:
        hint = did_you_mean(unknown, [*known, *own])
    raise InvalidSpec(f"{called.__name__} has no option {unknown!r}{hint}")


def _trace(trace: AnyTrace) -> Trace:
    if isinstance(trace, Trace):
        return trace
    if isinstance(trace, str | Path):
        return read_trace(trace)
    if not isinstance(trace, Iterable):
        raise InvalidSpec(f"a trace is a file name, rows or what read_trace returns; found {type(trace).__name__}")
    return trace_of_rows(trace, format="rows", source="rows")


def _cluster(cluster: Cluster | str | None) -> Cluster | None:
    return Cluster(cluster) if isinstance(cluster, str) else cluster


def _named(policies: Iterable[Policy | str] | Mapping[str, Policy | str]) -> dict[str, Policy | str]:
    if isinstance(policies, str):
        raise InvalidSpec(f"policies is {policies!r}; expected a list, as in [{policies!r}]")
    if isinstance(policies, Mapping):
        return dict(policies)
    named: dict[str, Policy | str] = {}
    for policy in policies:
        name = _name(policy)
        if name in named and policy != named[name]:
            raise InvalidSpec(f"two policies are called {name!r}; give a mapping of names to policies")
        named[name] = policy
    return named


def _name(policy: Policy | str) -> str:
    """As one would type it: the class, and the options that differ from their defaults."""
    if isinstance(policy, str):
        return policy
    if not callable(getattr(policy, "plan", None)):
        raise InvalidSpec(f"{policy!r} is no policy: expected a name, or an object with a method plan(view)")
    told = ",".join(f"{field.name}={getattr(policy, field.name)}" for field in _options_set(policy))
    name, inner = type(policy).__name__ + (f":{told}" if told else ""), getattr(policy, "inner", None)
    return name if inner is None else f"{name}+{_name(inner)}"


def _options_set(policy: Policy) -> list[Field[Any]]:
    """The options of a policy that differ from their defaults; not what it remembers, nor what it wraps."""
    known: list[Field[Any]] = list(fields(policy)) if is_dataclass(policy) else []
    return [
        field
        for field in known
        if field.init and field.repr and field.name != "inner" and getattr(policy, field.name) != _default(field)
    ]


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _setup(
    given: _Given, name: str | None, policy: Policy | str, *, seed: int, load: float | None
) -> tuple[Experiment, Inputs]:
    if load is not None and not (math.isfinite(load) and load > 0):
        raise InvalidSpec(f"load is {load}; expected a positive number")
    called = _name(policy)
    cluster = given.cluster
    if cluster is None and not given.trace.nodes:
        cluster = Cluster(DEFAULT_CLUSTER)
    # A text decides by itself; a name of the caller's own needs the object beside it.
    by_text = isinstance(policy, str) and name in (None, policy)
    experiment = Experiment(
        trace=given.trace.source,
        policy=called if name is None else name,
        cluster=None if cluster is None else str(cluster),
        seed=seed,
        load=load,
        **given.options,
    )
    nodes = None if cluster is None else cluster.nodes
    return experiment, Inputs(given.trace, None if by_text else _made(policy), nodes)


def _made(policy: Policy | str) -> Policy:
    """An object of its own for each run: a policy may remember what it saw."""
    from fairlead.plugins import make_policy

    return make_policy(policy) if isinstance(policy, str) else copy.deepcopy(policy)


def _run(pairs: Sequence[tuple[Experiment, Inputs]], workers: int | None, *, cache: bool) -> list[Result]:
    prepare(*pairs[0])  # a broken trace should not cost the start of processes
    store = ResultCache(default_directory()) if cache else None
    done: dict[int, Result] = {}
    for place, (experiment, inputs) in enumerate(pairs):
        if store is not None and (found := store.find(fingerprint(experiment, inputs), experiment)) is not None:
            done[place] = found
    if workers == 1:
        return [done[n] if n in done else _run_here(*pair, store) for n, pair in enumerate(pairs)]
    experiments, inputs_of_each = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    for inputs in inputs_of_each:
        if inputs.policy is not None and type(inputs.policy).__module__ == "__main__":
            raise InvalidSpec(
                f"{type(inputs.policy).__name__} is defined in the main script, which other processes do not load; "
                "use workers=1, or put the class into a file and name it: path/to/file.py:Class"
            )
    keep = None if store is None else store.keep
    return run_many(experiments, workers=workers, done=done, keep=keep, inputs=inputs_of_each)


def _run_here(experiment: Experiment, inputs: Inputs, store: ResultCache | None) -> Result:
    before = None if store is None else fingerprint(experiment, inputs)
    result = run_experiment(experiment, inputs=inputs)
    if store is not None and before is not None and before == fingerprint(experiment, inputs):
        store.keep(before, result)
    return result
