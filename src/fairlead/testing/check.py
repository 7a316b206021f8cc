"""`check_policy`: the contract suite, for the policies of this package and of everybody else."""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from fairlead.core.capability import Capability, needs_of
from fairlead.core.loop import Policy
from fairlead.core.snapshot import Snapshot, TrueRates
from fairlead.core.types import JobSpec, Node
from fairlead.testing.contract import PolicyContractError, check_equal, decide
from fairlead.testing.history import History, Step, histories
from fairlead.testing.workload import Workload, check_finishes, check_starvation, workloads


def check_policy(policy: Policy, *, examples: int = 50) -> None:
    """Raise PolicyContractError, with the rule and the situation, unless the policy keeps the contract.

    `examples` random pasts are told to the policy, and every snapshot also to a fresh copy of it, as after a restart:
    what it remembers must be in `Plan.memo`. A quarter as many small workloads are simulated. The same call does the
    same every time.
    """
    _require_hypothesis()
    pristine = copy.deepcopy(policy)

    def check_views(views: Iterable[Snapshot]) -> None:
        one, memo = copy.deepcopy(pristine), dict[str, Any]()
        for view in views:
            view = replace(_with_oracle(policy, view), memo=memo)
            plan = decide(one, view)
            check_equal(view, plan, decide(copy.deepcopy(pristine), view, checks_purity=False))
            memo = json.loads(json.dumps(plan.memo))

    def check_history(history: History) -> None:
        check_views(history.views())

    for history in _CORNERS:
        check_history(history)
    try:
        for views in _drawn(examples):
            check_views(views)
    except BaseException:
        _drawn.cache_clear()  # a policy that changes what it sees has changed these, too
        _for_all(histories(), check_history, examples, shrink=True)
        raise

    def check_workload(workload: Workload) -> None:
        check_finishes(copy.deepcopy(pristine), workload)

    _for_all(workloads(), check_workload, max(5, examples // 4), shrink=False)  # whole simulations: too slow to shrink
    if getattr(policy, "starvation_free", False):
        check_starvation(copy.deepcopy(pristine))


@lru_cache(maxsize=4)
def _drawn(examples: int) -> tuple[tuple[Snapshot, ...], ...]:
    """The snapshots of random pasts: the same for every policy, since to draw them costs more than most decisions."""
    pasts: list[History] = []

    def keep(history: History) -> None:
        pasts.append(history)

    _for_all(histories(), keep, examples, shrink=False)
    return tuple(tuple(history.views()) for history in pasts)


_NODE, _JOB = Node("n0", 4), JobSpec(id="j0", gpus=2)

#: Situations too plain for chance: nothing at all, nodes without jobs, jobs without nodes, nothing but lost nodes.
_CORNERS = (
    History((), (), ()),
    History((_NODE,), (), (Step("wait"),)),
    History((), (_JOB,), (Step("submit"), Step("wait"))),
    History((_NODE,), (_JOB,), (Step("submit"), Step("lose"), Step("wait"))),
)


def _with_oracle(policy: Policy, view: Snapshot) -> Snapshot:
    if Capability.ORACLE not in needs_of(policy):
        return view
    return replace(view, oracle=_made_up_s, step_oracle=_MadeUpTruth())


def _made_up_s(job_id: str) -> float:
    return float(zlib.crc32(job_id.encode()) % 1000)


class _MadeUpTruth:
    """True step times for snapshots of which there is no truth: a second of work each, and no GPU is faster."""

    def steps_left(self, job_id: str) -> float:
        return _made_up_s(job_id)

    def step_s(self, _job_id: str, _gpus: int) -> float:
        return 1.0

    def rates(self, job_id: str, configurations: Sequence[tuple[str, int, int, tuple[str, ...]]]) -> TrueRates:
        return TrueRates(tuple(1.0 / (1 + len(partners)) for *_, partners in configurations), _made_up_s(job_id), 1.0)

    def batch_s(self, job_id: str) -> Mapping[int, float]:
        return {1: _made_up_s(job_id)}

    def workload(self, job_id: str) -> str:
        return job_id


def _for_all(strategy: Any, check: Callable[[Any], None], examples: int, *, shrink: bool) -> None:
    """Let hypothesis look for an example that fails, and make it small if that is wanted."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis.errors import Flaky

    configured = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
    )
    draw: Any = given(strategy)
    try:
        configured(draw(check))()
    except Flaky as error:
        cause = (*getattr(error, "exceptions", ()), error)[0]
        problem = f"the same snapshots broke a rule once and none the next time; once it was: {cause}"
        raise PolicyContractError("deterministic", problem) from error


def _require_hypothesis() -> None:
    try:
        import hypothesis  # noqa: F401  # only to see whether it is there
    except ImportError:
        raise ImportError(
            "check_policy needs hypothesis: run scripts/setup dev in a checkout, or pip install 'fairlead[dev]'"
        ) from None
