"""Trace x cluster x policy x cadence x costs x seed -> Result.

Two equal experiments on equal files give the same journal, bit for bit. What an experiment is, and the world that it
makes of a trace, is in `experiment_setup`.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fairlead.core.capability import Capability, needs_of
from fairlead.core.errors import FairleadError, InvalidPlan, InvalidSpec
from fairlead.core.loop import Cadence, Policy, run
from fairlead.core.messages import Event
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Node, Plan
from fairlead.database_url import without_password
from fairlead.journal import MemoryJournal
from fairlead.plugins import make_policy
from fairlead.sim import job_table
from fairlead.sim.backend import SimBackend
from fairlead.sim.experiment_setup import DEFAULT_CLUSTER as DEFAULT_CLUSTER
from fairlead.sim.experiment_setup import NAMED as NAMED
from fairlead.sim.experiment_setup import Experiment as Experiment
from fairlead.sim.experiment_setup import Inputs as Inputs
from fairlead.sim.experiment_setup import World as World
from fairlead.sim.experiment_setup import default_cluster as default_cluster
from fairlead.sim.experiment_setup import demands_of
from fairlead.sim.experiment_setup import prepare as prepare
from fairlead.sim.metrics import JobOutcome, Measured, Metrics, Window, measure
from fairlead.sim.noise import ObservationNoise
from fairlead.sim.offered_load import Yardstick
from fairlead.sim.oracle import SimStepOracle
from fairlead.sim.world import SimJob

#: Called now and then with the share of jobs that have ended.
Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of an experiment."""

    experiment: Experiment
    measured: Measured
    #: True work of the jobs over what the cluster can do while they arrive; None if that is not known.
    offered_load: float | None
    #: Jobs of the trace that were not simulated, by reason.
    left_out: Mapping[str, int]
    #: Jobs cut down to the size of the cluster.
    clipped: int
    #: The policy knew how long jobs would run.
    oracle: bool
    decisions: int
    decision_ms_mean: float
    decision_ms_p99: float
    wall_s: float
    cpu_s: float
    #: Where the input may not be what it is taken for, in sentences.
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> Metrics:
        return self.measured.summary

    @property
    def jobs(self) -> tuple[JobOutcome, ...]:
        """What became of each job, in order of submission."""
        return self.measured.jobs

    def to_pandas(self) -> Any:
        """One row for each job, as a pandas DataFrame. Needs pandas."""
        return job_table.to_pandas([self])

    def to_dict(self) -> dict[str, Any]:
        """The experiment's settings, its metrics and what deciding cost, flat; JSON without NaN."""
        timing = {name: getattr(self, name) for name in ("decisions", "decision_ms_mean", "decision_ms_p99")}
        timing |= {"wall_s": self.wall_s, "cpu_s": self.cpu_s}
        setting = {f"setting_{name}": value for name, value in asdict(self.experiment).items() if name != "policy"}
        setting["setting_trace"] = without_password(self.experiment.trace)
        figures = self.measured.summary.to_dict() | {"left_out": sum(self.left_out.values()), "notes": list(self.notes)}
        figures["offered_load"] = self.offered_load
        return {"policy": self.experiment.policy, **figures, **timing, **setting}


class _Watched:
    """The policy, with a clock beside it and, if it declared itself an oracle, the truth in its view."""

    def __init__(self, policy: Policy, backend: SimBackend, nodes: Sequence[Node]) -> None:
        self._policy, self._backend = policy, backend
        self._oracle = SimStepOracle(backend, nodes) if Capability.ORACLE in needs_of(policy) else None
        self.decision_s: list[float] = []

    def plan(self, view: Snapshot) -> Plan:
        if self._oracle is not None:
            view = replace(view, oracle=self._backend.remaining_s, step_oracle=self._oracle)
        begin = time.perf_counter()
        try:
            plan = self._policy.plan(view)
        except FairleadError:
            raise
        except Exception as error:  # whatever a plug-in raises is the plug-in's fault
            where = traceback.extract_tb(error.__traceback__)[-1]
            raise InvalidPlan(f"it raised {error!r} in {where.filename}, line {where.lineno}") from error
        self.decision_s.append(time.perf_counter() - begin)
        if not isinstance(plan, Plan):
            raise InvalidPlan(f"plan(view) returned {type(plan).__name__}; expected a Plan")
        return plan


