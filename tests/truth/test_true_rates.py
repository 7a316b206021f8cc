"""What oracles are told of every GPU type and of pairs, and what packed jobs of a simulation report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.core.loop import Cadence, run
from fairlead.core.messages import JobReported, Start
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Allocation, JobSpec, Node, Plan, Reason
from fairlead.journal import MemoryJournal
from fairlead.policies.rates import BelievedRates, Configuration, Evidence, OracleRates, Rates
from fairlead.sim.backend import SimBackend
from fairlead.sim.oracle import SimStepOracle
from fairlead.sim.regimes import RegimeTruth
from fairlead.sim.tables import TableTruth, ThroughputTable, load_table
from fairlead.sim.truth import FixedDuration, Setting, Truth
from fairlead.sim.world import SimJob

NODES = (Node("n0", 2, "v100"), Node("n1", 2, "v100"), Node("n2", 2, "k80"))
ONE = Allocation.of({"n0": [0]})
A3C, RESNET = "A3C", "ResNet-18 (batch size 16)"


@pytest.fixture
def table(table_file: Path) -> ThroughputTable:
    return load_table(table_file)


def sim_job(job_id: str, truth: Truth, gpus: int = 1, **more: object) -> SimJob:
    model = getattr(truth, "model", "")
    return SimJob(JobSpec(id=job_id, gpus=gpus, labels={"model": model} if model else {}, **more), 0.0, truth)  # type: ignore[arg-type]


def true_rates(*jobs: SimJob, asked: tuple[Configuration, ...], ran_s: float = 0.0) -> Rates:
    """Of jobs of which the first has run for a while on a v100."""
    backend = SimBackend(jobs, NODES)
    state = State()
    for event in backend.wait(0.0) or []:
        state.apply(event)
    if ran_s:
        backend.execute(Start(0.0, jobs[0].spec.id, 1, ONE))
        while backend.now < ran_s:
            assert backend.wait(ran_s) is not None
    view = replace(state.snapshot(), step_oracle=SimStepOracle(backend, NODES))
    return OracleRates().rates(view, list(view.jobs.values()), asked)


def test_an_oracle_tells_the_rate_on_every_type_and_zero_where_the_job_cannot_run(table: ThroughputTable) -> None:
    resnet, a3c = TableTruth(table, "ResNet-18", 16, 1, 3000.0), TableTruth(table, "A3C", None, 1, 70.0)
    asked = (Configuration("v100", 1), Configuration("k80", 1), Configuration("v100", 2))
    rates = true_rates(sim_job("a", resnet), sim_job("b", a3c), asked=asked)
    assert rates.rate_JC.tolist() == [[30.0 * 16, 6.0 * 16, 0.0], [7.0, 0.0, 0.0]]
    assert rates.batch_J.tolist() == [16.0, 1.0]
    assert (rates.left_J / rates.batch_J).tolist() == [3000.0, 70.0]
    assert (rates.evidence_JC == Evidence.MEASURED).all()


def test_on_several_nodes_an_oracle_tells_the_rate_there(table: ThroughputTable) -> None:
    asked = (Configuration("v100", 2, 1), Configuration("v100", 2, 2))
    rates = true_rates(sim_job("a", TableTruth(table, "ResNet-18", 16, 2, 1.0), 2), asked=asked)
    assert (rates.rate_JC / 16).tolist() == [[50.0, 40.0]]


def test_an_oracle_tells_the_rates_of_a_pair(table: ThroughputTable) -> None:
    resnet, a3c = TableTruth(table, "ResNet-18", 16, 1, 3000.0), TableTruth(table, "A3C", None, 1, 70.0)
    asked = tuple(Configuration("v100", 1, 1, (name,)) for name in (RESNET, A3C))
    rates = true_rates(sim_job("a", resnet), sim_job("b", a3c), asked=asked)
    assert rates.rate_JC[0] / 16 == pytest.approx([21.0, 24.0])
    assert rates.rate_JC[1, 0] == pytest.approx(3.5)


def test_a_pair_that_cannot_run_has_rate_zero(table: ThroughputTable) -> None:
    asked = (Configuration("v100", 2, 1, (RESNET,)),)
    rates = true_rates(sim_job("a", TableTruth(table, "ResNet-18", 16, 2, 1.0), 2), asked=asked)
    assert rates.rate_JC.tolist() == [[0.0]]


def test_work_left_falls_as_the_job_runs_and_the_rate_follows_its_regime(table: ThroughputTable) -> None:
    truth = RegimeTruth(table, "ResNet-18", 1, 10, ((0, 16), (3, 32), (7, 256)))
    asked = (Configuration("v100", 1),)
    first = true_rates(sim_job("a", truth), asked=asked)
    assert first.left_J[0] == 500000.0
    assert first.rate_JC[0, 0] == pytest.approx(30.0 * 16)
    later_s = 3 * 3125 / 30.0 + 100.0
    later = true_rates(sim_job("a", truth), asked=asked, ran_s=later_s)
    assert (later.batch_J[0], later.rate_JC[0, 0]) == (32.0, pytest.approx(25.0 * 32, rel=1e-3))
    assert later.left_J[0] == pytest.approx(7 * 50000 - 100.0 * 25.0 * 32, rel=1e-3)


def test_the_oracle_says_what_a_job_is_to_those_beside_it(table: ThroughputTable) -> None:
    truths = [TableTruth(table, "ResNet-18", 16, 1, 1.0), RegimeTruth(table, "ResNet-18", 1, 10, ((0, 16), (3, 32)))]
    backend = SimBackend([sim_job("a", truths[0]), sim_job("b", truths[1]), sim_job("c", FixedDuration(1.0, 1))], NODES)
    oracle = SimStepOracle(backend, NODES)
    assert [oracle.workload(name) for name in "abc"] == [RESNET, RESNET, ""]


def test_a_job_that_changes_its_batch_goes_at_the_tables_speed_of_the_pair(table: ThroughputTable) -> None:
    job = RegimeTruth(table, "ResNet-18", 1, 10, ((0, 16), (3, 32)))
    a3c = TableTruth(table, "A3C", None, 1, 70.0)
    assert job.pace(Setting(0.0, ONE, "v100", (a3c,))).speed == pytest.approx(24.0 / 3125)
    beside = Setting(0.0, ONE, "v100", (job,), packed_progress=(0.0,))
    assert a3c.pace(beside).speed == pytest.approx(3.5)
    grown = replace(beside, packed_progress=(4.0,))  # the table has no such pair
    assert a3c.pace(grown).speed == pytest.approx(7.0 * 0.6)


class Together:
    """Every job on the same GPU, once `apart_s` have passed; until then the first one alone."""

    def __init__(self, apart_s: float) -> None:
        self._apart_s = apart_s
        self.views: list[Snapshot] = []

    def plan(self, view: Snapshot) -> Plan:
        self.views.append(view)
        names = list(view.jobs) if view.now >= self._apart_s else list(view.jobs)[:1]
        reasons = {name: Reason("test", "for a test") for name in view.jobs}
        return Plan(dict.fromkeys(names, ONE), reasons, frozenset({frozenset(names)}), review_at=view.now + 5.0)


def test_packed_jobs_report_what_they_measure_and_beliefs_become_the_truth(table: ThroughputTable) -> None:
    resnet, a3c = TableTruth(table, "ResNet-18", 16, 1, 3000.0), TableTruth(table, "A3C", None, 1, 700.0)
    policy, journal = Together(10.0), MemoryJournal()
    backend = SimBackend([sim_job("a", resnet), sim_job("b", a3c)], NODES, report_every_s=5.0)
    run(policy, backend, state=State(), journal=journal, cadence=Cadence.parse("event"))
    told = [(o.step_s, o.partners) for m in journal if isinstance(m, JobReported) for o in m.observations]
    assert told[:3] == [
        (pytest.approx(1 / 30.0), ()),
        (pytest.approx(1 / 3.5), ("ResNet-18",)),
        (pytest.approx(1 / 24.0), (A3C,)),
    ]
    view = next(view for view in policy.views if view.now > 10.0 and len(view.allocations) == 2)
    assert view.jobs["a"].partners == (A3C,)
    asked = [Configuration("v100", 1), Configuration("v100", 1, 1, (A3C,))]
    rates = BelievedRates().rates(view, [view.jobs["a"]], asked)
    assert rates.rate_JC[0] / 16 == pytest.approx([30.0, 24.0])
    assert (rates.evidence_JC == Evidence.MEASURED).all()
    assert [share.share for share in view.lore["ResNet-18"].shares] == [pytest.approx(0.8)]


def test_jobs_that_report_progress_alone_learn_what_they_keep_of_their_speed() -> None:
    jobs = [sim_job("a", FixedDuration(100.0, 1)), sim_job("b", FixedDuration(100.0, 1))]
    policy = Together(20.0)
    backend = SimBackend(jobs, NODES, report_every_s=5.0)
    run(policy, backend, state=State(), journal=MemoryJournal(), cadence=Cadence.parse("event"))
    view = max((v for v in policy.views if len(v.allocations) == 2), key=lambda v: v.now)
    speeds = {speed.partners: speed.progress_per_s for speed in view.jobs["a"].belief.speeds}
    assert speeds == {(): pytest.approx(0.01), ("",): pytest.approx(0.006)}
