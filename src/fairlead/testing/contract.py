"""What every policy owes to whoever runs it: the rules that can be judged from one decision, and how they are broken.

Nothing here draws random worlds; `history.py` and `workload.py` do.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fairlead.core.capability import needs_of, used_by
from fairlead.core.errors import InvalidPlan
from fairlead.core.loop import Policy
from fairlead.core.plan import changes, check
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Plan, Reason
from fairlead.testing.showing import show

#: The contract. A PolicyContractError names one of these.
RULES = {
    "answers": "plan(view) returns a Plan for every snapshot, also for an empty cluster and for no jobs",
    "valid": "every plan passes core.plan.check: no lost or draining node, no GPU twice, no size out of bounds, "
    "nothing taken from a job that must not be preempted",
    "reasons": "every live job has a Reason with a code, a text and no NaN",
    "pure": "the snapshot is as it was when the plan is made",
    "deterministic": "a fresh copy that sees the same snapshot makes an equal plan, in equal order: what the policy "
    "remembers is in Plan.memo, and nowhere else",
    "needs": "what its plans take is declared in needs: packing if jobs share a GPU, renting if it chooses the nodes",
    "review": "review_at is later than now, or infinite: the loop does not go back",
    "finishes": "every job that fits the cluster ends, after a reasonable number of decisions",
    "starvation-free": "if the policy says starvation_free: a large job starts in spite of a stream of small ones",
}


class PolicyContractError(AssertionError):
    """A policy broke a rule of the contract: which, how, and in what situation."""

    def __init__(self, rule: str, problem: str, view: Snapshot | None = None) -> None:
        situation = "" if view is None else f"\n{show(view)}"
        super().__init__(f"rule {rule!r} is broken ({RULES[rule]}): {problem}{situation}")
        self.rule = rule


def decide(policy: Policy, view: Snapshot, *, checks_purity: bool = True) -> Plan:
    """The policy's plan, after every rule that one decision can break.

    `checks_purity`: a second copy of a policy that was found pure need not be looked at as closely.
    """
    before = _facts(view) if checks_purity else {}
    try:
        plan: object = policy.plan(view)
    except Exception as error:
        raise PolicyContractError("answers", f"it raised {error!r}", view) from error
    if not isinstance(plan, Plan):
        raise PolicyContractError("answers", f"it returned {plan!r}", view)
    after = _facts(view) if checks_purity else {}
    for what, was in before.items():
        if after[what] != was:
            raise PolicyContractError("pure", f"it changed {what} of the snapshot", view)
    try:
        check(view, plan, changes(view, plan))
    except InvalidPlan as error:
        raise PolicyContractError("valid", str(error), view) from error
    _check_reasons(view, plan)
    if undeclared := sorted(used_by(plan) - needs_of(policy)):
        raise PolicyContractError("needs", f"its plan takes {undeclared[0]}, which it does not declare", view)
    if not plan.review_at > view.now:
        raise PolicyContractError("review", f"review_at is {plan.review_at}, now is {view.now}", view)
    return plan


def check_equal(view: Snapshot, one: Plan, other: Plan) -> None:
    """Raise unless a policy and a fresh copy of it decided the same."""
    kinds: dict[str, Callable[[Plan], object]] = {
        "allocations": lambda plan: list(plan.allocations.items()),
        "reasons": lambda plan: {job_id: plan.reasons[job_id] for job_id in view.jobs},
        "packed": lambda plan: plan.packed,
        "bound": lambda plan: plan.bound,
        "review_at": lambda plan: plan.review_at,
        "nodes": lambda plan: plan.nodes,
        "memo": lambda plan: plan.memo,
    }
    for what, of in kinds.items():
        if of(one) != of(other):
            problem = f"{what} differ between the policy and a fresh copy: {_cut(of(one))} and {_cut(of(other))}"
            raise PolicyContractError("deterministic", problem, view)


def _check_reasons(view: Snapshot, plan: Plan) -> None:
    for job_id in view.jobs:
        try:
            reason: object = plan.reasons[job_id]
        except Exception as error:
            raise PolicyContractError("reasons", f"job {job_id} has none: {error!r}", view) from error
        if not isinstance(reason, Reason) or not reason.code.strip() or not reason.text.strip():
            raise PolicyContractError("reasons", f"job {job_id} has {reason!r}", view)
        if any(math.isnan(number) for number in reason.numbers.values()):
            raise PolicyContractError("reasons", f"job {job_id} has a number that is none: {reason.numbers}", view)
        if unknown := set(reason.jobs) - view.jobs.keys() | {job_id} & set(reason.jobs):
            problem = f"job {job_id} has a reason that rests on job {min(unknown)}, which is itself or no live job"
            raise PolicyContractError("reasons", problem, view)


def _facts(view: Snapshot) -> dict[str, object]:
    """Everything in a snapshot, in a form that does not change with it."""
    facts: dict[str, object] = {
        "now": view.now,
        "jobs": repr(view.jobs),
        "nodes": repr(view.nodes),
        "allocations": repr(view.allocations),
        "assigned": repr(view.assigned),
        "held": repr(view.held),
        "released": view.released,
        "coming": view.coming,
        "barred": repr(view.barred),
        "memo": repr(view.memo),
    }
    for name in ("columns", "node_columns"):
        arrays = getattr(view, name)
        for field, value in arrays._asdict().items():
            facts[f"{name}.{field}"] = value.tobytes() if isinstance(value, np.ndarray) else value
    return facts


def _cut(value: object, length: int = 300) -> str:
    text = str(value)
    return text if len(text) <= length else text[:length] + "..."
