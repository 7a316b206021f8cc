"""Sia (Jayaram Subramanya et al., SOSP '23): which job, on how many GPUs of which type, by what it gains there.

A configuration is a GPU type and a number of its GPUs: a power of two within a node, a whole node, or several whole
nodes. So whatever fits by number can be placed, and no two jobs that span nodes share one. With g the goodput of job j
in configuration c, as its model for that GPU type says,

    G[j, c] = least_j g[j, c] / min over c' of g[j, c']          (least_j GPUs are the fewest it runs on: mostly 1)
    r_j     = max(T_j - N_j S_j, 0) / (T_j + S_j)                (1 while T_j < S_j)
    cost    = -sign(p) (G[j, c] r_j)^p                           (r_j only where c is not what it holds now)
            = idle, the paper's lambda                           (no GPUs)

where T_j is the age of a job, N_j how often it was restarted and S_j what a restart takes. The sum over all jobs is
minimised, within the GPUs there are of each type.

This is the released code's objective. The paper's equation, max sum_j (sum_c A G^p + lambda (1 - |A_j|)), is meant for
p > 0 and a negative lambda; for p < 0 the code minimises the same sum with a positive one. Either way lambda is a
penalty, so here it is a cost: a job's slowest configuration costs 1 at p < 0, and to wait must cost more than that.

A job has at most twice the GPUs it was measured on, and begins on as few as it can. Whoever is starting or rescaling
keeps what it holds until that is over. What kind a job is (adaptive, elastic, rigid, not preemptible) follows from its
`JobSpec`. Where we differ: costs are not rounded to two digits; and where whole nodes are not free, a job of several
nodes may be spread over more of them.

Legend: J jobs, T GPU types, S sizes (0 GPUs first), N nodes, V binary variables, R rows of constraints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairlead.core.errors import InvalidPlan, InvalidSpec
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, Phase, Plan
from fairlead.policies.allocator import Answer, Problem, allocate, place, sizing_costs
from fairlead.policies.appraising import Appraiser
from fairlead.policies.arranging import STAY
from fairlead.policies.explaining import weighed_reasons
from fairlead.policies.placing import realise
from fairlead.policies.reasons import queued_reasons
from fairlead.policies.sizing import Costs, Sizing
from fairlead.policies.weighing import Choices, choices

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: The solver may stop this close to the optimum, as a share of it: the released code's own figure.
CLOSE_ENOUGH = 1e-4


@dataclass(frozen=True)
class Sia:
    """Goodput relative to each job's slowest choice, over GPU types and numbers of GPUs at once."""

    adapts = "batch"

    #: Exponent of the utility: the more negative, the more the worst off count. Not 0.
    p: float = -0.5
    #: What waiting costs (lambda), where the slowest configuration costs 1.
    idle: float = 1.1
    #: What a restart is taken to cost, in seconds, until the job has been seen to start.
    restart_s: float = 30.0
    #: exact: our own search, with its bound; milp: the paper's integer programme, solved by HiGHS.
    search: str = "exact"
    #: After so many seconds the integer programme's best answer so far is taken, with its bound.
    time_limit_s: float = 10.0
    _appraiser: Appraiser = field(default_factory=Appraiser, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.search not in ("exact", "milp"):
            raise InvalidSpec(f"sia: search is {self.search!r}; expected exact or milp")
        if not math.isfinite(self.p) or self.p == 0.0:
            raise InvalidSpec(f"sia: p is {self.p}; expected a finite number other than 0")
        if not 1.0 < self.idle < math.inf:
            raise InvalidSpec(f"sia: idle is {self.idle}; the slowest configuration costs 1, so expected more than 1")
        if not 0.0 <= self.restart_s < math.inf or not 0.0 < self.time_limit_s < math.inf:
            raise InvalidSpec(
                f"sia: restart_s is {self.restart_s} and time_limit_s {self.time_limit_s}; expected seconds"
            )

    def plan(self, view: Snapshot) -> Plan:
        if not view.jobs or not any(node.open for node in view.nodes.values()):
            return Plan(dict(view.allocations), queued_reasons(view, view.allocations, "no node is open"))
        options = configured(choices(_nameless(view), self._appraiser, reach=1, lore=True))
        problem = self.problem(view.now, options)
        answer = solve(problem, time_limit_s=self.time_limit_s) if self.search == "milp" else allocate(problem)
        allocations = realise(view, [job.id for job in options.jobs], answer.where)
        return Plan(allocations, weighed_reasons(view, allocations, options, problem), bound=_gap(answer))

    def problem(self, now: float, options: Choices) -> Problem:
        """What every configuration costs every job."""
        unit_J = _slowest(options)

        def cost(goodput_JTS: Floats) -> Floats:
            with np.errstate(divide="ignore"):  # what would never pay off again is infinitely dear
                return np.asarray(-np.sign(self.p) * (goodput_JTS / unit_J[:, None, None]) ** self.p)

        factor_J = np.array([self._restart_factor(now, job) for job in options.jobs])
        problem = options.problem(
            cost,
            moved=lambda goodput: goodput * factor_J[:, None, None],
            idle_J=np.full(len(options.jobs), self.idle),
        )
        busy_J = np.array([job.phase in (Phase.STARTING, Phase.RESCALING) for job in options.jobs])
        pinned_J = busy_J & np.array([bool(job.allocation) for job in options.jobs])
        problem.one_JTS[pinned_J] = problem.many_JTS[pinned_J] = problem.idle_J[pinned_J] = np.inf
        problem.stay_J[pinned_J & ~np.isfinite(problem.stay_J)] = 0.0
        return problem

    def _restart_factor(self, now: float, job: Job) -> float:
        """r_j. A job that holds nothing has no other configuration to give up: it is 1, as in the released code."""
        measured_s = job.rescale_s if job.spec.in_place else job.start_s
        pause_s = self.restart_s if measured_s is None else measured_s
        age_s = now - job.submitted_at
        if not job.allocation or age_s < pause_s or age_s <= 0.0:
            return 1.0
        return max(age_s - (job.attempt - 1) * pause_s, 0.0) / (age_s + pause_s)


def _nameless(view: Snapshot) -> Snapshot:
    """The same with lore in which nobody finds its own model: it tells of GPU types, and of no job.

    The paper's jobs try one GPU of every type before they start. Ours cannot, so the median of other models stands in
    for that; of the same model Sia knows nothing in advance.
    """
    return replace(view, lore={f"\0{model}": belief for model, belief in view.lore.items()})


def _gap(answer: Answer) -> float | None:
    """How far from the optimum at most, as a share of it."""
    if answer.bound == 0.0:
        return 0.0 if answer.cost <= 0.0 else None
    return max(0.0, (answer.cost - answer.bound) / abs(answer.bound))


# -- configurations ----------------------------------------------------------------------------------------------------


def configured(options: Choices) -> Choices:
    """Only Sia's configurations, and for every job the fewest GPUs it can run on, so that it can begin."""
    sizes_S = options.sizes_S
    one_TS = np.zeros((len(options.gpu_types), len(sizes_S)), dtype=bool)
    many_TS = one_TS.copy()
    least_J = np.array([job.spec.least for job in options.jobs])
    fewest_JS = sizes_S == least_J[:, None]
    one_JTS, many_JTS = options.one_JTS.copy(), options.many_JTS.copy()
    for kind in range(len(options.gpu_types)):
        gpus_N = options.gpus_N[options.type_N == kind]
        one_TS[kind], many_TS[kind] = configurations(sizes_S, gpus_N)
        largest = gpus_N.max(initial=0)
        one_JTS[:, kind] *= one_TS[kind] | fewest_JS
        many_JTS[:, kind] *= many_TS[kind] | (fewest_JS & (least_J > largest)[:, None])
    held_S = np.isin(sizes_S, [job.allocation.total for job in options.jobs])  # 0, of whoever waits, is a size too
    used_S = (sizes_S == 0) | held_S | ((one_JTS > 0.0) | (many_JTS > 0.0)).any(axis=(0, 1))
    return replace(options, sizes_S=sizes_S[used_S], one_JTS=one_JTS[:, :, used_S], many_JTS=many_JTS[:, :, used_S])


def configurations(sizes_S: Ints, gpus_N: Ints) -> tuple[Flags, Flags]:
    """Which sizes are configurations on one node of a GPU type, and on several; `gpus_N` are its nodes.

    Where nodes differ in size, whole nodes are those of the largest size.
    """
    largest = int(gpus_N.max(initial=0))
    if largest == 0:
        return np.zeros(len(sizes_S), dtype=bool), np.zeros(len(sizes_S), dtype=bool)
    power_S = (sizes_S > 0) & (sizes_S & (sizes_S - 1) == 0)
    one_S = (power_S & (sizes_S < largest)) | np.isin(sizes_S, gpus_N[gpus_N > 0])
    many_S = (sizes_S % largest == 0) & (sizes_S > largest) & (sizes_S <= largest * (gpus_N == largest).sum())
    return one_S, many_S


def _slowest(options: Choices) -> Floats:
    """Goodput that counts as 1: of each job's slowest configuration, by the fewest GPUs it can run on."""
    least_J = np.array([job.spec.least for job in options.jobs])
    both_2JTS = np.stack([options.one_JTS, options.many_JTS])
    slowest_J = np.where(both_2JTS > 0.0, both_2JTS, np.inf).min(axis=(0, 2, 3))
    return np.asarray(np.where(np.isfinite(slowest_J), slowest_J, 1.0) / least_J)


# -- the integer programme ---------------------------------------------------------------------------------------------


class Programme(NamedTuple):
    """Binary variables, each a choice of a job: what it costs more than waiting, and which rows it counts in.

    Rows are the jobs, of which each has one choice at most (exactly one, if it must not wait), and the GPU types.
    """

    cost_V: Floats
    job_V: Ints
    type_V: Ints
    size_V: Ints
    gpus_V: Ints
    #: Bounds of the rows.
    low_R: Floats
    high_R: Floats
    #: What all would cost if nobody had anything.
    waiting: float


def solve(problem: Problem, *, time_limit_s: float) -> Answer:
    """The best sizes and types as HiGHS finds them, placed as `allocator` places them; the bound is HiGHS' own."""
    if not len(problem.idle_J):
        return Answer((), 0.0, 0.0)
    costs = sizing_costs(problem)
    sizing = read(costs, build(costs), time_limit_s)
    where, cost = place(problem, sizing, costs.stay_type_J)
    return Answer(where, cost, min(sizing.bound, cost), sizing.price_T)


def build(costs: Costs) -> Programme:
    """One variable for every choice a job may make but waiting; what it holds now is one of them."""
    job_V, type_V, size_V = np.nonzero(np.isfinite(costs.cost_JTS) & (costs.sizes_S > 0))
    staying = np.flatnonzero(np.isfinite(costs.stay_J))
    idle_J = np.where(np.isfinite(costs.idle_J), costs.idle_J, 0.0)
    every_V = np.concatenate([job_V, staying])
    paid_V = np.concatenate([costs.cost_JTS[job_V, type_V, size_V], costs.stay_J[staying]])
    return Programme(
        cost_V=paid_V - idle_J[every_V],
        job_V=every_V,
        type_V=np.concatenate([type_V, costs.stay_type_J[staying]]),
        size_V=np.concatenate([size_V, np.full(len(staying), STAY)]),
        gpus_V=np.concatenate([costs.sizes_S[size_V], costs.stay_gpus_J[staying]]),
        low_R=np.concatenate([np.where(np.isfinite(costs.idle_J), 0.0, 1.0), np.zeros(len(costs.capacity_T))]),
        high_R=np.concatenate([np.ones(len(idle_J)), costs.capacity_T]),
        waiting=float(idle_J.sum()),
    )


def read(costs: Costs, programme: Programme, time_limit_s: float) -> Sizing:
    """Everyone's choice; raises InvalidPlan if the solver has none."""
    jobs, prices = len(costs.idle_J), np.full(len(costs.capacity_T), np.nan)
    type_J, size_J = np.zeros(jobs, dtype=np.int64), np.zeros(jobs, dtype=np.int64)
    if not len(programme.cost_V):
        return Sizing(type_J, size_J, programme.waiting, prices)
    found = _highs(programme, jobs, time_limit_s)
    if found.x is None or found.status not in (0, 1):  # 1: the time is up
        raise InvalidPlan(
            f"sia: the integer programme of {jobs} jobs has no answer after {time_limit_s:g} s ({found.message}); "
            "raise time_limit_s, or use search=exact"
        )
    chosen = np.flatnonzero(found.x > 0.5)
    type_J[programme.job_V[chosen]] = programme.type_V[chosen]
    size_J[programme.job_V[chosen]] = programme.size_V[chosen]
    reached = programme.waiting + float(programme.cost_V[chosen].sum())
    dual = found.mip_dual_bound
    bound = -math.inf if dual is None or math.isnan(dual) else programme.waiting + float(dual)
    return Sizing(type_J, size_J, min(bound, reached), prices)


def _highs(programme: Programme, jobs: int, time_limit_s: float) -> Any:
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import, and only this search needs it
        from scipy.sparse import coo_array
    except ImportError:
        raise InvalidSpec(
            "sia: search=milp needs scipy, of which nothing was found; pip install 'scipy>=1.11,<2', which fairlead "
            "itself asks for, or use search=exact"
        ) from None
    variables = np.arange(len(programme.cost_V))
    weights = np.concatenate([np.ones(len(variables)), programme.gpus_V])
    rows = np.concatenate([programme.job_V, jobs + programme.type_V])
    matrix = coo_array((weights, (rows, np.tile(variables, 2))), shape=(len(programme.low_R), len(variables)))
    return milp(
        programme.cost_V,
        integrality=np.ones(len(variables)),
        bounds=Bounds(0.0, 1.0),
        constraints=LinearConstraint(matrix.tocsr(), programme.low_R, programme.high_R),
        options={"time_limit": time_limit_s, "mip_rel_gap": CLOSE_ENOUGH},
    )
