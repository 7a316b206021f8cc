"""Every reason code of every policy is true: do what the reason names, and the job starts or is left alone.

A row is a cluster in which a policy gives a job this code, and a remedy: the same cluster, or the same policy with
other rules, in which that is changed what the reason names, and nothing else. The rows and the table of codes in
docs/policies.md agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from fairlead.core.loop import Policy
from fairlead.core.messages import JobReported, JobStopped, NodeDrained, Remember, Stop
from fairlead.core.snapshot import Snapshot, TrueRates
from fairlead.core.types import Batch, Node, Observation, Reason
from fairlead.plugins import POLICIES, make_policy
from fairlead.policies.allocator import allocate
from fairlead.policies.appraising import Appraiser
from fairlead.policies.explaining import weighed_reasons
from fairlead.policies.middleware import Queue, Tenancy
from fairlead.policies.middleware.imagining import imagined
from fairlead.policies.pilot import Pilot
from fairlead.policies.placing import realise
from fairlead.policies.weighing import choices
from fairlead.testing import GivenJob, job, make_state, make_view

DOCS = Path(__file__).parents[2] / "docs"

Remedy = Callable[[Snapshot, Reason], Snapshot]

#: True remaining seconds, for oracles.
ORACLE: Mapping[str, float] = {"holder": 50.0, "big": 900.0, "small": 10.0, "wide": 1000.0, "one": 10.0}


@dataclass(frozen=True)
class Row:
    """`job` has the code in `view`; after the remedy `then`, or the policy as given here, plans for it."""

    policy: str
    code: str
    job: str
    view: Callable[[], Snapshot]
    remedy: Remedy
    says: str = ""
    made: Policy | None = None
    then: Policy | None = None

    def plan_before(self) -> Policy:
        return self.made or make_policy(self.policy)

    def plan_after(self) -> Policy:
        return self.then or self.made or make_policy(self.policy)


def of(nodes: str, *jobs: GivenJob, now: float = 0.0, draining: Sequence[str] = ()) -> Callable[[], Snapshot]:
    oracle = {each.spec.id: ORACLE.get(each.spec.id, 100.0) for each in jobs}
    return lambda: make_view(nodes, jobs, now=now, draining=draining, oracle=oracle)


def without_named(view: Snapshot, reason: Reason) -> Snapshot:
    """The jobs that the reason names are not there."""
    assert reason.jobs
    return imagined(view, hidden=set(reason.jobs))


def instead(view: Callable[[], Snapshot]) -> Remedy:
    return lambda _view, _reason: view()


def same(view: Snapshot, _reason: Reason) -> Snapshot:
    return view


# -- policies that plan ------------------------------------------------------------------------------------------------

MARKETS = ("shockwave", "shockwave-elastic", "shockwave-oracle")
ORDERED = ("fifo", "backfill", "easy", "smallest", "srtf", "srtf-gpu", "tiresias", "optimus", "even", *MARKETS)
ROUNDS = ("isolated", "gandiva-fair", "fifo-rounds", "gavel", "gavel-oracle", "random-pairs", "random-pairs-oracle")
WEIGHED = ("pollux", "sia", "pilot")

HOLDER = job("holder", 3, on="n0[0,1,2]", name="train", preemptible=False)
UNTIL = "needs 2 GPUs, 1 is free; job holder (train) holds 3 until it ends: it states no time limit and cannot shrink"
BLOCKED = [job("small", 1, submitted_at=2.0), job("big", 4, submitted_at=1.0)]


def plain_rows(*names: str) -> list[Row]:
    rows = []
    for name in names:
        waits = of("1x4", HOLDER, job("small", 2))
        rows.append(Row(name, "waiting", "small", waits, without_named, says=UNTIL))
        large = of("1x4", job("big", 8))
        rows.append(Row(name, "too-large", "big", large, instead(of("2x4", job("big", 8))), says="needs 8 GPUs; "))
        shut = of("2x4", job("big", 8), draining=["n1"])
        drains = "the nodes open to it have 4; 4 more are on node n1, which drains"
        rows.append(Row(name, "too-large", "big", shut, instead(of("2x4", job("big", 8))), says=drains))
        placed = of("1x4", job("small", 2))
        rows.append(Row(name, "placed", "small", placed, same))
    return rows


PREEMPTED = {
    "smallest": of("1x4", job("wide", 4, on="n0[0,1,2,3]"), job("one", 1)),
    "srtf": of("1x4", job("wide", 4, on="n0[0,1,2,3]"), job("one", 1)),
    "srtf-gpu": of("1x4", job("wide", 4, on="n0[0,1,2,3]"), job("one", 1)),
    "tiresias": of("1x4", job("wide", 4, on="n0[0,1,2,3]"), job("one", 1, submitted_at=5000.0), now=5000.0),
    "optimus": of("1x4", job("wide", 4, on="n0[0,1,2,3]"), job("one", 1)),
    **dict.fromkeys(
        MARKETS, of("1x4", job("wide", 4, on="n0[0,1,2,3]", estimate_s=9e4), job("one", 1, estimate_s=60.0))
    ),
    "even": of("1x4", job("one", 4), job("wide", 4, stints=[("n0[0,1,2,3]", 1.0, None)], submitted_at=1.0), now=2.0),
}


def ordered_rows() -> list[Row]:
    rows = [Row(name, "preempted", "wide", view, without_named, "job one gets") for name, view in PREEMPTED.items()]
    queue = (job("holder", 3, on="n0[0,1,2]", preemptible=False, estimate_s=90.0), *BLOCKED)
    ahead = "needs 1 GPU and 1 is free, but job big, which needs 4, is ahead of it"
    for name in ("fifo", "easy"):
        rows.append(Row(name, "behind", "small", of("1x4", *queue, now=2.0), without_named, says=ahead))
    promised = (queue[0], job("small", 1, submitted_at=2.0, estimate_s=80.0), queue[2])
    says = "it may pass with a time limit of at most 88 s, and states none"
    rows.append(
        Row("easy", "behind", "small", of("1x4", *queue, now=2.0), instead(of("1x4", *promised, now=2.0)), says)
    )
    stated = (job("holder", 3, on="n0[0,1,2]", estimate_s=90.0, gpus_min=1), job("small", 2))
    says = "holds 3 for up to 50 s, by its time limit, and this policy neither preempts nor shrinks it"
    return [*rows, Row("fifo", "waiting", "small", of("1x4", *stated, now=40.0), without_named, says)]


def in_round(policy: str, *jobs: GivenJob, now: float, comes: Sequence[GivenJob] = ()) -> Snapshot:
    """A policy with rounds has planned for these jobs on four GPUs at 10 s, and then others come."""
    first = make_view("1x4", jobs, now=10.0)
    state = make_state("1x4", [*jobs, *comes], now=now)
    state.issue(Remember(now, make_policy(policy).plan(replace(first, oracle=lambda _: 1000.0)).memo))
    return replace(state.snapshot(), oracle=lambda _: 1000.0)


def round_rows() -> list[Row]:
    wide, one = job("wide", 4, on="n0[0,1,2,3]"), job("one", 1)
    rows = []
    for name in ("isolated", "gandiva-fair", "gavel", "gavel-oracle", "random-pairs", "random-pairs-oracle"):
        turn, within = (partial(in_round, name, wide, one, now=now) for now in (410.0, 70.0))
        rows.append(
            Row(name, "preempted", "wide", turn, without_named, "furthest behind its share first): job one gets 1")
        )
        rows.append(
            Row(name, "waiting", "one", within, without_named, "holds 4 until it ends, or the round ends in 300 s")
        )
        gavel = f"{name}:mechanism=gavel"
        new, later = (partial(in_round, gavel, wide, now=now, comes=[one]) for now in (510.0, 1930.0))
        says = "the first round that begins in 1420 s or later"
        rows.append(Row(name, "renewal", "one", new, instead(later), says, make_policy(gavel)))
    queue = (job("holder", 3, on="n0[0,1,2]", preemptible=False), *BLOCKED)
    ahead = "needs 1 GPU and 1 is free, but job big, which needs 4, is ahead of it (order of arrival)"
    return [*rows, Row("fifo-rounds", "behind", "small", of("1x4", *queue, now=2.0), without_named, says=ahead)]


def starved(*, small: bool = True) -> Snapshot:
    """`big` is furthest behind its floor, and cannot have the GPUs of `holder`."""
    jobs = [job("holder", 2, on="n0[0,1]", preemptible=False), job("big", 4), job("small", 1, submitted_at=9_990.0)]
    return make_view("1x4", jobs if small else jobs[:2], now=10_000.0)


def undivided(batch: int) -> Snapshot:
    """A job of two GPUs that has told of its speed, and waits."""
    given = job("small", 2, on="n0[0,1]", batch=Batch(batch, batch))
    state = make_state("1x4", [given], now=10.0)
    seen = Observation("gpu", 1, 2, max(1, batch // 2), 0, 1.0, 0.1)
    state.apply(JobReported(10.0, "small", 1, 0.1, observations=(seen,)))
    state.issue(Stop(10.0, "small", 1))
    state.apply(JobStopped(10.0, "small", 1))
    return state.snapshot()


def weighed_rows() -> list[Row]:
    rows = []
    for name in WEIGHED:
        view = of("1x4", job("holder", 3, on="n0[0,1,2]", name="train"), job("small", 2), now=10.0)
        says = (
            "needs 2 GPUs, 1 is free; to stop job holder (train), which holds 3 and cannot shrink, would cost the objec"
        )
        rows.append(Row(name, "outweighed", "small", view, without_named, says))
        spans = of("2x2", job("holder", 2, on="n0[0] n1[0]", preemptible=False), job("small", 2))
        says = "needs 2 GPUs and 2 are free, but not on one node (1 on n0, 1 on n1), and job holder spans nodes"
        rows.append(Row(name, "fragmented", "small", spans, without_named, says))
        says = "its batch cannot be divided among them"
        rows.append(Row(name, "no-room", "small", lambda: undivided(1), lambda _v, _r: undivided(64), says))
    says = "needs 1 GPU and 2 are free, but they are kept for job big, which needs 4 GPUs: it is "
    return [*rows, Row("pilot", "behind", "small", starved, without_named, says)]


# -- policies that match and lease -------------------------------------------------------------------------------------

MATCHED = ("allox", "allox-oracle")


class Truth:
    """Seconds of work as in `ORACLE`; GPUs of the type `fast` are ten times as fast."""

    def steps_left(self, job_id: str) -> float:
        return ORACLE.get(job_id, 100.0)

    def step_s(self, _job_id: str, _gpus: int) -> float:
        return 1.0

    def rates(self, job_id: str, configurations: Sequence[tuple[str, int, int, tuple[str, ...]]]) -> TrueRates:
        return TrueRates(
            tuple(10.0 if kind == "fast" else 1.0 for kind, *_ in configurations), self.steps_left(job_id), 1
        )

    def workload(self, job_id: str) -> str:
        return job_id


def told(view: Callable[[], Snapshot]) -> Callable[[], Snapshot]:
    """The same with the truth about steps."""
    return lambda: replace(view(), step_oracle=Truth())


def two_speeds(*, held: bool) -> Snapshot:
    nodes = [Node("n0", 1, "fast", speed=10.0), Node("n1", 1, "slow", speed=1.0)]
    holder = job("holder", 1, on="n0[0]" if held else None, estimate_s=20.0)
    return make_view(nodes, [holder, job("big", 1, estimate_s=900.0)] if held else [job("big", 1, estimate_s=900.0)])


def late(now: float) -> Snapshot:
    """`small` came 100 s after the shares in force were computed, at 60 s."""
    policy = make_policy("allox:gangs=time,mechanism=shockwave,round_s=60")
    first = make_view("1x4", [job("one", 1)], now=60.0)
    plan = policy.plan(first)
    jobs = [job("one", 1, on="n0[0]"), job("small", 1, submitted_at=160.0)]
    return replace(make_view("1x4", jobs, now=now), memo=plan.memo)


def matched_rows() -> list[Row]:
    rows = []
    queue = (job("holder", 3, on="n0[0,1,2]", preemptible=False, estimate_s=90.0), *BLOCKED)
    wide = (job("wide", 4, on="n0[0,1,2,3]", estimate_s=1000.0), job("one", 1, estimate_s=10.0))
    for name in MATCHED:
        for row in plain_rows(name):
            rows.append(replace(row, view=told(row.view), remedy=lambda v, r, d=row.remedy: told(lambda: d(v, r))()))
        says = "needs 1 GPU and 1 is free, but job big, which needs 4, is ahead of it"
        first = make_policy(f"{name}:alpha=0")
        rows.append(Row(name, "behind", "small", told(of("1x4", *queue, now=2.0)), without_named, says, first))
        says = "1 slow is free, but it ends sooner on fast"
        rows.append(Row(name, "faster-type", "big", told(lambda: two_speeds(held=True)), without_named, says))
        moving = make_policy(f"{name}:preemptive=true")
        rows.append(Row(name, "preempted", "wide", told(of("1x4", *wide)), without_named, "job one gets 1", moving))
        rounds = make_policy(f"{name}:gangs=time,mechanism=shockwave,round_s=60")
        after = told(lambda: late(1_200.0))
        rows.append(
            Row(name, "renewal", "small", told(lambda: late(161.0)), instead(after), "waits for their renewal", rounds)
        )
    return rows


def leased(*jobs: GivenJob, **left_s: float) -> Callable[[], Snapshot]:
    """At 5,000 s, with leases of jobs that end in so many seconds."""
    leases = {job_id: [5000.0 + seconds, 1.0] for job_id, seconds in left_s.items()}
    memo = {"themis": {"leases": leases, "auctions": 0}}
    return lambda: replace(make_view("1x4", jobs, now=5000.0), memo=memo)


def leased_rows() -> list[Row]:
    holder, small = job("holder", 3, on="n0[0,1,2]", estimate_s=9000.0), job("small", 2, submitted_at=4900.0)
    wide = (job("wide", 4, on="n0[0,1,2,3]", estimate_s=9000.0), job("one", 1, estimate_s=10.0))
    kept = (holder, job("big", 4, estimate_s=10.0), job("small", 1, submitted_at=4900.0, estimate_s=10.0))
    return [
        *plain_rows("themis"),
        Row("themis", "waiting", "small", leased(holder, small, holder=250.0), without_named,
            "needs 2 GPUs, 1 is free; job holder holds 3 until its lease ends in 250 s; rho"),
        Row("themis", "preempted", "wide", leased(*wide), without_named,
            "its lease of 4 GPUs is over and others won them: job one gets 1"),
        Row("themis", "behind", "small", leased(*kept, holder=100.0), without_named,
            "needs 1 GPU and 1 is free, but in 100 s job big, which needs 4, can have them"),
    ]  # fmt: skip


# -- policies that wrap another ----------------------------------------------------------------------------------------


def victims(*, both_saved: bool) -> Snapshot:
    """Two jobs that are alike have had much, and a third comes; `first` has just saved its work."""
    jobs = [job("first", 2, on="n0[0,1]"), job("second", 2, on="n0[2,3]"), job("one", 1, submitted_at=5000.0)]
    state = make_state("1x4", jobs, now=5000.0)
    for name in ("first", "second") if both_saved else ("first",):
        state.apply(JobReported(5000.0, name, 1, 0.5, saved=True))
    return state.snapshot()


def unsaved(*, saved: bool) -> Snapshot:
    state = make_state("1x4", [job("wide", 4, on="n0[0,1,2,3]"), job("one", 1, submitted_at=5000.0)], now=5000.0)
    if saved:
        state.apply(JobReported(5000.0, "wide", 1, 0.5, saved=True))
    return state.snapshot()


def emptied(*, by: float | None) -> Snapshot:
    state = make_state("2x2", [job("one", 2, on="n0[0,1]"), job("two", 2, on="n1[0,1]")], now=100.0)
    if by is not None:
        state.apply(NodeDrained(100.0, "n0", by=by))
    return state.snapshot()


def intruded(*, outside: tuple[int, ...]) -> Snapshot:
    """`wide` has had far more than the others, and makes way; a process that no job started uses one of its GPUs."""
    jobs = [job("wide", 2, on="n0[0,1]"), job("one", 1, submitted_at=1.0), job("two", 1, submitted_at=2.0)]
    view = make_view("1x2", jobs, now=1e6)
    return replace(view, nodes={"n0": replace(view.nodes["n0"], outside=outside)})


def tenants(*users: str, gpus: int = 1, running: int = 0, queue: str = "default") -> Callable[[], Snapshot]:
    """One job of each user in turn on four GPUs; the first so many run."""
    jobs = [
        job(f"{user}{n}", gpus, on=f"n0[{n}]" if n < running else None, tenant=user, queue=queue)
        for n, user in enumerate(users)
    ]
    return of("1x4", *jobs)


def quota_view(*, prod: bool) -> Snapshot:
    jobs = [job(f"dev{n}", tenant="ann", queue="dev") for n in range(4)]
    jobs += [job(f"prod{n}", tenant="bob", queue="prod") for n in range(2)] if prod else []
    return make_view("1x4", jobs)


def elastic(name: str, gpus: int, most: int, **more: object) -> GivenJob:
    return job(name, gpus, gpus_min=1, gpus_max=most, in_place=True, **more)  # type: ignore[arg-type]


def lent_view(*, owner: bool) -> Snapshot:
    jobs = [elastic("borrower", 8, 8, on="n0[0,1,2,3,4,5,6,7]", queue="dev")]
    return make_view("1x8", [*jobs, elastic("owner", 1, 4, queue="prod")] if owner else jobs, now=1000.0)


def limited(**rules: int | None) -> Policy:
    return Tenancy(make_policy("fifo"), (Queue("default", **rules),))  # type: ignore[arg-type]


def wrapping_rows() -> list[Row]:
    two = of("1x2", job("one", 1), job("small", 1))
    ranks = of("1x4", job("small", 2), job("big", 3, priority=1))
    young = [job("wide", 4, on="n0[0,1,2,3]"), job("one", 1)]
    quota = Tenancy(make_policy("fifo"), (Queue("prod", quota=2), Queue("dev", quota=2)))
    lender = Tenancy(make_policy("pilot"), (Queue("prod", quota=4), Queue("dev")))
    anns = tenants("ann", "ann", "ann", running=2)
    fair = tenants("ann", "ann", "ann", "ann", "bob", "bob", "bob", "bob")
    return [
        Row("window", "far-back", "small", two, instead(of("1x2", job("small", 1))), "1 job is before it",
            make_policy("window:most=1+fifo")),
        Row("by-priority", "priority", "small", ranks, without_named,
            "1 job of higher priority than its 0 needs 3 of 4 GPUs in all, and this one needs 2",
            make_policy("by-priority+fifo")),
        Row("minimum-run", "minimum-run", "one", of("1x4", *young, now=30.0), instead(of("1x4", *young, now=61.0)),
            "waits for up to 30 s", make_policy("minimum-run+smallest")),
        Row("least-loss", "least-loss", "first", lambda: victims(both_saved=False),
            lambda _v, _r: victims(both_saved=True), "in place of job second", make_policy("least-loss+tiresias")),
        Row("drain", "drain", "one", lambda: emptied(by=150.0), lambda _v, _r: emptied(by=None),
            "has to be empty in 50 s", make_policy("drain+tiresias")),
        Row("outsiders", "outside", "two", lambda: intruded(outside=(1,)), lambda _v, _r: intruded(outside=()),
            "used by processes", make_policy("outsiders+tiresias")),
        Row("tenancy", "queue-limit", "ann2", anns, same, "queue default has 2 GPUs, and may have 2",
            limited(max_gpus=2), limited(max_gpus=3)),
        Row("tenancy", "user-limit", "ann2", anns, same, "user ann has 2 GPUs, and may have 2",
            limited(max_gpus_per_user=2), limited(max_gpus_per_user=3)),
        Row("tenancy", "user-limit", "ann2", anns, same, "user ann has 2 jobs running, and may have 2",
            limited(max_jobs_per_user=2), limited(max_jobs_per_user=3)),
        Row("tenancy", "fair-share", "ann3", fair, instead(tenants("ann", "ann", "ann", "ann")),
            "user ann is entitled to 2, and has 2; bob has 2", make_policy("tenancy+fifo")),
        Row("tenancy", "queue-quota", "dev3", lambda: quota_view(prod=True), lambda _v, _r: quota_view(prod=False),
            "queue prod takes back what is guaranteed", quota),
        Row("tenancy", "lent", "borrower", lambda: lent_view(owner=True), lambda _v, _r: lent_view(owner=False),
            "beyond its user's share", lender),
        Row("spare-unsaved", "waiting", "one", lambda: unsaved(saved=False), lambda _v, _r: unsaved(saved=True),
            "job wide has saved no checkpoint", make_policy("spare-unsaved+tiresias")),
    ]  # fmt: skip


ROWS = [
    *plain_rows(*ORDERED, *ROUNDS, *WEIGHED),
    *ordered_rows(),
    *round_rows(),
    *weighed_rows(),
    *matched_rows(),
    *leased_rows(),
    *wrapping_rows(),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.policy}-{row.code}")
def test_the_job_starts_or_is_left_alone_once_what_its_reason_names_is_done(row: Row) -> None:
    view = row.view()
    plan = row.plan_before().plan(view)
    reason = plan.reasons[row.job]
    assert (reason.code, row.says in reason.text) == (row.code, True), reason
    was = plan.allocations.get(row.job)
    after = row.remedy(view, reason)
    then = row.plan_after().plan(after).allocations.get(row.job)
    assert then is not None, reason
    if row.code in ("waiting", "behind", "outweighed", "too-large", "no-room", "fragmented", "far-back", "priority"):
        assert was is None
    if (held := after.jobs[row.job].allocation) and row.code != "lent":
        assert then == held, "it is left alone"


@pytest.mark.parametrize("name", WEIGHED)
def test_a_job_that_the_search_has_left_out_would_be_placed_by_a_better_one(name: str) -> None:
    """No search of ours leaves it out in so small a cluster: here the plan is made up, and then searched for."""
    view = make_view("1x4", [job("holder", 2, on="n0[0,1]"), job("small", 2)])
    options = choices(view, Appraiser(), reach=1, lore=False)
    problem = options.problem(lambda goodput: -goodput, moved=lambda goodput: goodput, idle_J=0.0 * options.now_J)
    reason = weighed_reasons(view, dict(view.allocations), options, problem)["small"]
    assert (reason.code, reason.text.startswith("needs 2 GPUs and 2 are free, but the search")) == ("unplaced", True)
    assert "small" in realise(view, list(view.jobs), allocate(problem).where)
    assert "small" in make_policy(name).plan(view).allocations


def documented() -> dict[str, set[str]]:
    """Codes by policy, from the table in docs/policies.md."""
    page = (DOCS / "policies.md").read_text(encoding="utf-8")
    table = page.split("## Reasons by policy", 1)[1].split("\n## ", 1)[0]
    found: dict[str, set[str]] = {}
    for names, codes in re.findall(r"^\| (`[^|]+) \| (`[^|]+) \|$", table, re.MULTILINE):
        for name in re.findall(r"`([\w-]+)`", names):
            found.setdefault(name, set()).update(re.findall(r"`([\w-]+)`", codes))
    return found


def test_every_documented_code_of_every_policy_has_a_scenario_and_every_scenario_is_documented() -> None:
    proved: dict[str, set[str]] = {name: {"unplaced"} for name in WEIGHED}  # by the test above
    for row in ROWS:
        proved.setdefault(row.policy, set()).add(row.code)
    assert documented() == proved
    assert proved.keys() | {"autoscale", "frugal"} == POLICIES.keys()  # these have the reasons of what they wrap
    codes = set().union(*proved.values())
    listed = (DOCS / "concepts.md").read_text(encoding="utf-8").split("## Reasons", 1)[1].split("\n## ", 1)[0]
    assert codes == set(re.findall(r"^\| `([\w-]+)` \|", listed.split("| number |")[0], re.MULTILINE))


def test_a_rigid_holder_is_named_with_what_would_have_to_happen() -> None:
    """Four GPUs, a rigid job holds three, a job needs two."""
    jobs = [job("1", 3, on="n0[0,1,2]", name="holder"), job("2", 2)]
    told = make_policy("spare-unsaved+pilot").plan(make_view("1x4", jobs)).reasons["2"]
    assert told.text.startswith(
        "needs 2 GPUs, 1 is free; job 1 (holder) holds 3 until it ends: it states no time limit and cannot shrink"
    )
    assert (told.code, told.jobs) == ("waiting", ("1",))
    assert {name: told.numbers[name] for name in ("needs", "free", "total", "held_elsewhere")} == {
        "needs": 2,
        "free": 1,
        "total": 4,
        "held_elsewhere": 3,
    }
    assert Pilot().plan(make_view("1x4", jobs[1:])).allocations.keys() == {"2"}
