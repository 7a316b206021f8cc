"""Why a goodput policy gave a job what it did: what a GPU more or less would do to it and to the objective."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job, Reason
from fairlead.core.wording import counted
from fairlead.policies.allocator import Problem
from fairlead.policies.displacement import cost_of
from fairlead.policies.reasons import PLACED, Reasons
from fairlead.policies.wait_reason import Discipline, Waits
from fairlead.policies.weighed_wait import Rules, Standing, WeighedWaits, is_price
from fairlead.policies.weighing import Choices, fewest

NO_RULES = Rules()


def weighed_reasons(
    view: Snapshot,
    allocations: Mapping[str, Allocation],
    options: Choices,
    problem: Problem,
    *,
    rules: Rules = NO_RULES,
) -> Reasons:
    """Reasons with the speed-up curve around the chosen point, relative to one GPU of the same type.

    A job that waits is told what decides: see `weighed_wait`. `rules` are what decides beside the objective.
    """
    place = {job.id: j for j, job in enumerate(options.jobs)}
    waits = WeighedWaits(view, allocations, options, problem, rules)

    def explain(job: Job) -> Reason:
        allocation, j = allocations.get(job.id), place[job.id]
        numbers, parts = _figures(view, job, j, allocation, options, problem)
        if allocation is None:
            return waits.reason(job, j, numbers)
        text = _verdict(job, allocation, numbers, _owed(problem, numbers, rules.standing(job.id)))
        return Reason(PLACED, f"{text} ({'; '.join(parts)})" if parts else text, numbers)

    return Reasons(view, explain)


def shut_reasons(view: Snapshot) -> Reasons:
    """Reasons while no node is open: every job stays where it is."""
    waits = Waits(view, view.allocations, Discipline("by goodput"))

    def explain(job: Job) -> Reason:
        if job.allocation:
            gpus = job.allocation.total
            return Reason(PLACED, f"keeps {counted(gpus, 'GPU')}: {job.allocation}", {"gpus": gpus})
        return waits.too_large(job, fewest(job))

    return Reasons(view, explain)


def _figures(
    view: Snapshot, job: Job, j: int, allocation: Allocation | None, options: Choices, problem: Problem
) -> tuple[dict[str, float], list[str]]:
    """What the tables say of a job where the plan puts it, and of a GPU less and more in words."""
    accepted = [kind for kind, name in enumerate(options.gpu_types) if name in job.spec.gpu_types]
    kind = options.gpu_types.index(view.nodes[allocation.nodes[0]].gpu_type) if allocation else (accepted or [0])[0]
    appraisal = options.appraisals[j][options.gpu_types[kind]]
    gpus, nodes = (allocation.total, len(allocation.shares)) if allocation else (0, 0)
    single = appraisal.goodput(1, job.spec.least) or 1.0
    numbers: dict[str, float] = {"gpus": gpus, "most": appraisal.most}
    here = appraisal.goodput(nodes, gpus) if gpus else 0.0
    numbers |= {"goodput": here, "speedup": here / single}
    cost = cost_of(problem, j, kind, gpus, stays=allocation is not None and allocation == job.allocation, nodes=nodes)
    parts = []
    for name, other in (("less", gpus - 1), ("more", gpus + 1)):
        change = cost_of(problem, j, kind, other) - cost
        if other < 0 or not math.isfinite(change):
            continue
        best = _goodput(options, j, kind, other)
        numbers |= {f"speedup_{name}": best / single, f"objective_{name}": -change}
        parts.append(f"one {name}: {best / single:.2f}x, {_worth(problem, -change)}")
    if job.allocation and allocation != job.allocation:
        kept = float(problem.stay_J[j])
        numbers["objective_stay"] = cost - kept if math.isfinite(kept) else -math.inf
    return numbers, parts


def _owed(problem: Problem, numbers: Mapping[str, float], standing: Standing | None) -> str | None:
    """What a rule owes the job that has GPUs; empty if that is not known in detail, None if it is owed nothing."""
    changes = [value for name, value in numbers.items() if name.startswith("objective") and math.isfinite(value)]
    if not any(is_price(problem, change) for change in changes):
        return None
    return "" if standing is None else str(standing)


def _goodput(options: Choices, j: int, kind: int, gpus: int) -> float:
    """With so many GPUs, where they are best placed."""
    sizes = options.sizes_S.tolist()
    if gpus not in sizes:
        return 0.0
    size = sizes.index(gpus)
    return float(max(options.one_JTS[j, kind, size], options.many_JTS[j, kind, size]))


def _worth(problem: Problem, change: float) -> str:
    if is_price(problem, change):
        return "which it is owed" if change > 0.0 else "less than it is owed"
    return f"objective {change:+.3g}"


def _verdict(job: Job, allocation: Allocation, numbers: Mapping[str, float], owed: str | None) -> str:
    """`owed` is what a rule owes the job; None if nothing."""
    fast = f"{numbers['speedup']:.2f}x the speed of {'one' if job.spec.least == 1 else job.spec.least}"
    worse = -numbers.get("objective_stay", 0.0)  # what staying would be worse by
    # Of a job that holds GPUs, the tables do not tell a lease from a floor.
    either = f"{'its lease is not over, or ' * bool(job.allocation)}it is behind its floor"
    first = "" if owed is None else f"; {owed or either}"
    if allocation == job.allocation:
        return f"keeps {counted(allocation.total, 'GPU')} at {fast}{first}"
    if not job.allocation:
        return f"gets {counted(allocation.total, 'GPU')}: {fast}{first}"
    change = f"goes from {job.allocation.total} to {counted(allocation.total, 'GPU')}, {fast}{first}"
    if owed is not None or not math.isfinite(worse):
        return change
    return (
        f"{change}: staying would be worse for it by {worse:.3g}" if worse > 0 else f"{change}: others gain more by it"
    )
