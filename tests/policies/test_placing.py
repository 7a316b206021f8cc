"""Room: which GPUs exactly. Examples, and a comparison with trying everything on small clusters."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Node, Phase
from fairlead.policies.placing import Room
from fairlead.testing import GivenJob, job, make_view
from fairlead.testing.scenario import allocation


def room(nodes: str, *, taken: str = "", **more: object) -> Room:
    """A room in which the GPUs of `taken` are someone's."""
    jobs = [job("taker", allocation(taken).total, on=taken, gpus_min=1)] if taken else []
    return Room(make_view(nodes, jobs, **more))


def take(where: Room, gpus: int, types: tuple[str, ...] = ()) -> str | None:
    taken = where.take(gpus, types)
    return None if taken is None else str(taken)


def test_a_job_gets_the_lowest_free_gpus_of_a_node() -> None:
    assert take(room("1x4", taken="n0[0,2]"), 2) == "n0[1,3]"


def test_a_job_goes_into_the_tightest_gap() -> None:
    where = room("3x4", taken="n0[0] n1[0,1]")
    assert take(where, 2) == "n1[2,3]"
    assert take(where, 2) == "n0[1,2]"


def test_a_job_is_put_on_the_fewest_nodes() -> None:
    assert take(room("3x4", taken="n0[0,1] n1[0,1]"), 4) == "n2[0,1,2,3]"


def test_a_wide_job_takes_large_gaps_first_and_the_tightest_for_the_rest() -> None:
    assert take(room("4x4", taken="n0[0,1] n2[0,1,2]"), 5) == "n1[0,1,2,3] n2[3]"


def test_a_job_that_does_not_fit_gets_nothing_and_takes_nothing() -> None:
    where = room("2x4", taken="n0[0]")
    assert take(where, 8) is None
    assert where.free() == 7


def test_what_is_taken_is_no_longer_free() -> None:
    where = room("1x4")
    assert [take(where, 3), take(where, 1), take(where, 1)] == ["n0[0,1,2]", "n0[3]", None]


def test_a_job_stays_within_one_gpu_type() -> None:
    where = room("a100=1x2,v100=1x3")
    assert (where.free(), where.free(("a100",)), where.free(("k80",))) == (3, 2, 0)
    assert take(where, 4) is None
    assert take(where, 1, ("v100",)) == "n1[0]"
    assert take(where, 2, ("k80",)) is None


def test_of_several_types_the_one_with_the_fewest_nodes_is_taken() -> None:
    assert take(room("a100=2x1,v100=1x2"), 2) == "n2[0,1]"


def test_draining_and_lost_nodes_have_no_room() -> None:
    where = room("3x4", draining=["n0"], lost=["n1"])
    assert where.free() == 4
    assert take(where, 4) == "n2[0,1,2,3]"


def test_released_gpus_can_be_taken_again() -> None:
    where = room("1x4", taken="n0[0,1,2,3]")
    assert take(where, 1) is None
    where.release(allocation("n0[1,2]"))
    assert (where.free(), take(where, 2)) == (2, "n0[1,2]")


def test_gpus_released_on_a_draining_node_stay_closed() -> None:
    where = room("2x4", taken="n0[0,1,2,3] n1[0]", draining=["n0"])
    where.release(allocation("n0[0,1,2,3] n1[0]"))
    assert (where.free(), take(where, 4)) == (4, "n1[0,1,2,3]")


def test_gpus_still_being_given_up_are_planned_with() -> None:
    """The plan says where everything should be; `reconcile` waits until they are free."""
    leaving = job("leaving", 4, on="n0[0,1,2,3]", phase=Phase.STOPPING)
    assert take(Room(make_view("1x4", [leaving], now=1.0)), 4) == "n0[0,1,2,3]"


def test_planning_leaves_the_snapshot_as_it_was() -> None:
    view = make_view("2x4", [job("a", 2, on="n0[0,1]")])
    before = view.node_columns.free_N.tolist()
    where = Room(view)
    where.take(5)
    where.release(view.allocations["a"])
    assert view.node_columns.free_N.tolist() == before == [2, 4]


