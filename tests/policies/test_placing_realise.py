"""realise(): from how many GPUs on which node to which."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.policies.placing import realise
from fairlead.testing import GivenJob, job, make_view


def realised(nodes: str, on: dict[str, str], where: dict[str, dict[int, int]], **more: Any) -> dict[str, str]:
    """What is made of `where` (by job and by place of the node) if jobs are where `on` says."""
    jobs = [job(name, sum(text.count(digit) for digit in "[,") or 1, on=text or None) for name, text in on.items()]
    view = make_view(nodes, jobs, **more)
    return {name: str(found) for name, found in realise(view, list(where), list(where.values())).items()}


def test_a_job_with_what_it_holds_keeps_exactly_that() -> None:
    assert realised("2x4", {"a": "n0[1,3] n1[2]"}, {"a": {0: 2, 1: 1}}) == {"a": "n0[1,3] n1[2]"}


def test_a_job_with_nothing_is_absent() -> None:
    assert realised("1x4", {"a": "n0[0]", "b": ""}, {"a": {}, "b": {}}) == {}


def test_a_new_job_takes_the_lowest_free_gpus() -> None:
    assert realised("1x4", {"a": "n0[1]", "b": ""}, {"a": {0: 1}, "b": {0: 2}}) == {"a": "n0[1]", "b": "n0[0,2]"}


def test_a_job_that_shrinks_keeps_some_of_its_own() -> None:
    assert realised("1x4", {"a": "n0[1,2,3]"}, {"a": {0: 2}}) == {"a": "n0[1,2]"}


def test_a_job_that_grows_keeps_its_own() -> None:
    assert realised("2x4", {"a": "n0[2,3]"}, {"a": {0: 3, 1: 1}}) == {"a": "n0[0,2,3] n1[0]"}


def test_what_a_job_leaves_others_may_take() -> None:
    assert realised("2x2", {"a": "n0[0,1]", "b": ""}, {"b": {0: 2}, "a": {1: 2}}) == {"a": "n1[0,1]", "b": "n0[0,1]"}


def test_what_a_job_keeps_is_not_taken_by_one_that_comes_before_it() -> None:
    assert realised("1x4", {"a": "", "b": "n0[0,1]"}, {"a": {0: 1}, "b": {0: 3}}) == {"a": "n0[2]", "b": "n0[0,1,3]"}


def test_jobs_may_change_places() -> None:
    found = realised("2x2", {"a": "n0[0,1]", "b": "n1[0,1]"}, {"a": {1: 2}, "b": {0: 2}})
    assert found == {"a": "n1[0,1]", "b": "n0[0,1]"}


def test_a_job_stays_on_a_node_that_drains() -> None:
    assert realised("2x2", {"a": "n0[1]"}, {"a": {0: 1}}, draining=["n0"]) == {"a": "n0[1]"}


def test_places_are_those_of_the_nodes_in_the_order_of_the_snapshot() -> None:
    assert realised("a100=1x2,v100=1x2", {"a": ""}, {"a": {1: 2}}) == {"a": "n1[0,1]"}


@st.composite
def shares(draw: st.DrawFn, sizes: list[int], jobs: int) -> list[dict[int, list[int]]]:
    """Who has which GPUs: each GPU is one job's or nobody's."""
    found: list[dict[int, list[int]]] = [{} for _ in range(jobs)]
    for node, size in enumerate(sizes):
        for gpu in range(size):
            if (owner := draw(st.integers(-1, jobs - 1))) >= 0:
                found[owner].setdefault(node, []).append(gpu)
    return found


@given(st.data())
def test_everyone_gets_its_count_of_gpus_that_are_nobody_elses_and_keeps_what_it_can(data: st.DataObject) -> None:
    sizes = sorted(
        data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)), reverse=True
    )  # as snapshots have them
    before, after = (data.draw(shares(sizes, 4)) for _ in range(2))
    given: list[GivenJob] = []
    for place, held in enumerate(before):
        on = " ".join(f"n{node}[{','.join(map(str, gpus))}]" for node, gpus in held.items())
        given.append(job(f"j{place}", max(1, sum(map(len, held.values()))), on=on or None))
    view = make_view(",".join(f"1x{size}" for size in sizes), given)
    where = [{node: len(gpus) for node, gpus in share.items()} for share in after]
    found = realise(view, list(view.jobs), where)
    taken: set[tuple[str, int]] = set()
    for place, counts in enumerate(where):
        name = f"j{place}"
        assert (name in found) == bool(counts)
        for node, gpus in found[name] if counts else ():
            index = view.node_columns.ids.index(node)
            assert len(gpus) == counts[index]
            assert max(gpus) < sizes[index]
            own = set(before[place].get(index, []))
            assert len(own.intersection(gpus)) == min(len(own), len(gpus))
            assert not taken.intersection((node, gpu) for gpu in gpus), "a GPU was given out twice"
            taken.update((node, gpu) for gpu in gpus)
        if counts and counts == {node: len(gpus) for node, gpus in before[place].items()}:
            assert found[name] == view.allocations[name]


def test_a_job_and_its_counts_must_come_in_pairs() -> None:
    with pytest.raises(ValueError, match="zip"):
        realise(make_view("1x4", [job("a")]), ["a"], [])