def run_experiment(
    experiment: Experiment,
    *,
    progress: Progress | None = None,
    journal: MemoryJournal | None = None,
    inputs: Inputs | None = None,
) -> Result:
    """Simulate to the end. The journal, if given, receives every message."""
    begin_wall, begin_cpu = time.perf_counter(), time.process_time()
    inputs = inputs or NAMED
    policy, cadence = inputs.policy_of(experiment), Cadence.parse(experiment.cadence)
    world = prepare(experiment, inputs)
    backend = _backend(experiment, world)
    watched, state = _Watched(policy, backend, world.nodes), _state(world)
    journal = MemoryJournal() if journal is None else journal
    loop_journal = journal if progress is None else _Reporting(journal, state, progress, len(world.jobs))
    lived = backend if experiment.stop == "end" else _UntilCounted(backend, state, experiment.window, world.jobs)
    with _blaming(experiment, state):
        run(watched, lived, state=state, journal=loop_journal, cadence=cadence)
    demands, yardstick = demands_of(world.jobs), Yardstick(world.nodes)
    alone_s = {job_id: time_s for job_id, job in demands.items() if (time_s := yardstick.best_s(job)) is not None}
    decision_ms = 1000.0 * np.array(watched.decision_s or [0.0])
    return Result(
        experiment=experiment,
        measured=measure(journal, alone_s=alone_s, window=experiment.window),
        offered_load=yardstick.load(list(demands.values())),
        left_out=world.left_out,
        clipped=world.clipped,
        oracle=Capability.ORACLE in needs_of(policy),
        decisions=len(watched.decision_s),
        decision_ms_mean=float(decision_ms.mean()),
        decision_ms_p99=float(np.percentile(decision_ms, 99)),
        wall_s=time.perf_counter() - begin_wall,
        cpu_s=time.process_time() - begin_cpu,
        notes=world.notes,
    )


class _UntilCounted:
    """A world that ends once all jobs have ended that arrived in the measured window."""

    def __init__(self, backend: SimBackend, state: State, window: Window, jobs: Sequence[SimJob]) -> None:
        self._backend, self._state = backend, state
        self.execute = backend.execute
        first_s = min(job.submit_at for job in jobs)
        self._awaited = [job.spec.id for job in jobs if window.counts(job.submit_at - first_s)]

    def wait(self, until: float) -> Sequence[Event] | None:
        while self._awaited and self._awaited[-1] in self._state.finished:
            self._awaited.pop()
        return self._backend.wait(until) if self._awaited else None


@contextmanager
def _blaming(experiment: Experiment, state: State) -> Iterator[None]:
    """An invalid plan is told with the policy that made it, and when."""
    try:
        yield
    except InvalidPlan as error:
        raise InvalidPlan(f"policy {experiment.policy} at second {state.now:.0f}: {error}") from error


def _state(world: World) -> State:
    """Of a cluster that knows its applications, and nothing else."""
    return State.of(replace(State().facts(), lore=world.lore))


def _backend(experiment: Experiment, world: World) -> SimBackend:
    return SimBackend(
        world.jobs,
        world.nodes,
        outages=world.outages,
        failing=world.failing,
        interference=experiment.interference,
        report_every_s=experiment.report_every_s,
        retune_every_s=experiment.retune_every_s,
        provision_s=experiment.provision_s,
        noise=ObservationNoise(experiment.noise, experiment.seed),
    )


class _Seen(Exception):
    """The moment that was asked for has come."""


def decision_at(experiment: Experiment, at_s: float) -> tuple[Snapshot, Plan]:
    """The first decision at or after a time: what the policy saw, and what it made of it."""
    world = prepare(experiment)
    backend = _backend(experiment, world)
    policy = _Watched(make_policy(experiment.policy), backend, world.nodes)
    seen: list[tuple[Snapshot, Plan]] = []

    class Watching:
        def plan(self, view: Snapshot) -> Plan:
            plan = policy.plan(view)
            if view.now >= at_s:
                seen.append((view, plan))
                raise _Seen
            return plan

    state = _state(world)
    try:
        with _blaming(experiment, state):
            run(Watching(), backend, state=state, journal=MemoryJournal(), cadence=Cadence.parse(experiment.cadence))
    except _Seen:
        return seen[0]
    raise InvalidSpec(f"nothing is decided at second {at_s:.0f} or later: every job has ended by then")


class _Reporting:
    """A journal that tells every so many commits how far the simulation is."""

    def __init__(self, journal: MemoryJournal, state: State, progress: Progress, jobs: int) -> None:
        self.append = journal.append
        self._state, self._progress, self._jobs, self._commits = state, progress, jobs, 0

    def commit(self) -> None:
        self._commits += 1
        if self._commits % 256 == 0:
            self._progress(len(self._state.finished) / self._jobs)
