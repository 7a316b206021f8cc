"""Small workloads in the simulator: does everybody finish, and does a large job get its turn?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fairlead.core.capability import Capability, needs_of
from fairlead.core.loop import Cadence, Policy, run
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import JobSpec, Node, Phase, Plan
from fairlead.journal import MemoryJournal
from fairlead.sim.backend import SimBackend
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.costs import FREE, Costs
from fairlead.sim.oracle import SimStepOracle
from fairlead.sim.truth import FixedDuration
from fairlead.sim.world import Outage, SimJob
from fairlead.testing.contract import PolicyContractError, decide
from fairlead.testing.history import job_specs, node_tuples

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

#: Decisions per job after which all of them should have come to an end.
DECISIONS_PER_JOB = 1000

#: The stream of small jobs: each one GPU for so long, and ten in the time in which eight can be served.
SMALL_S = 600.0
SMALL_JOBS = 400
#: A large job that comes early starts within this many small jobs' lengths, or it starves: the stream lasts forty.
STARTS_WITHIN = 10.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs that all fit the nodes, and a node that fails and returns."""

    nodes: tuple[Node, ...]
    jobs: tuple[SimJob, ...]
    outages: tuple[Outage, ...] = ()


#: How a plan is got out of a policy: `decide` checks it as well.
Decide = Callable[[Policy, Snapshot], Plan]


def _trust(policy: Policy, view: Snapshot) -> Plan:
    return policy.plan(view)


class _Watched:
    """The policy in a simulation: its decisions are counted, and it is told the truth if it needs that."""

    def __init__(self, policy: Policy, backend: SimBackend, decide: Decide, workload: Workload) -> None:
        self._policy, self._backend, self._decide = policy, backend, decide
        self._left = DECISIONS_PER_JOB * len(workload.jobs)
        self._oracle = SimStepOracle(backend, workload.nodes) if Capability.ORACLE in needs_of(policy) else None

    def plan(self, view: Snapshot) -> Plan:
        if self._left == 0:
            raise PolicyContractError("finishes", f"no end after {DECISIONS_PER_JOB} decisions per job", view)
        self._left -= 1
        if self._oracle is not None:
            view = replace(view, oracle=self._backend.remaining_s, step_oracle=self._oracle)
        return self._decide(self._policy, view)


def simulate(policy: Policy, workload: Workload, decide: Decide = decide) -> State:
    """The state after the workload ran to its end, or until nothing happens any more."""
    state, backend = State(), SimBackend(workload.jobs, workload.nodes, outages=workload.outages)
    watched = _Watched(policy, backend, decide, workload)
    run(watched, backend, state=state, journal=MemoryJournal(), cadence=Cadence())
    return state


def check_finishes(policy: Policy, workload: Workload) -> None:
    """Raise unless every job succeeds or was cancelled."""
    state = simulate(policy, workload)
    if state.live:
        jobs = ", ".join(f"{job.id} ({job.phase})" for job in state.live.values())
        raise PolicyContractError(
            "finishes", f"nothing happens any more, but these did not end: {jobs}", state.snapshot()
        )
    failed = [job.id for job in state.finished.values() if job.phase is Phase.FAILED]
    assert not failed, f"jobs of a simulated workload cannot fail, but {failed} did: this is a defect of Fairlead"


def check_starvation(policy: Policy) -> None:
    """Raise unless a large job starts within the bound, whether or not the small ones promise when they end."""
    for promise_s in (SMALL_S, None):
        small = [_small(f"small-{k:03d}", k * SMALL_S / 10, promise_s) for k in range(SMALL_JOBS)]
        large_spec = JobSpec(id="large", gpus=8, estimate_s=SMALL_S)
        large = SimJob(large_spec, SMALL_S + 1.0, FixedDuration(SMALL_S, 8))
        job = simulate(policy, Workload(parse_cluster("2x4"), (*small, large)), _trust).job("large")
        assert job is not None
        waited_s = SMALL_JOBS * SMALL_S if job.first_started_at is None else job.first_started_at - job.submitted_at
        if waited_s > STARTS_WITHIN * SMALL_S:
            promises = "that promise their run time" if promise_s else "without promised run times"
            raise PolicyContractError(
                "starvation-free",
                f"a job that needs all 8 GPUs waited {waited_s:g} s behind a stream of 1-GPU jobs of {SMALL_S:g} s "
                f"{promises}; the bound is {STARTS_WITHIN * SMALL_S:g} s. Do not claim it, or make it so",
            )


def _small(job_id: str, submit_at: float, promise_s: float | None) -> SimJob:
    return SimJob(JobSpec(id=job_id, estimate_s=promise_s), submit_at, FixedDuration(SMALL_S, 1))


# -- drawing -------------------------------------------------------------------------------------------------------


def workloads() -> SearchStrategy[Workload]:
    """At most 3 nodes and 8 jobs that fit them, with and without costs, some cancelled; perhaps one outage."""
    from hypothesis import strategies as st

    times = st.sampled_from((0.0, 1.0, 59.5, 600.0, 5000.0))
    costs = st.sampled_from((FREE, Costs(start_s=10.0, restart_s=25.0, save_s=5.0, rescale_s=2.0)))
    cancels = st.sampled_from((None, None, None, 30.0, 700.0))
    jobs = st.lists(st.tuples(job_specs(), times, times, costs, cancels), min_size=2, max_size=8)
    outages = st.lists(st.tuples(st.integers(0, 2), times, times), max_size=1)
    nodes = node_tuples(most=3)
    return st.builds(_workload, nodes, jobs, outages)


def _workload(
    nodes: tuple[Node, ...],
    jobs: Sequence[tuple[JobSpec, float, float, Costs, float | None]],
    outages: Sequence[tuple[int, float, float]],
) -> Workload:
    room: dict[str, int] = {}
    for node in nodes:
        room[node.gpu_type] = room.get(node.gpu_type, 0) + node.gpus
    made = []
    for place, (spec, submit_at, duration_s, costs, cancel_after_s) in enumerate(jobs):
        fitting = _fitted(replace(spec, id=f"j{place}"), room)
        cancel_at = None if cancel_after_s is None else submit_at + cancel_after_s
        made.append(SimJob(fitting, submit_at, FixedDuration(duration_s, fitting.gpus), costs, cancel_at))
    lost = [Outage(nodes[which % len(nodes)].id, at, at + 1.0 + more) for which, at, more in outages]
    return Workload(nodes, tuple(made), tuple(lost))


def _fitted(spec: JobSpec, room: dict[str, int]) -> JobSpec:
    """The job cut down to what the cluster can give it."""
    types = tuple(gpu_type for gpu_type in spec.gpu_types if gpu_type in room)
    most = max(room[gpu_type] for gpu_type in types or room)
    gpus = min(spec.gpus, most)
    return replace(spec, gpu_types=types, gpus=gpus, gpus_min=min(spec.least, gpus), gpus_max=max(gpus, spec.most))
