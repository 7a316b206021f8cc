"""All of them around any policy: the contract, the order, and what is documented."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tenants import Sorted

from fairlead.plugins import make_policy
from fairlead.policies.fifo import Fifo
from fairlead.policies.middleware import (
    ByPriority,
    Drain,
    LeastLoss,
    MinimumRun,
    Outsiders,
    Queue,
    SpareUnsaved,
    Tenancy,
    Window,
    drain,
    loss,
    minimum,
    outsiders,
    standard,
    telling,
)
from fairlead.policies.tiresias import Tiresias
from fairlead.testing import check_policy, job, make_view

DOCS = Path(__file__).parents[2] / "docs"

#: Queue `firm` has room for all that must not be preempted.
QUEUES = {
    "shares": (Queue("a", weight=3.0), Queue("b", priority=1)),
    "quotas": (Queue("a", quota=2), Queue("b", quota=1, priority=1), Queue("firm", quota=100)),
    "limits": (Queue("a", max_jobs_per_user=1), Queue("b", max_jobs_per_user=2), Queue("default", weight=0.5)),
}

INNER = ["fifo", "tiresias", pytest.param("pilot", marks=pytest.mark.slow)]


def examples(inner: str) -> int:
    return 5 if inner == "pilot" else 15


@pytest.mark.parametrize("rules", QUEUES)
@pytest.mark.parametrize("inner", INNER)
def test_tenancy_keeps_the_contract(inner: str, rules: str) -> None:
    check_policy(Sorted(Tenancy(make_policy(inner), QUEUES[rules])), examples=examples(inner))


@pytest.mark.parametrize(
    "wearer", ["minimum-run:seconds=30", "least-loss:tolerance=0,spare_s=0", "drain", "spare-unsaved"]
)
@pytest.mark.parametrize("inner", INNER)
def test_the_others_keep_the_contract(inner: str, wearer: str) -> None:
    check_policy(make_policy(f"{wearer}+{inner}"), examples=examples(inner))


@pytest.mark.parametrize("inner", INNER)
def test_all_of_them_together_keep_the_contract(inner: str) -> None:
    check_policy(Sorted(standard(make_policy(inner), QUEUES["quotas"])), examples=examples(inner))


def test_the_order_is_the_one_that_is_explained() -> None:
    queues = (Queue("a", quota=1),)
    policy = standard(Fifo(), queues, minimum_run_s=30.0, lead_s=10.0)
    shared = MinimumRun(Tenancy(ByPriority(SpareUnsaved(Fifo())), queues), seconds=30.0)
    assert policy == Window(Drain(Outsiders(LeastLoss(shared, spare_s=30.0)), lead_s=10.0))
    assert standard(Fifo(), spare_unsaved=False).inner.inner.inner.inner.inner.inner.inner == Fifo()  # type: ignore[attr-defined]


def test_they_can_be_said_on_a_command_line() -> None:
    said = make_policy("drain:lead_s=60+least-loss:tolerance=5+minimum-run:seconds=30+tenancy:review_s=10+fifo")
    worn = MinimumRun(Tenancy(Fifo(), review_s=10.0), seconds=30.0)
    assert said == Drain(LeastLoss(worn, tolerance=5.0), lead_s=60.0)


def test_what_the_innermost_policy_remembers_passes_all_of_them() -> None:
    view = replace(
        make_view("1x1", [job("runs", 1, on="n0[0]")], now=400.0),
        memo={"tiresias": {"forgiven": {"runs": 5.0, "gone": 1.0}}},
    )
    plan = standard(Tiresias(promote=2.0)).plan(view)
    assert plan.memo == {"tiresias": {"forgiven": {"runs": 5.0}}}


def test_every_reason_code_and_every_option_is_explained() -> None:
    codes = {
        value
        for module in (telling, minimum, loss, drain, outsiders)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str) and name[0] != "_" and name != "OWNER_WAITS_S"
    }
    assert {"queue-quota", "queue-limit", "user-limit", "fair-share", "lent", "minimum-run", "least-loss"} <= codes
    concepts, manual = ((DOCS / page).read_text(encoding="utf-8") for page in ("concepts.md", "tenancy.md"))
    for code in codes:
        assert f"| `{code}` |" in concepts, code
    for option in inspect.signature(Queue).parameters:
        assert re.search(rf"^\| `{option}` \|", manual, re.MULTILINE), option
