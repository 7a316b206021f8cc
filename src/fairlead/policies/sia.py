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
`JobSpec`. Where we differ: costs are rounded to two digits only if asked for (`digits`); what a restart takes is what
the job's own took, unless the paper's figures are asked for (`restarts`); and where whole nodes are not free, a job of
several nodes may be spread over more of them.

Legend: J jobs, T GPU types, S sizes (0 GPUs first), N nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fairlead.core.errors import InvalidPlan, InvalidSpec
from fairlead.core.learning import MODEL
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, Phase, Plan
from fairlead.policies.allocator import Answer, Problem, allocate, place, sizing_costs
from fairlead.policies.appraising import Appraiser
from fairlead.policies.explaining import shut_reasons, weighed_reasons
from fairlead.policies.placing import realise
from fairlead.policies.programme import programmed
from fairlead.policies.weighing import Choices, choices, fewest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


#: What a restart is taken to cost in the released code (S_j), by model; `restart_s` for others.
PUBLISHED_RESTART_S = {"deepspeech2": 25.0, "imagenet": 250.0, "cifar10": 30.0, "bert": 120.0, "yolov3": 45.0}


@dataclass(frozen=True)
class Sia:
    """Goodput relative to each job's slowest choice, over GPU types and numbers of GPUs at once."""

    adapts = "batch"
    #: Seconds between decisions that it is made for: between them it never asks to look again.
    period_s: ClassVar[float] = 60.0

    #: Exponent of the utility: the more negative, the more the worst off count. Not 0.
    p: float = -0.5
    #: What waiting costs (lambda), where the slowest configuration costs 1.
    idle: float = 1.1
    #: What a restart is taken to cost, in seconds, until the job has been seen to start.
    restart_s: float = 30.0
    #: measured: what the job's own starts took; published: the paper's figures by model, whatever starts take.
    restarts: str = "measured"
    #: Costs are rounded to so many digits after the point, so that jobs are not moved for less; the released code's 2.
    digits: int = 15
    #: exact: our own search, with its bound; milp: the paper's integer programme, solved by HiGHS.
    search: str = "exact"
    #: After so many seconds the integer programme's best answer so far is taken, with its bound.
    time_limit_s: float = 10.0
    _appraiser: Appraiser = field(default_factory=Appraiser, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.restarts not in ("measured", "published"):
            raise InvalidSpec(f"sia: restarts is {self.restarts!r}; expected measured or published")
        if not 0 <= self.digits <= 15:
            raise InvalidSpec(f"sia: digits is {self.digits}; expected 0 to 15")
        if self.search not in ("exact", "milp"):
            raise InvalidSpec(f"sia: search is {self.search!r}; expected exact or milp")
        if not -10.0 <= self.p <= 10.0 or self.p == 0.0:
            raise InvalidSpec(f"sia: p is {self.p}; expected -10 to 10, and not 0")
        if not 1.0 < self.idle < math.inf:
            raise InvalidSpec(f"sia: idle is {self.idle}; the slowest configuration costs 1, so expected more than 1")
        if not 0.0 <= self.restart_s < math.inf:
            raise InvalidSpec(f"sia: restart_s is {self.restart_s}; expected a number of seconds of at least 0")
        if not 0.0 < self.time_limit_s < math.inf:
            raise InvalidSpec(f"sia: time_limit_s is {self.time_limit_s}; expected a number of seconds above 0")

    def plan(self, view: Snapshot) -> Plan:
        if not view.jobs or not any(node.open for node in view.nodes.values()):
            return Plan(dict(view.allocations), shut_reasons(view))
        options = configured(choices(view, self._appraiser, reach=1, lore=False))
        problem = self.problem(view.now, options)
        answer = solve(problem, time_limit_s=self.time_limit_s) if self.search == "milp" else allocate(problem)
        allocations = realise(view, [job.id for job in options.jobs], answer.where)
        return Plan(allocations, weighed_reasons(view, allocations, options, problem), bound=_gap(answer))

    def problem(self, now: float, options: Choices) -> Problem:
        """What every configuration costs every job."""
        unit_J = _slowest(options)

        def cost(goodput_JTS: Floats) -> Floats:
            with np.errstate(divide="ignore"):  # what would never pay off again is infinitely dear
                exact_JTS = -np.sign(self.p) * (goodput_JTS / unit_J[:, None, None]) ** self.p
            return np.asarray(np.round(exact_JTS, self.digits))

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
        pause_s = self._pause_s(job)
        age_s = now - job.submitted_at
        if not job.allocation or age_s < pause_s or age_s <= 0.0:
            return 1.0
        return max(age_s - (job.attempt - 1) * pause_s, 0.0) / (age_s + pause_s)

    def _pause_s(self, job: Job) -> float:
        """S_j."""
        measured_s = job.rescale_s if job.spec.in_place else job.start_s
        if self.restarts == "published":
            measured_s = PUBLISHED_RESTART_S.get(job.spec.labels.get(MODEL, ""))
        return self.restart_s if measured_s is None else measured_s


def _gap(answer: Answer) -> float | None:
    """How far from the optimum at most, as a share of it."""
    if answer.bound == 0.0:
        return 0.0 if answer.cost <= 0.0 else None
    return max(0.0, (answer.cost - answer.bound) / abs(answer.bound))


def solve(problem: Problem, *, time_limit_s: float) -> Answer:
    """The best sizes and types as HiGHS finds them, placed as `allocator` places them; the bound is HiGHS' own."""
    if not len(problem.idle_J):
        return Answer((), 0.0, 0.0)
    costs = sizing_costs(problem)
    try:
        sizing = programmed(costs, time_limit_s=time_limit_s)
    except ImportError:
        raise InvalidSpec(
            "sia: search=milp needs scipy, of which nothing was found; pip install 'scipy>=1.11,<2', which fairlead "
            "itself asks for, or use search=exact"
        ) from None
    if sizing is None:
        raise InvalidPlan(
            f"sia: the integer programme of {len(costs.idle_J)} jobs has no answer after {time_limit_s:g} s; "
            "raise time_limit_s, or use search=exact"
        )
    where, cost = place(problem, sizing, costs.stay_type_J)
    return Answer(where, cost, min(sizing.bound, cost), sizing.price_T)


# -- configurations ----------------------------------------------------------------------------------------------------


def configured(options: Choices) -> Choices:
    """Only Sia's configurations, and for every job the fewest GPUs it can run on, so that it can begin."""
    sizes_S = options.sizes_S
    one_TS = np.zeros((len(options.gpu_types), len(sizes_S)), dtype=bool)
    many_TS = one_TS.copy()
    least_J = np.array([fewest(job) for job in options.jobs])
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
    least_J = np.array([fewest(job) for job in options.jobs])
    both_2JTS = np.stack([options.one_JTS, options.many_JTS])
    slowest_J = np.where(both_2JTS > 0.0, both_2JTS, np.inf).min(axis=(0, 2, 3))
    return np.asarray(np.where(np.isfinite(slowest_J), slowest_J, 1.0) / least_J)