# -- against trying everything -------------------------------------------------------------------------------------

Cluster = list[tuple[int, str, int]]  # GPUs, type, mask of taken ones
CLUSTERS: st.SearchStrategy[Cluster] = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(("a100", "v100")), st.integers(0, 15)), min_size=1, max_size=5
)


def view_of(cluster: Cluster) -> Snapshot:
    nodes = [Node(f"n{place}", gpus, gpu_type) for place, (gpus, gpu_type, _) in enumerate(cluster)]
    jobs: list[GivenJob] = []
    for place, (gpus, _, mask) in enumerate(cluster):
        taken = [gpu for gpu in range(gpus) if mask >> gpu & 1]
        if taken:
            jobs.append(job(f"taker-{place}", len(taken), on=f"n{place}[{','.join(map(str, taken))}]"))
    return make_view(nodes, jobs)


def free_gpus(cluster: Cluster, types: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """type -> node -> free GPUs."""
    free: dict[str, dict[str, int]] = {}
    for place, (gpus, gpu_type, mask) in enumerate(cluster):
        if not types or gpu_type in types:
            count = sum(not mask >> gpu & 1 for gpu in range(gpus))
            free.setdefault(gpu_type, {})[f"n{place}"] = count
    return free


def fewest_nodes(gpus: int, by_node: dict[str, int]) -> int | None:
    """By trying every set of nodes."""
    for size in range(1, len(by_node) + 1):
        if any(sum(chosen) >= gpus for chosen in combinations(by_node.values(), size)):
            return size
    return None


@settings(max_examples=300, deadline=None)
@given(CLUSTERS, st.integers(1, 12), st.sampled_from(((), ("a100",), ("v100", "a100"))))
def test_nothing_that_was_tried_is_better(cluster: Cluster, gpus: int, types: tuple[str, ...]) -> None:
    view, free = view_of(cluster), free_gpus(cluster, types)
    found = Room(view).take(gpus, types)
    possible = [count for by_node in free.values() if (count := fewest_nodes(gpus, by_node)) is not None]
    if not possible:
        assert found is None
        return
    assert found is not None
    assert found.total == gpus
    assert len(found.nodes) == min(possible)
    _assert_free_and_of_one_type(view, found)
    if min(possible) == 1:  # then no other node of that type leaves a smaller gap
        by_node = free[view.nodes[found.nodes[0]].gpu_type]
        assert by_node[found.nodes[0]] == min(count for count in by_node.values() if count >= gpus)


def _assert_free_and_of_one_type(view: Snapshot, found: Allocation) -> None:
    assert len({view.nodes[node].gpu_type for node in found.nodes}) == 1
    for node, mask in found.masks:
        assert not view.assigned.get(node, 0) & mask
        assert mask < 1 << view.nodes[node].gpus


@settings(max_examples=100, deadline=None)
@given(CLUSTERS, st.lists(st.integers(1, 5), max_size=6))
def test_one_after_the_other_never_overlap_and_what_is_left_adds_up(cluster: Cluster, sizes: list[int]) -> None:
    view = view_of(cluster)
    where, held = Room(view), dict(view.assigned)
    free = {gpu_type: sum(by_node.values()) for gpu_type, by_node in free_gpus(cluster, ()).items()}
    for gpus in sizes:
        found = where.take(gpus)
        if found is None:
            assert gpus > max(free.values())
            continue
        free[view.nodes[found.nodes[0]].gpu_type] -= gpus
        for node, mask in found.masks:
            assert not held.get(node, 0) & mask
            held[node] = held.get(node, 0) | mask
    assert {gpu_type: where.free((gpu_type,)) for gpu_type in free} == free


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_a_cluster_can_be_filled_to_the_last_gpu(nodes: int) -> None:
    where = room(f"{nodes}x4")
    assert all(where.take(1) is not None for _ in range(4 * nodes))
    assert (where.free(), where.take(1)) == (0, None)
