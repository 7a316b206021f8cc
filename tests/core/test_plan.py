"""From plans to commands: what is refused and in which words, and which commands close which gap."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fairlead.core.errors import InvalidPlan
from fairlead.core.messages import (
    Command,
    JobCancelled,
    JobRescaled,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Resize,
    Start,
    Stop,
)
from fairlead.core.plan import changes, check, reconcile, surviving
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import NOTHING, Allocation, JobSpec, Node, Phase, Plan


def on(node: str, *gpus: int) -> Allocation:
    return Allocation.of({node: gpus})


A, B = on("n0", 0, 1), on("n0", 2, 3)


def cluster(*specs: JobSpec) -> State:
    """n0 and n1 with four GPUs each, n2 with four fast ones."""
    state = State()
    for node in (Node("n0", 4), Node("n1", 4), Node("n2", 4, "fast")):
        state.apply(NodeJoined(0.0, node))
    for spec in specs:
        state.apply(JobSubmitted(0.0, spec))
    return state


def gang(job_id: str, **fields: object) -> JobSpec:
    return JobSpec(**{"id": job_id, "gpus": 2, **fields})  # type: ignore[arg-type]


def elastic(job_id: str) -> JobSpec:
    return JobSpec(id=job_id, gpus=2, gpus_min=1, gpus_max=8, in_place=True)


def bring(state: State, job_id: str, phase: Phase, allocation: Allocation) -> None:
    """Take a pending job to a phase in which it was last told to hold `allocation`, or held it until told to stop."""
    if phase is Phase.PENDING:
        return
    state.issue(Start(0.0, job_id, 1, allocation | on("n1", 3) if phase is Phase.RESCALING else allocation))
    if phase is not Phase.STARTING:
        state.apply(JobStarted(0.0, job_id, 1))
    if phase is Phase.RESCALING:
        state.issue(Resize(0.0, job_id, 1, allocation))  # n1[3] is being released
    if phase is Phase.SUSPENDED:
        state.issue(Resize(0.0, job_id, 1, NOTHING))
        state.apply(JobRescaled(0.0, job_id, 1))
    if phase is Phase.STOPPING:
        state.issue(Stop(0.0, job_id, 1))


def running(*jobs: tuple[JobSpec, Allocation]) -> State:
    state = cluster(*(spec for spec, _ in jobs))
    for spec, allocation in jobs:
        bring(state, spec.id, Phase.RUNNING, allocation)
    return state


def decide(
    view: Snapshot | State, allocations: dict[str, Allocation], *packs: str, only_check: bool = False
) -> list[Command]:
    """What the loop does with a plan. A pack is the ids of its jobs in one word."""
    view = view.snapshot() if isinstance(view, State) else view
    plan = Plan(allocations, packed=frozenset(frozenset(pack) for pack in packs))
    changed = changes(view, plan)
    check(view, plan, changed)
    return [] if only_check else reconcile(view, plan, changed)


def issue(state: State, commands: list[Command]) -> list[Command]:
    for command in commands:
        state.issue(command)
    return commands


# -- check -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allocations", "words"),
    [
        ({"x": A}, "the plan places job 'x', which is not a live job of this snapshot"),
        ({"gone": A}, "the plan places job 'gone', which is not a live job"),
        ({"a": on("n0", 0)}, "job a gets 1 GPU; it runs on 2 to 2"),
        ({"a": on("n0", 0, 1, 2)}, "job a gets 3 GPUs; it runs on 2 to 2"),
        ({"a": NOTHING}, "job a gets 0 GPUs"),
        (
            {"e": on("n0", 0) | Allocation.of({"n1": [0, 1, 2, 3], "n2": [0, 1, 2, 3]})},
            "job e gets 9 GPUs; it runs on 1 to 8",
        ),
        ({"a": on("n9", 0, 1)}, "job a is placed on node 'n9', which does not exist"),
        ({"a": on("lost", 0, 1)}, "job a is placed on node lost, which is lost"),
        ({"a": on("shut", 0, 1)}, "job a is newly placed on node shut, which is draining"),
        ({"a": on("n0", 3, 4)}, "job a is placed on GPU 4 of node n0, which has 4"),
        (
            {"e": Allocation.of({"n0": [0], "n2": [0]})},
            "job e is spread over GPU types fast, gpu; it can use one at a time",
        ),
        ({"f": on("n0", 0, 1)}, "job f is placed on gpu; it accepts fast"),
        ({"a": A, "b": on("n0", 1, 2)}, "jobs a and b both get GPU 1 of node n0; give it to one of them, or declare"),
    ],
)
def test_a_plan_that_no_cluster_could_carry_out_is_refused(allocations: dict[str, Allocation], words: str) -> None:
    state = cluster(gang("a"), gang("b"), elastic("e"), gang("f", gpu_types=("fast",)), gang("gone"))
    state.apply(NodeJoined(0.0, Node("lost", 4)))
    state.apply(NodeJoined(0.0, Node("shut", 4)))
    state.apply(NodeLost(1.0, "lost"))
    state.apply(NodeDrained(1.0, "shut"))
    state.apply(JobCancelled(1.0, "gone"))
    with pytest.raises(InvalidPlan) as caught:
        decide(state, allocations)
    assert words in str(caught.value)


def test_a_job_may_stay_on_a_draining_node_and_shrink_there_but_not_grow_there() -> None:
    state = running((elastic("e"), A))
    state.apply(NodeDrained(1.0, "n0"))
    decide(state, {"e": A}, only_check=True)
    decide(state, {"e": on("n0", 0)}, only_check=True)
    decide(state, {"e": A | on("n1", 0)}, only_check=True)
    with pytest.raises(InvalidPlan, match="newly placed on node n0, which is draining"):
        decide(state, {"e": on("n0", 0, 1, 2)})


def test_a_newcomer_may_not_take_what_a_job_that_stays_holds() -> None:
    state = running((gang("a"), A), (gang("b"), B))
    state.apply(JobSubmitted(1.0, gang("c")))
    with pytest.raises(InvalidPlan, match=r"jobs a and c both get GPU 1 of node n0"):
        decide(state, {"a": A, "b": B, "c": on("n0", 1) | on("n1", 0)})
    decide(state, {"b": B, "c": A}, only_check=True)
    decide(state, {"a": B, "b": A}, only_check=True)


@pytest.mark.parametrize(
    ("packs", "words"),
    [
        (["ab", "bc", "ac"], None),
        (["abc"], None),
        (["ab", "bc"], "jobs a and c both get GPU 0"),
        (["ab"], "jobs a and c both get GPU 0"),
        (["xy"], "jobs a and b both get GPU 0"),
        ([], "jobs a and b both get GPU 0"),
    ],
)
def test_gpus_are_shared_only_by_jobs_declared_together(packs: list[str], words: str | None) -> None:
    state = cluster(gang("a"), gang("b"), gang("c"))
    plan = {"a": A, "b": A, "c": A}
    if words is None:
        decide(state, plan, *packs, only_check=True)
        return
    with pytest.raises(InvalidPlan, match=words):
        decide(state, plan, *packs)


def test_sharing_that_is_no_longer_declared_is_refused_even_if_nothing_changes() -> None:
    state = running((gang("a"), A), (gang("b"), A))
    decide(state, {"a": A, "b": A}, "ab", only_check=True)
    with pytest.raises(InvalidPlan, match="or declare them"):
        decide(state, {"a": A, "b": A})


def test_a_review_at_no_time_is_refused() -> None:
    with pytest.raises(InvalidPlan, match="review_at is nan; expected a time in seconds; leave it out"):
        check(cluster().snapshot(), Plan(review_at=math.nan), [])


def made(allocations: Any, **parts: Any) -> Plan:
    """A plan of things that a type checker would not let through."""
    return Plan(allocations, **parts)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (made({"a": None}), "job a gets None; expected Allocation.of(.*), or no entry to stop the job"),
        (made({"a": {"n0": [0, 1]}}), "job a gets {'n0': .*}; expected Allocation.of"),
        (made({"a": 2}), "job a gets 2; expected Allocation.of"),
        (made({None: A}), "job None, which is not a live job"),
        (made(None), "allocations is None; expected a mapping from job id to Allocation"),
        (made([("a", A)]), "allocations is .*; expected a mapping"),
        (
            made({"a": on("n9", 0, 1)}),
            "job a is placed on node 'n9', which does not exist; known are n0, n1, n2",
        ),
        (made({"a": A}, reasons=None), "reasons is None; expected a mapping from job id to Reason"),
        (made({"a": A}, packed=["a"]), "packed is .*; expected a frozenset of frozensets"),
        (made({"a": A}, bound="1 %"), "bound is '1 %'; expected a share"),
        (made({"a": A}, bound=math.nan), "bound is nan; expected a share"),
        (made({"a": A}, review_at=None), "review_at is None; expected a time"),
        (made({"a": A}, review_at="soon"), "review_at is 'soon'; expected a time"),
        (made({"a": A}, nodes=["n0"]), "nodes is .*; expected a frozenset of node ids"),
        (made({"a": A}, nodes=frozenset({"n9"})), "the plan wants node 'n9', which does not exist"),
    ],
)
def test_a_plan_made_of_the_wrong_things_is_refused_in_words(plan: Plan, words: str) -> None:
    view = running((gang("a"), A)).snapshot() if None not in (plan.allocations or ()) else cluster(gang("a")).snapshot()
    with pytest.raises(InvalidPlan, match=words):
        check(view, plan, changes(view, plan))


# -- changes ---------------------------------------------------------------------------------------------------------


def test_changes_come_in_the_plans_order_and_then_those_it_drops() -> None:
    state = running((gang("a"), A), (gang("b"), B), (gang("c"), on("n1", 0, 1)), (gang("d"), on("n1", 2, 3)))
    for job_id in ("e", "f"):
        state.apply(JobSubmitted(1.0, gang(job_id)))
    plan = Plan({"f": on("n1", 0, 1), "b": A, "c": B, "e": on("n2", 0, 1)})
    assert changes(state.snapshot(), plan) == ["f", "b", "c", "e", "a", "d"]
    assert changes(state.snapshot(), Plan(state.snapshot().allocations)) == []


# -- reconcile: one job ----------------------------------------------------------------------------------------------

ELSEWHERE, MORE, LESS = on("n1", 0, 1), on("n0", 0, 1, 2), on("n0", 0)
START, STOP = [Start(0.0, "j", 1, ELSEWHERE)], [Stop(0.0, "j", 1)]


def resize(allocation: Allocation) -> list[Command]:
    return [Resize(0.0, "j", 1, allocation)]


@pytest.mark.parametrize(
    ("in_place", "phase", "target", "commands"),
    [
        (False, Phase.PENDING, ELSEWHERE, START),
        (False, Phase.STARTING, NOTHING, STOP),
        (False, Phase.STARTING, ELSEWHERE, STOP),  # it moves by a restart
        (False, Phase.RUNNING, NOTHING, STOP),
        (False, Phase.RUNNING, ELSEWHERE, STOP),
        (False, Phase.RUNNING, MORE, STOP),
        (False, Phase.RUNNING, LESS, STOP),
        (False, Phase.STOPPING, ELSEWHERE, []),  # comes once it has stopped
        (False, Phase.STOPPING, A, []),
        (True, Phase.PENDING, ELSEWHERE, START),
        (True, Phase.STARTING, NOTHING, STOP),
        (True, Phase.STARTING, LESS, []),  # comes once it runs
        (True, Phase.STARTING, ELSEWHERE, []),
        (True, Phase.RUNNING, NOTHING, resize(NOTHING)),  # suspend, and stay warm
        (True, Phase.RUNNING, LESS, resize(LESS)),
        (True, Phase.RUNNING, MORE, resize(MORE)),
        (True, Phase.RUNNING, ELSEWHERE, resize(ELSEWHERE)),
        (True, Phase.RESCALING, NOTHING, STOP),
        (True, Phase.RESCALING, LESS, []),
        (True, Phase.RESCALING, MORE, []),
        (True, Phase.SUSPENDED, NOTHING, []),
        (True, Phase.SUSPENDED, ELSEWHERE, resize(ELSEWHERE)),  # resume
        (True, Phase.STOPPING, ELSEWHERE, []),
    ],
)
def test_the_command_that_takes_one_job_from_where_it_is_to_where_it_should_be(
    in_place: bool, phase: Phase, target: Allocation, commands: list[Command]
) -> None:
    state = cluster(JobSpec(id="j", gpus=2, gpus_min=1, gpus_max=8, in_place=in_place))
    bring(state, "j", phase, A)
    assert decide(state, {"j": target} if target else {}) == commands
    if phase not in (Phase.PENDING, Phase.SUSPENDED, Phase.STOPPING):
        assert decide(state, {"j": A}) == []


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING, Phase.RESCALING, Phase.SUSPENDED])
def test_a_cancelled_job_is_stopped_once_and_in_every_phase(phase: Phase) -> None:
    state = cluster(elastic("j"))
    bring(state, "j", phase, A)
    state.apply(JobCancelled(0.0, "j"))
    assert issue(state, decide(state, {})) == STOP
    assert decide(state, {}) == []


# -- reconcile: several jobs -----------------------------------------------------------------------------------------


def test_gpus_still_being_released_are_given_away_only_by_the_next_call() -> None:
    state = running((gang("a"), A))
    state.apply(JobSubmitted(0.0, gang("b")))
    assert issue(state, decide(state, {"b": A})) == [Stop(0.0, "a", 1)]
    assert decide(state, {"b": A}) == []
    state.apply(JobStopped(5.0, "a", 1))
    assert decide(state, {"b": A}) == [Start(5.0, "b", 1, A)]


def test_the_gpus_of_a_job_that_shrinks_in_place_are_free_once_it_has_rescaled() -> None:
    state = running((elastic("e"), A | B))
    state.apply(JobSubmitted(0.0, gang("b")))
    assert issue(state, decide(state, {"e": A, "b": B})) == [Resize(0.0, "e", 1, A)]
    assert decide(state, {"e": A, "b": B}) == []
    state.apply(JobRescaled(5.0, "e", 1))
    assert decide(state, {"e": A, "b": B}) == [Start(5.0, "b", 1, B)]


def test_the_gpus_of_a_cancelled_job_are_not_given_away_before_it_is_gone() -> None:
    state = running((gang("a"), A))
    state.apply(JobSubmitted(0.0, gang("b")))
    state.apply(JobCancelled(1.0, "a"))
    assert issue(state, decide(state, {"b": A})) == [Stop(1.0, "a", 1)]
    assert decide(state, {"b": A}) == []
    state.apply(JobStopped(5.0, "a", 1))
    assert decide(state, {"b": A}) == [Start(5.0, "b", 1, A)]


def test_releases_come_before_everything_else_and_free_gpus_are_used_at_once() -> None:
    state = running((gang("a"), A), (elastic("e"), B))
    for job_id in ("b", "c"):
        state.apply(JobSubmitted(0.0, gang(job_id)))
    target = {"b": on("n1", 0, 1), "c": A, "e": on("n0", 2)}
    assert decide(state, target) == [
        Resize(0.0, "e", 1, on("n0", 2)),
        Stop(0.0, "a", 1),
        Start(0.0, "b", 1, target["b"]),
    ]


def test_gangs_that_swap_places_are_both_stopped_and_both_come_back() -> None:
    state = running((gang("a"), A), (gang("b"), B))
    assert issue(state, decide(state, {"a": B, "b": A})) == [Stop(0.0, "a", 1), Stop(0.0, "b", 1)]
    state.apply(JobStopped(1.0, "b", 1))
    assert issue(state, decide(state, {"a": B, "b": A})) == []  # a still holds what b waits for
    state.apply(JobStopped(2.0, "a", 1))
    assert decide(state, {"a": B, "b": A}) == [Start(2.0, "a", 2, B), Start(2.0, "b", 2, A)]


def test_elastic_jobs_that_wait_for_each_others_gpus_do_not_wait_for_ever() -> None:
    """Neither may take what the other still holds, so one of them lets go first."""
    state, target = running((elastic("a"), A), (elastic("b"), B)), {"a": B, "b": A}
    assert issue(state, decide(state, target)) == [Resize(0.0, "a", 1, NOTHING)]
    assert decide(state, target) == []
    state.apply(JobRescaled(1.0, "a", 1))
    assert issue(state, decide(state, target)) == [Resize(1.0, "b", 1, A)]
    state.apply(JobRescaled(2.0, "b", 1))
    assert decide(state, target) == [Resize(2.0, "a", 1, B)]


def test_who_lets_go_keeps_what_it_may_keep_if_it_can_run_on_that() -> None:
    state = running((elastic("a"), on("n0", 0, 1)), (elastic("b"), on("n0", 2)))
    assert decide(state, {"a": on("n0", 0, 2), "b": on("n0", 1)}) == [Resize(0.0, "a", 1, on("n0", 0))]


def test_nobody_lets_go_for_gpus_that_are_on_their_way() -> None:
    """b waits for a, a waits for c, and c is being stopped: two rescales are enough."""
    state = running((elastic("a"), A), (elastic("b"), B), (gang("c"), ELSEWHERE))
    target = {"a": ELSEWHERE, "b": A}
    assert issue(state, decide(state, target)) == [Stop(0.0, "c", 1)]
    assert decide(state, target) == []
    state.apply(JobStopped(1.0, "c", 1))
    assert issue(state, decide(state, target)) == [Resize(1.0, "a", 1, ELSEWHERE)]
    state.apply(JobRescaled(2.0, "a", 1))
    assert decide(state, target) == [Resize(2.0, "b", 1, A)]


# -- reconcile: packing ----------------------------------------------------------------------------------------------


def test_mates_start_together_or_join_one_that_is_already_there() -> None:
    state = cluster(gang("a"), gang("b"))
    assert decide(state, {"a": A, "b": A}, "ab") == [Start(0.0, "a", 1, A), Start(0.0, "b", 1, A)]
    bring(state, "a", Phase.RUNNING, A)
    assert decide(state, {"a": A, "b": A}, "ab") == [Start(0.0, "b", 1, A)]


def test_a_new_mate_waits_until_the_old_one_has_let_go() -> None:
    state = running((gang("a"), A), (gang("b"), A))
    state.apply(JobSubmitted(0.0, gang("c")))
    target = {"a": A, "c": A}
    assert issue(state, decide(state, target, "ac")) == [Stop(0.0, "b", 1)]
    assert decide(state, target, "ac") == []
    state.apply(JobStopped(3.0, "b", 1))
    assert decide(state, target, "ac") == [Start(3.0, "c", 1, A)]


def test_a_new_mate_also_waits_for_one_that_was_cancelled() -> None:
    state = running((gang("a"), A), (gang("b"), A))
    state.apply(JobSubmitted(0.0, gang("c")))
    state.apply(JobCancelled(1.0, "b"))
    assert issue(state, decide(state, {"a": A, "c": A}, "ac")) == [Stop(1.0, "b", 1)]
    assert decide(state, {"a": A, "c": A}, "ac") == []
    state.apply(JobStopped(3.0, "b", 1))
    assert decide(state, {"a": A, "c": A}, "ac") == [Start(3.0, "c", 1, A)]


# -- a plan that events have overtaken -------------------------------------------------------------------------------


def test_what_survives_of_a_plan_passes_the_check() -> None:
    """Its jobs are gone, cancelled, or its nodes are lost, closed, or came back as something else."""
    state = cluster(*(gang(job_id) for job_id in "abcde"), gang("f", gpu_types=("fast",)))
    plan = Plan(
        {
            "a": on("n0", 0, 1),
            "b": on("n1", 0, 1),
            "c": on("n3", 0, 1),
            "d": on("n4", 2, 3),
            "e": on("n0", 2, 3),
            "f": on("n2", 0, 1),
        }
    )
    for node in (Node("n3", 4), Node("n4", 4)):
        state.apply(NodeJoined(0.0, node))
    check(state.snapshot(), plan, changes(state.snapshot(), plan))
    for node_id in ("n1", "n2", "n4"):
        state.apply(NodeLost(1.0, node_id))
    state.apply(JobCancelled(1.0, "a"))
    state.apply(NodeDrained(1.0, "n3"))
    for node in (Node("n2", 4, "slow"), Node("n4", 2)):
        state.apply(NodeJoined(2.0, node))
    view = state.snapshot()
    left = surviving(view, plan)
    assert left.allocations == {"e": on("n0", 2, 3)}
    check(view, left, changes(view, left))


def test_a_job_on_a_draining_node_is_still_part_of_the_plan_that_put_it_there() -> None:
    state = running((gang("a"), A))
    state.apply(NodeDrained(1.0, "n0"))
    assert surviving(state.snapshot(), plan := Plan({"a": A})) is plan
