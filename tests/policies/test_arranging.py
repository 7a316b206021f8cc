"""Arranging: gaps, and where sizes go on the nodes of one GPU type. What is always true is in test_allocator.py too.

Legend: J jobs, S sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.policies.arranging import STAY, Pool, arrange
from fairlead.policies.gaps import Gaps, Where

# -- gaps --------------------------------------------------------------------------------------------------------------


def test_the_tightest_gap_is_the_smallest_that_is_large_enough() -> None:
    gaps = Gaps([4, 2, 3, 2])
    assert [gaps.tightest(count) for count in (1, 2, 3, 4, 5)] == [1, 1, 2, 0, -1]
    assert gaps.largest == 4


def test_a_gap_that_changed_is_found_at_its_new_size() -> None:
    gaps = Gaps([4, 4])
    gaps.add(0, -3)
    assert (gaps.tightest(1), gaps.tightest(2)) == (0, 1)
    gaps.add(0, 3)
    assert (gaps.tightest(1), gaps.tightest(4)) == (0, 0)


def test_many_gpus_are_spread_over_large_gaps_and_the_tightest_last() -> None:
    gaps = Gaps([4, 1, 4, 2])
    assert gaps.spread(5, 16) == {0: 4, 1: 1}
    assert gaps.spread(6, 16) == {0: 4, 3: 2}
    assert gaps.spread(11, 16) == {0: 4, 2: 4, 3: 2, 1: 1}
    assert gaps.spread(12, 16) is None


def test_gpus_are_not_spread_over_too_many_nodes_or_closed_ones() -> None:
    gaps = Gaps([2, 2, 2])
    assert gaps.spread(5, 2) is None
    gaps.close(0, closed=True)
    assert gaps.spread(4, 2) == {1: 2, 2: 2}
    assert (gaps.spread(5, 3), gaps.loose) == (None, 4)
    gaps.close(0, closed=False)
    assert gaps.spread(6, 3) == {0: 2, 1: 2, 2: 2}


def test_asking_changes_nothing() -> None:
    gaps = Gaps([3, 1, 2])
    first = gaps.spread(6, 16)
    assert gaps.spread(6, 16) == first
    assert (gaps.free, gaps.loose) == ([3, 1, 2], 6)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.lists(st.tuples(st.integers(0, 5), st.integers(-4, 4))))
def test_gaps_are_what_was_added_and_taken(gpus: list[int], changes: list[tuple[int, int]]) -> None:
    gaps, free, closed = Gaps([4] * len(gpus)), [4] * len(gpus), [False] * len(gpus)
    for node, change in changes:
        node %= len(gpus)
        if change == 0:
            closed[node] = not closed[node]
            gaps.close(node, closed=closed[node])
        elif 0 <= free[node] + change <= 4:
            free[node] += change
            gaps.add(node, change)
    assert (gaps.free, gaps.largest) == (free, max(free))
    assert gaps.loose == sum(count for count, shut in zip(free, closed, strict=True) if not shut)
    for count in range(1, 6):
        fitting = [(size, node) for node, size in enumerate(free) if size >= count]
        assert gaps.tightest(count) == (min(fitting)[1] if fitting else -1)


# -- arranging ---------------------------------------------------------------------------------------------------------


def make_pool(gpus: Sequence[int], wanted: Sequence[int], *, held: Sequence[Where] | None = None, **more: Any) -> Pool:
    """Jobs that are all alike: k GPUs cost 1/k, a quarter more on several nodes, and a tenth more after a move."""
    J, sizes = len(wanted), list(range(sum(gpus) + 1))
    size_S = np.array(sizes, dtype=float)
    worth_S = np.where(size_S > 0, 1.0 / np.maximum(size_S, 1.0), np.inf)
    held = held or [{}] * J
    stay = [(1.25 if len(where) > 1 else 1.0) / sum(where.values()) if where else np.inf for where in held]
    given: dict[str, Any] = {
        "sizes": sizes,
        "one_JS": np.tile(np.where(size_S <= max(gpus), 1.1 * worth_S, np.inf), (J, 1)),
        "many_JS": np.tile(np.where(size_S > 1, 1.375 * worth_S, np.inf), (J, 1)),
        "idle_J": np.full(J, 100.0),
        "stay_J": np.array(stay),
        "held": held,
        "wanted_J": np.array(wanted),
        "gpus": gpus,
        "exclusive": True,
        "most_nodes": 16,
    }
    return Pool(**(given | more))


def test_jobs_go_to_the_tightest_gap_largest_first() -> None:
    where, cost = arrange(make_pool([4, 3, 1], [1, 3, 4]))
    assert where == [{2: 1}, {1: 3}, {0: 4}]
    assert cost == pytest.approx([1.1, 1.1 / 3, 1.1 / 4])


def test_whoever_stays_is_not_moved_for_the_others() -> None:
    where, _ = arrange(make_pool([4, 4], [STAY, 4], held=[{1: 4}, {}]))
    assert where == [{1: 4}, {0: 4}]


def test_a_job_too_large_for_a_node_is_spread() -> None:
    where, cost = arrange(make_pool([4, 4], [8]))
    assert where == [{0: 4, 1: 4}]
    assert cost == pytest.approx([1.375 / 8])


def test_a_job_that_does_not_fit_takes_what_there_is() -> None:
    one = np.array([[np.inf, 1.0, 0.5, 0.3, np.inf]])
    where, _ = arrange(make_pool([2, 2], [3], one_JS=one, many_JS=np.full((1, 5), np.inf)))
    assert where in ([{0: 2}], [{1: 2}])


def test_others_make_room_where_that_costs_less() -> None:
    # Two jobs of one GPU on two nodes of two, and one that can use two GPUs of one node only.
    one = make_pool([2, 2], [1, 1, 2]).one_JS
    one[2, 1] = np.inf
    pool = make_pool([2, 2], [STAY, STAY, 2], held=[{0: 1}, {1: 1}, {}], one_JS=one, many_JS=np.full((3, 5), np.inf))
    where, _ = arrange(pool)
    assert sorted(sum(counts.values()) for counts in where) == [1, 1, 2]


def test_a_job_that_may_not_move_makes_no_room() -> None:
    one = make_pool([2, 2], [1, 1, 2]).one_JS
    one[2, 1] = one[:2] = np.inf
    more = {"one_JS": one, "many_JS": np.full((3, 5), np.inf), "idle_J": np.array([np.inf, np.inf, 100.0])}
    where, _ = arrange(make_pool([2, 2], [STAY, STAY, 2], held=[{0: 1}, {1: 1}, {}], **more))
    assert where == [{0: 1}, {1: 1}, {}]


def test_only_one_job_that_spans_nodes_is_on_a_node() -> None:
    where, _ = arrange(make_pool([3, 3, 3], [4, 4]))
    spanning = [set(counts) for counts in where if len(counts) > 1]
    assert len(spanning) < 2 or not spanning[0] & spanning[1]
    together, _ = arrange(make_pool([3, 3, 3], [4, 4], exclusive=False))
    assert [sum(counts.values()) for counts in together] >= [4, 4]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_an_arrangement_fits_and_costs_what_it_says(data: st.DataObject) -> None:
    gpus = data.draw(st.lists(st.sampled_from([0, 1, 2, 4, 8]), min_size=1, max_size=6).filter(any))
    wanted = data.draw(st.lists(st.integers(0, sum(gpus)), min_size=1, max_size=10))
    pool = make_pool(
        gpus,
        wanted,
        exclusive=data.draw(st.booleans()),
        most_nodes=data.draw(st.sampled_from([1, 2, 16])),
    )
    where, cost = arrange(pool)
    used, spanned = [0] * len(gpus), [0] * len(gpus)
    for job, counts in enumerate(where):
        table = pool.one_JS if len(counts) == 1 else pool.many_JS
        assert cost[job] == (table[job, sum(counts.values())] if counts else pool.idle_J[job])
        assert len(counts) <= pool.most_nodes
        for node, count in counts.items():
            used[node] += count
            spanned[node] += len(counts) > 1
    assert all(count <= most for count, most in zip(used, gpus, strict=True))
    assert not pool.exclusive or max(spanned) <= 1


def test_hundreds_of_nodes_are_filled() -> None:
    """Beyond NODES_TRIED nobody is sent away to make room."""
    rng = np.random.default_rng(0)
    wanted = rng.choice([1, 2, 3, 4, 8], size=700).tolist()
    while sum(wanted) > 1600:
        wanted.pop()
    sizes = range(9)
    table = np.tile([np.inf, *(1.0 / size for size in range(1, 9))], (len(wanted), 1))
    spread = np.where(np.arange(9) > 1, 1.25 * table, np.inf)
    pool = make_pool([8] * 200, wanted, sizes=list(sizes), one_JS=table, many_JS=spread)
    where, cost = arrange(pool)
    assert all(where)
    assert sum(cost) <= 1.02 * sum(1.0 / size for size in wanted)
