"""Which GPU type a job that is not resized gets, where several have room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.core.learning import MODEL
from fairlead.core.loop import Policy
from fairlead.core.node_order import in_order
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Belief, Node, Observation
from fairlead.plugins import make_policy
from fairlead.policies.gpu_speeds import believed_speeds
from fairlead.testing import job, make_view

RIGID = ("fifo", "backfill", "easy", "smallest", "srtf", "srtf-gpu", "tiresias")


def measured(gpu_type: str, gpus: int, step_s: float, nodes: int = 1) -> Observation:
    return Observation(gpu_type, nodes, gpus, 32, 0, step_s, 0.0)


def stating(view: Snapshot, **speeds: float) -> Snapshot:
    """The same, with nodes that state how fast their GPUs are."""
    nodes = [replace(node, speed=speeds.get(node.gpu_type)) for node in view.nodes.values()]
    return replace(view, nodes={node.id: node for node in in_order(nodes)}, _node_table=None, _version=(-1, -1))


def types_of(policy: Policy | str, view: Snapshot) -> dict[str, str]:
    """By job that is placed, the GPU type."""
    chosen = make_policy(policy) if isinstance(policy, str) else policy
    plan = chosen.plan(replace(view, oracle=lambda _: 100.0))
    return {name: view.nodes[where.nodes[0]].gpu_type for name, where in plan.allocations.items()}


@pytest.mark.parametrize("policy", RIGID)
@pytest.mark.parametrize("nodes", ["slow=2x4,fast=1x4", "fast=1x4,slow=2x4"])
def test_the_type_that_is_stated_to_be_fastest_is_taken_while_it_has_room(policy: str, nodes: str) -> None:
    view = stating(make_view(nodes, [job("a", 4), job("b", 4)]), slow=1.0, fast=2.0)
    assert types_of(policy, view) == {"a": "fast", "b": "slow"}


@pytest.mark.parametrize("policy", RIGID)
def test_of_types_of_which_nothing_is_known_the_one_with_the_most_free_gpus_is_taken(policy: str) -> None:
    for nodes in ("x=1x4,y=2x4", "y=2x4,x=1x4"):
        assert types_of(policy, make_view(nodes, [job("a", 1)])) == {"a": "y"}


def test_what_was_measured_of_the_model_counts_for_more_than_what_is_stated() -> None:
    """This model runs faster on the type that is slower in general."""
    jobs = [job("odd", 2, labels={MODEL: "odd"}), job("other", 2, labels={MODEL: "other"})]
    view = stating(make_view("a=1x4,b=1x4", jobs), a=1.0, b=2.0)
    known = Belief(observations=(measured("a", 2, 0.1), measured("b", 2, 0.3)))
    assert types_of("fifo", replace(view, lore={"odd": known})) == {"odd": "a", "other": "b"}


def test_a_type_that_was_not_measured_is_judged_by_what_is_stated() -> None:
    view = stating(make_view("a=1x4,b=1x4", [job("j", 2, labels={MODEL: "m"})]), a=1.0, b=2.0)
    speed = believed_speeds(replace(view, lore={"m": Belief(observations=(measured("a", 2, 0.5),))}))("j")
    assert speed("a", 1) == 64.0
    assert speed("b", 1) == 128.0


def test_a_measurement_on_another_number_of_gpus_says_nothing() -> None:
    view = make_view("a=1x4,b=1x4", [job("j", 2, labels={MODEL: "m"})])
    known = Belief(observations=(measured("a", 1, 0.1), measured("b", 4, 0.9)))
    speed = believed_speeds(replace(view, lore={"m": known}))("j")
    assert speed("a", 1) == speed("b", 1)


def test_a_job_that_would_span_nodes_is_judged_by_what_was_measured_over_nodes() -> None:
    """Over two nodes it is slower on the fast type than on one node of the other."""
    view = stating(make_view("fast=2x2,slow=1x4", [job("j", 4, labels={MODEL: "m"})]), fast=2.0, slow=1.0)
    seen = (measured("fast", 4, 0.1), measured("fast", 4, 0.9, nodes=2), measured("slow", 4, 0.3))
    assert types_of("fifo", view) == {"j": "fast"}
    assert types_of("fifo", replace(view, lore={"m": Belief(observations=seen)})) == {"j": "slow"}


def test_who_goes_first_takes_the_gpus_of_the_job_that_comes_last_whatever_their_type() -> None:
    """Nothing is idle. `short` goes first; `long` on the slow type comes last, `medium` on the fast type before it."""
    left_s = {"short": 1.0, "medium": 50.0, "long": 99.0}
    jobs = [job("medium", 4, on="n0[0,1,2,3]"), job("long", 4, on="n1[0,1,2,3]"), job("short", 4)]
    view = stating(make_view("fast=1x4,slow=1x4", jobs, now=1.0), fast=2.0, slow=1.0)
    plan = make_policy("srtf").plan(replace(view, oracle=left_s.__getitem__))
    assert {name: str(where) for name, where in plan.allocations.items()} == {
        "medium": "n0[0,1,2,3]",
        "short": "n1[0,1,2,3]",
    }


@pytest.mark.parametrize("policy", RIGID)
def test_any_draws_a_type_for_each_job_by_the_seed(policy: str) -> None:
    jobs = [job(f"j{n}", 1) for n in range(40)]
    one, other = (stating(make_view(nodes, jobs), a=1.0, b=9.0) for nodes in ("a=5x8,b=5x8", "b=5x8,a=5x8"))
    found = types_of(f"{policy}:gpu_type=any", one)
    assert found == types_of(f"{policy}:gpu_type=any", other)
    assert 10 <= list(found.values()).count("a") <= 30
    assert found != types_of(f"{policy}:gpu_type=any,seed=1", one)


@pytest.mark.parametrize("policy", RIGID)
def test_a_choice_that_does_not_exist_is_refused(policy: str) -> None:
    with pytest.raises(InvalidSpec, match=f"{policy}: gpu_type is 'best'; expected fastest or any"):
        make_policy(f"{policy}:gpu_type=best")
    with pytest.raises(InvalidSpec, match=f"{policy}: seed is -1; expected a whole number of at least 0"):
        make_policy(f"{policy}:gpu_type=any,seed=-1")


def test_snapshots_order_nodes_by_what_they_are() -> None:
    nodes = [Node("d", 4, "x"), Node("c", 8, "x"), Node("b", 4, "y", speed=2.0), Node("a", 4, "x"), Node("e", 12, "z")]
    assert [node.id for node in in_order(nodes)] == ["b", "c", "d", "a", "e"]
    assert in_order([]) == []


def test_the_columns_of_nodes_are_in_the_order_of_the_snapshot() -> None:
    view = make_view("x=1x2,y=2x8,x=1x4", [job("a", 2, on="n0[0,1]")])
    columns = view.node_columns
    assert tuple(view.nodes) == columns.ids == ("n1", "n2", "n3", "n0")
    assert columns.gpu_types == ("y", "x")
    assert (columns.type_N.tolist(), columns.free_N.tolist()) == ([0, 0, 1, 1], [8, 8, 4, 0])
    rebuilt = replace(view, _node_table=None).node_columns
    assert (rebuilt.type_N.tolist(), rebuilt.free_N.tolist()) == (columns.type_N.tolist(), columns.free_N.tolist())


def test_a_speed_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="the speed of its GPUs is 0"):
        Node("n", 4, speed=0.0)
