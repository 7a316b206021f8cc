"""Water-filling, entitlements, and who can never run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import JobSpec, Node
from fairlead.policies.middleware import Queue, admit, entitlements
from fairlead.policies.middleware.water import pour, pour_by_rank, whole
from fairlead.testing import job, make_view

GROUPS = st.lists(
    st.tuples(st.floats(0.01, 100.0), st.integers(0, 5), st.integers(0, 20), st.integers(0, 2)), min_size=1, max_size=8
)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


# -- water -------------------------------------------------------------------------------------------------------------


def test_an_amount_is_shared_out_by_weight_within_caps_and_floors() -> None:
    none, much = floats(0, 0, 0), floats(99, 99, 99)
    assert pour(12.0, floats(1, 2, 3), none, much).tolist() == pytest.approx([2, 4, 6])
    assert pour(12.0, floats(1, 1, 1), none, floats(2, 99, 99)).tolist() == pytest.approx([2, 5, 5])
    assert pour(12.0, floats(1, 1, 1), floats(8, 0, 0), much).tolist() == pytest.approx([8, 2, 2])
    assert pour(12.0, floats(1, 1, 1), none, floats(1, 2, 3)).tolist() == [1, 2, 3]
    assert pour(2.0, floats(1, 1, 1), floats(1, 2, 3), much).tolist() == [1, 2, 3]


def test_the_higher_rank_gets_all_it_can_use_before_the_lower_gets_more_than_its_floor() -> None:
    rank, even, none = np.array([0, 1, 1]), floats(1, 1, 1), floats(0, 0, 0)
    assert pour_by_rank(10.0, rank, even, none, floats(9, 4, 4)).tolist() == pytest.approx([2, 4, 4])
    assert pour_by_rank(6.0, rank, even, floats(3, 0, 0), floats(9, 4, 4)).tolist() == pytest.approx([3, 1.5, 1.5])


@given(st.integers(0, 60), GROUPS)
def test_nobody_is_below_its_floor_or_above_its_cap_and_all_is_used_that_can_be(
    amount: int, groups: list[tuple[float, int, int, int]]
) -> None:
    weight, floor = floats(*(g[0] for g in groups)), floats(*(g[1] for g in groups))
    cap = np.maximum(floor, floats(*(g[2] for g in groups)))
    rank = np.array([g[3] for g in groups])
    for share in (pour(amount, weight, floor, cap), pour_by_rank(amount, rank, weight, floor, cap)):
        assert (share >= floor - 1e-6).all()
        assert (share <= cap + 1e-6).all()
        assert share.sum() == pytest.approx(max(floor.sum(), min(amount, cap.sum())), abs=1e-6)
        rounded = whole(share, np.zeros(len(share), dtype=bool))
        assert rounded.sum() == round(float(share.sum()))
        assert (np.abs(rounded - share) < 1.0 + 1e-6).all()
        assert (rounded <= cap).all()


def test_parts_are_rounded_up_for_those_marked_and_then_for_the_largest() -> None:
    parts = floats(1.4, 1.4, 1.2)
    assert whole(parts, np.array([False, False, False])).tolist() == [2, 1, 1]
    assert whole(parts, np.array([False, False, True])).tolist() == [1, 1, 2]
    assert whole(floats(2.0, 1.5, 0.5), np.array([True, False, True])).tolist() == [2, 1, 1]


# -- entitlements ------------------------------------------------------------------------------------------------------


def test_entitlements_are_quotas_first_and_then_weights_and_usage() -> None:
    jobs = [
        job("a", 8, queue="prod", tenant="ann", gpus_min=1, gpus_max=8),
        job("b", 8, queue="dev", tenant="bob", on="n0[0,1,2,3,4,5,6,7]"),
        job("c", 8, queue="dev", tenant="cal"),
    ]
    view = make_view("2x8", jobs, now=100.0)
    told = entitlements(view, (Queue("prod", quota=4, weight=3.0), Queue("dev")))
    prod, dev = told["prod"].whole, told["dev"].whole
    assert (prod.guaranteed, prod.entitled, prod.holds, prod.demand, prod.used_share) == (4, 8, 0, 8, 0.0)
    assert (dev.guaranteed, dev.entitled, dev.holds, dev.demand, dev.used_share) == (0, 8, 8, 16, 1.0)
    users = told["dev"].users
    assert users["bob"].entitled + users["cal"].entitled == 8
    assert users["bob"].entitled < users["cal"].entitled  # he has used all of it so far
    assert told["default"].users == {}


def test_entitlements_of_an_empty_cluster_are_nothing() -> None:
    empty = Snapshot(now=0.0, jobs={}, nodes={}, allocations={}, assigned={}, held={})
    assert {name: each.whole.entitled for name, each in entitlements(empty, (Queue("a", quota=2),)).items()} == {
        "a": 0,
        "default": 0,
    }


# -- admission ---------------------------------------------------------------------------------------------------------

NODES = [Node("n0", 8, "a100"), Node("n1", 4, "k80", healthy=False)]
QUEUES = (
    Queue("prod", quota=6, max_gpus=8, max_gpus_per_user=7),
    Queue("own", quota=3, borrow=False, lend=False),
    Queue("dev"),
)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"queue": "prod", "gpus": 7}, None),
        ({"queue": "default", "gpus": 8}, None),
        ({"queue": "dev", "gpus": 4, "gpu_types": ("k80",)}, None),  # it is lost, but may return
        ({"queue": "dev", "gpus": 9, "gpus_min": 2}, None),
        ({"queue": "dve"}, "there is no queue 'dve'; did you mean 'dev'? known are default, dev, own, prod"),
        ({"queue": "xyz"}, "there is no queue 'xyz'; known are default, dev, own, prod"),
        (
            {"queue": "dev", "gpus": 9},
            "it needs at least 9 GPUs of one type, and the cluster has 8 x a100, 4 x k80",
        ),
        (
            {"queue": "dev", "gpus": 5, "gpu_types": ("k80", "t4")},
            "it needs at least 5 GPUs of type k80 or t4, and the cluster has 8 x a100, 4 x k80",
        ),
        ({"queue": "prod", "gpus": 8}, "it needs at least 8 GPUs, and a user of queue prod may have 7 at once"),
        (
            {"queue": "own", "gpus": 4},
            "it needs at least 4 GPUs, and queue own may have 3 at once, its quota, and does not borrow",
        ),
        (
            {"queue": "dev", "gpus": 4, "preemptible": False},
            "it needs at least 4 GPUs, and it must not be preempted, so it can only have what is guaranteed to queue "
            "dev (0) or to nobody (3); let it be preempted, or ask for fewer GPUs",
        ),
        ({"queue": "prod", "gpus": 6, "preemptible": False}, None),
    ],
)
def test_a_job_that_can_never_run_is_told_why(spec: dict[str, object], expected: str | None) -> None:
    asked = JobSpec(id="x", **spec)  # type: ignore[arg-type]
    assert admit(make_view([NODES[0], Node("n1", 4, "k80")], lost=["n1"]), asked, QUEUES) == expected


def test_a_job_that_needs_what_others_never_lend_is_told_so() -> None:
    queues = (Queue("own", quota=6, lend=False),)
    told = admit(make_view("1x8"), JobSpec(id="x", gpus=4), queues)
    assert told == "it needs at least 4 GPUs, and 6 of the cluster's 8 are quotas of queues that do not lend"


def test_without_queues_only_the_cluster_and_the_name_count() -> None:
    assert admit(make_view("1x8"), JobSpec(id="x", gpus=8), ()) is None
    assert admit(make_view("1x8"), JobSpec(id="x", queue="prod"), ()) == "there is no queue 'prod'; known are default"
