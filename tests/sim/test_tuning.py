"""Jobs that tune their batch: by what they have measured, when there is something new, and by nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from fairlead.core.loop import Cadence, run
from fairlead.core.messages import JobReported, Message
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import NOTHING, Allocation, JobSpec, Node, Observation, Plan
from fairlead.goodput.fit import fit
from fairlead.goodput.tune import best_batch
from fairlead.journal import MemoryJournal
from fairlead.sim.backend import SimBackend
from fairlead.sim.experiment import Experiment, run_experiment
from fairlead.sim.measured import MeasuredTruth, load_profile
from fairlead.sim.truth import NOTHING_LEARNED, Learned, Pace, Setting
from fairlead.sim.tuned import TunedTruth
from fairlead.sim.world import SimJob

Write = Callable[..., Path]

ONE, FOUR = Allocation.of({"n0": (0,)}), Allocation.of({"n0": range(4)})


@dataclass(frozen=True)
class Follow:
    plans: Mapping[float, Allocation]

    def plan(self, view: Snapshot) -> Plan:
        now = max(at for at in self.plans if at <= view.now)
        later = min((at for at in self.plans if at > view.now), default=math.inf)
        where = self.plans[now]
        return Plan(dict.fromkeys(view.jobs, where) if where else {}, review_at=later)


def simulate(truth: TunedTruth, plans: Mapping[float, Allocation], **world: float) -> list[Message]:
    job = SimJob(JobSpec(id="a", gpus=1, gpus_max=4, batch=truth.asked.profile.batch), 0.0, truth)
    journal = MemoryJournal()
    backend = SimBackend([job], [Node("n0", 4)], **world)  # type: ignore[arg-type]
    run(Follow(plans), backend, state=State(), journal=journal, cadence=Cadence())
    return journal.messages


def reports(messages: Sequence[Message]) -> list[JobReported]:
    return [message for message in messages if isinstance(message, JobReported)]


def tuned(directory: Path) -> TunedTruth:
    return TunedTruth(MeasuredTruth(load_profile(directory), 1, 32))


def choices(truth: TunedTruth, heard: Sequence[JobReported], gpus: Sequence[int]) -> Iterator[int]:
    """The batch it would choose before each report, on so many GPUs, if it knew no more than it has reported."""
    seen: list[Observation] = []
    bounds = truth.asked.profile.batch
    yield max(bounds.initial, bounds.min_per_gpu * gpus[0])
    for before, count in zip(heard, gpus[1:], strict=False):
        seen += before.observations
        assert before.noise_scale is not None
        m, s, _ = best_batch(fit(tuple(seen)).params, before.noise_scale, 1, count, bounds)
        yield count * m * (s + 1)


def test_a_job_begins_at_its_initial_batch_and_then_tunes_by_what_it_has_measured(write_profile: Write) -> None:
    truth = tuned(write_profile())
    heard = reports(simulate(truth, {0.0: ONE, 95.0: FOUR}))
    gpus = [1 if report.at < 95.0 else 4 for report in heard]
    assert [report.batch for report in heard] == list(choices(truth, heard, gpus))
    assert (heard[0].at, heard[0].batch) == (0.0, 8)
    assert (heard[1].at, heard[1].batch) == (30.0, heard[1].batch)
    assert heard[1].batch != 8
    four = [report.batch for report in heard if report.at >= 95.0]
    assert four[0] is not None
    assert four[0] > max(report.batch or 0 for report in heard if report.at < 95.0)


def test_a_job_knows_nothing_of_its_profile_that_it_has_not_measured(write_profile: Write) -> None:
    """Two applications that are alike on one GPU and not on four: on their first four, both choose the same."""

    def slow_on_four(gpus: int, per_gpu_batch: int) -> float:
        return (0.05 + 0.01 * per_gpu_batch) * (1.0 if gpus == 1 else 5.0 + per_gpu_batch) + 0.02 * (gpus > 1)

    quick, slow = tuned(write_profile()), tuned(write_profile("slow", slow_on_four, under="other"))
    heard = {truth: reports(simulate(truth, {0.0: ONE, 95.0: FOUR})) for truth in (quick, slow)}
    until_four = [[report.batch for report in told if report.at <= 95.0] for told in heard.values()]
    assert until_four[0] == until_four[1]
    later = [{report.batch for report in told if report.at > 95.0} for told in heard.values()]
    assert later[0] != later[1]


def test_what_was_learned_outlives_a_restart(write_profile: Write) -> None:
    heard = reports(simulate(tuned(write_profile()), {0.0: ONE, 95.0: FOUR, 100.0: ONE}))
    again = next(report for report in heard if report.at == 100.0)
    assert again.attempt == 3
    assert again.batch != 8
    assert again.observations == ()  # nothing new


def test_a_configuration_is_reported_once(write_profile: Write) -> None:
    told = [seen for report in reports(simulate(tuned(write_profile()), {0.0: FOUR})) for seen in report.observations]
    places = [(seen.nodes, seen.gpus, seen.per_gpu_batch) for seen in told]
    assert len(places) == len(set(places)) > 1


@pytest.mark.parametrize(("start", "every_s"), [(0.0, 30.0), (7.0, 20.0)])
def test_a_job_tunes_at_multiples_of_the_period_and_at_the_ends_of_epochs(
    write_profile: Write, start: float, every_s: float
) -> None:
    truth = tuned(write_profile())
    messages = simulate(truth, {0.0: NOTHING, start: ONE}, retune_every_s=every_s)
    first, *heard = reports(messages)
    assert (first.at, first.batch) == (start, 8)
    assert heard[0].at == math.ceil((start + 1.0) / every_s) * every_s
    by_itself = [report for report in heard if report.at % every_s]
    assert [round(3 * report.progress, 6) for report in by_itself] == [1.0, 2.0]  # of three epochs


def test_tuning_that_changes_nothing_is_not_told(write_profile: Write) -> None:
    heard = reports(simulate(tuned(write_profile()), {0.0: ONE}))
    for before, report in pairwise(heard):
        assert report.batch != before.batch or round(3 * report.progress, 6) in (1.0, 2.0)
    assert len(heard) < 12


def test_without_a_period_a_job_tunes_only_when_something_else_changes(write_profile: Write) -> None:
    heard = reports(simulate(tuned(write_profile()), {0.0: ONE}, retune_every_s=0.0))
    assert [report.batch for report in heard][:1] == [8]
    assert len(heard) == 3  # one for each epoch


def test_rigid_jobs_never_tune(write_profile: Write) -> None:
    rigid = MeasuredTruth(load_profile(write_profile()), 1, 32)
    job = SimJob(JobSpec(id="a", gpus=1), 0.0, rigid)
    journal = MemoryJournal()
    run(Follow({0.0: ONE}), SimBackend([job], [Node("n0", 4)]), state=State(), journal=journal, cadence=Cadence())
    assert [report.batch for report in reports(journal.messages)] == [32, 32, 32]


def test_a_job_on_another_type_of_gpu_begins_anew(write_profile: Write) -> None:
    truth = tuned(write_profile())
    first = truth.pace(Setting(0.0, ONE, "t4"))
    learned = NOTHING_LEARNED.after(first)
    assert truth.pace(Setting(0.0, ONE, "t4", learned=learned)).batch != 8
    assert truth.pace(Setting(0.0, ONE, "v100", learned=learned)).batch == 8


def test_more_gpus_than_the_largest_batch_has_samples_cannot_run(write_profile: Write) -> None:
    truth = tuned(write_profile())
    learned = NOTHING_LEARNED.after(truth.pace(Setting(0.0, ONE, "t4")))
    many = Allocation.of({f"n{k:03d}": (0,) for k in range(129)})
    assert truth.pace(Setting(0.0, many, "t4", learned=learned)).speed == 0.0


# -- what is learned -------------------------------------------------------------------------------------------------


def seen(per_gpu_batch: int = 8, accumulation: int = 0, step_s: float = 1.0) -> Observation:
    return Observation("t4", 1, 2, per_gpu_batch, accumulation, step_s, 0.1)


def pace(noise_scale: float | None, observation: Observation | None) -> Pace:
    return Pace(1.0, 1.0, noise_scale=noise_scale, observation=observation)


def test_the_same_lesson_teaches_nothing() -> None:
    learned = Learned((seen(),), 5.0)
    assert learned.after(pace(5.0, seen())) is learned
    assert learned.after(pace(None, None)) is learned
    assert learned.after(pace(None, seen(accumulation=3, step_s=4.0))) is learned  # more of the same micro-steps


def test_a_new_noise_scale_replaces_the_old_one_and_keeps_what_was_measured() -> None:
    learned = Learned((seen(),), 5.0)
    after = learned.after(pace(6.0, seen()))
    assert (after.observations is learned.observations, after.noise_scale) == (True, 6.0)


def test_a_new_configuration_is_added_and_one_that_was_measured_anew_is_replaced() -> None:
    learned = Learned((seen(8), seen(16)), 5.0)
    assert learned.after(pace(5.0, seen(4))).observations == (seen(8), seen(16), seen(4))
    assert learned.after(pace(5.0, seen(8, step_s=2.0))).observations == (seen(8, step_s=2.0), seen(16))


# -- whole experiments -----------------------------------------------------------------------------------------------

GROWING = '''
from fairlead.core.types import Allocation, Plan


class Growing:
    """Every job on its own node, with a GPU more each minute."""

    adapts = "batch"

    def plan(self, view):
        gpus = min(4, 1 + int(view.now // 60))
        nodes = dict(zip(view.jobs, sorted(view.nodes)))
        return Plan({job: Allocation.of({node: range(gpus)}) for job, node in nodes.items()})
'''


@pytest.mark.parametrize("costs", ["none", "start=30,restart=30,rescale=2"])
@pytest.mark.parametrize("in_place", [False, True])
def test_an_experiment_with_tuned_jobs_is_the_same_every_time(
    tmp_path: Path, write_profile: Write, costs: str, in_place: bool
) -> None:
    write_profile()
    (tmp_path / "growing.py").write_text(GROWING)
    rows = "".join(f"toy-{k},{17 * k},toy,1,32\n" for k in range(4))
    (tmp_path / "jobs.csv").write_text("name,time,application,num_replicas,batch_size\n" + rows)
    experiment = Experiment(
        trace=str(tmp_path / "jobs.csv"),
        policy=f"{tmp_path / 'growing.py'}:Growing",
        cluster="4x4",
        cadence="60s",
        costs=costs,
        in_place=in_place,
    )
    journals = [MemoryJournal(), MemoryJournal()]
    results = [run_experiment(experiment, journal=journal) for journal in journals]
    assert journals[0].messages == journals[1].messages
    assert results[0].measured.summary.unfinished == 0
    assert len({report.batch for report in reports(journals[0].messages)}) > 3
