"""Why a goodput policy gave a job what it did: what a GPU more or less would do to it and to the objective."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job, Reason
from fairlead.core.wording import counted
from fairlead.policies.allocator import Problem
from fairlead.policies.reasons import Reasons
from fairlead.policies.weighing import Choices

#: No speed-up is worth so much: beyond it a figure is the price of a GPU that a rule owes the job (`Problem.scale`).
PRICE = 1e3


def weighed_reasons(
    view: Snapshot, allocations: Mapping[str, Allocation], options: Choices, problem: Problem
) -> Reasons:
    """Reasons with the speed-up curve around the chosen point, relative to one GPU of the same type."""
    place = {job.id: j for j, job in enumerate(options.jobs)}

    def explain(job: Job) -> Reason:
        return _explain(view, job, place[job.id], allocations.get(job.id), options, problem)

    return Reasons(view, explain)


def _explain(
    view: Snapshot, job: Job, j: int, allocation: Allocation | None, options: Choices, problem: Problem
) -> Reason:
    accepted = [kind for kind, name in enumerate(options.gpu_types) if name in job.spec.gpu_types]
    kind = options.gpu_types.index(view.nodes[allocation.nodes[0]].gpu_type) if allocation else (accepted or [0])[0]
    appraisal = options.appraisals[j][options.gpu_types[kind]]
    gpus, nodes = (allocation.total, len(allocation.shares)) if allocation else (0, 0)
    single = appraisal.goodput(1, job.spec.least) or 1.0
    numbers: dict[str, float] = {"gpus": gpus, "most": appraisal.most}
    here = appraisal.goodput(nodes, gpus) if gpus else 0.0
    numbers |= {"goodput": here, "speedup": here / single}
    cost = _cost(problem, j, kind, gpus, stays=allocation is not None and allocation == job.allocation, nodes=nodes)
    parts = []
    for name, other in (("less", gpus - 1), ("more", gpus + 1)):
        change = _cost(problem, j, kind, other) - cost
        if other < 0 or not math.isfinite(change):
            continue
        best = _goodput(options, j, kind, other)
        numbers |= {f"speedup_{name}": best / single, f"objective_{name}": -change}
        parts.append(f"one {name}: {best / single:.2f}x, {_worth(problem, -change)}")
    if job.allocation and allocation != job.allocation:
        kept = float(problem.stay_J[j])
        numbers["objective_stay"] = cost - kept if math.isfinite(kept) else -math.inf
    if allocation is None and not (options.one_JTS[j].any() or options.many_JTS[j].any()):
        return Reason("no-room", "waits: there are no nodes it could run on", numbers)
    if allocation is None and _held_back(problem, j):
        return Reason("outweighed", "waits: GPUs that come free are kept for a job behind its floor", numbers)
    changes = [value for name, value in numbers.items() if name.startswith("objective") and math.isfinite(value)]
    owed = any(_is_price(problem, change) for change in changes)
    text = _verdict(job, allocation, numbers["speedup"], -numbers.get("objective_stay", 0.0), owed=owed)
    return Reason("placed" if allocation else "outweighed", f"{text} ({'; '.join(parts)})" if parts else text, numbers)


def _goodput(options: Choices, j: int, kind: int, gpus: int) -> float:
    """With so many GPUs, where they are best placed."""
    sizes = options.sizes_S.tolist()
    if gpus not in sizes:
        return 0.0
    size = sizes.index(gpus)
    return float(max(options.one_JTS[j, kind, size], options.many_JTS[j, kind, size]))


def _cost(problem: Problem, j: int, kind: int, gpus: int, *, stays: bool = False, nodes: int = 0) -> float:
    """What a choice costs the job: as it is placed, if that is known, else as it would be placed best."""
    if gpus == 0:
        return float(problem.idle_J[j])
    if stays:
        return float(problem.stay_J[j])
    sizes = problem.sizes_S.tolist()
    if gpus not in sizes:
        return math.inf
    one, many = float(problem.one_JTS[j, kind, sizes.index(gpus)]), float(problem.many_JTS[j, kind, sizes.index(gpus)])
    return min(one, many) if nodes == 0 else one if nodes == 1 else many


def _held_back(problem: Problem, j: int) -> bool:
    """Every choice was taken from it: what comes free is kept for whoever goes first."""
    some_S = problem.sizes_S > 0
    return not any(np.isfinite(cost_JTS[j][:, some_S]).any() for cost_JTS in (problem.one_JTS, problem.many_JTS))


def _is_price(problem: Problem, change: float) -> bool:
    return problem.scale is not None and abs(change) > PRICE


def _worth(problem: Problem, change: float) -> str:
    if _is_price(problem, change):
        return "which it is owed" if change > 0.0 else "less than it is owed"
    return f"objective {change:+.3g}"


def _verdict(job: Job, allocation: Allocation | None, speedup: float, worse: float, *, owed: bool) -> str:
    """`worse` is what staying would be worse by; `owed` is whether the job is served before others."""
    if allocation is None:
        if owed:
            return "waits: it is behind its floor, but there are not enough GPUs for all that are"
        return "waits: every GPU does more good elsewhere"
    fast = f"{speedup:.2f}x the speed of {'one' if job.spec.least == 1 else job.spec.least}"
    # Of a job that holds GPUs, the tables do not tell the two apart.
    first = (f"; {'its lease is not over, or ' * bool(job.allocation)}it is behind its floor") * owed
    if allocation == job.allocation:
        return f"keeps {counted(allocation.total, 'GPU')} at {fast}{first}"
    if not job.allocation:
        return f"gets {counted(allocation.total, 'GPU')}: {fast}{first}"
    change = f"goes from {job.allocation.total} to {counted(allocation.total, 'GPU')}, {fast}{first}"
    if owed or not math.isfinite(worse):
        return change
    return (
        f"{change}: staying would be worse for it by {worse:.3g}" if worse > 0 else f"{change}: others gain more by it"
    )
