"""Which truth a trace's job gets, where its data is found, and what is said when there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.sim.applications import APPLICATIONS, Adaptive, Fixed, GoodputTruth
from fairlead.sim.casting import Library, truth_of
from fairlead.sim.measured import MeasuredTruth
from fairlead.sim.regimes import RegimeTruth
from fairlead.sim.tables import TableTruth
from fairlead.sim.traces import read_trace
from fairlead.sim.traces.record import InvalidTrace, TraceJob
from fairlead.sim.truth import FixedDuration

Write = Callable[[str, object], Path]


def job(**fields: object) -> TraceJob:
    defaults = {"id": "j7", "submit_s": 0.0, "gpus": 1, "gpus_min": 1, "gpus_max": 1}
    return TraceJob(**{**defaults, **fields})  # type: ignore[arg-type]


def test_a_duration_is_taken_at_its_word() -> None:
    truth = truth_of(job(duration_s=60.0, gpus=4, gpus_max=4, model="small-cnn"), Library())
    assert truth == FixedDuration(60.0, 4)


def test_steps_of_a_table_model_are_counted_in_steps(table_file: Path) -> None:
    truth = truth_of(job(model="A3C", steps=700.0), Library.beside(table_file.with_name("x.trace")))
    assert isinstance(truth, TableTruth)
    assert truth.remaining_s(0.0) == pytest.approx(100.0)


@pytest.mark.usefixtures("schedules_file")
def test_with_schedules_beside_it_a_trace_is_counted_in_epochs(table_file: Path) -> None:
    library = Library.beside(table_file.with_name("x.trace"))
    static = truth_of(job(model="ResNet-18", batch=16, steps=3125.0 * 10), library)
    gns = truth_of(job(model="ResNet-18", batch=16, steps=3125.0 * 10, mode="gns"), library)
    assert isinstance(static, RegimeTruth)
    assert static.schedule == ((0, 16),)
    assert isinstance(gns, RegimeTruth)
    assert gns.schedule == ((0, 16), (3, 32), (7, 256))
    assert static.total == gns.total == 10.0


@pytest.mark.usefixtures("schedules_file")
def test_a_model_without_a_batch_is_counted_in_steps_everywhere(table_file: Path) -> None:
    library = Library.beside(table_file.with_name("x.trace"))
    assert isinstance(truth_of(job(model="A3C", steps=700.0), library), TableTruth)


def test_accordion_needs_no_schedules(table_file: Path) -> None:
    library = Library.beside(table_file.with_name("x.trace"))
    truth = truth_of(job(model="ResNet-18", batch=16, steps=3125.0 * 20, mode="accordion"), library)
    assert isinstance(truth, RegimeTruth)
    assert truth.schedule == ((0, 16), (10, 256))


@pytest.mark.usefixtures("profile_dir")
@pytest.mark.parametrize("trace", ["workload.csv", "workloads/workload.csv"])
def test_a_profiled_application_is_measured(tmp_path: Path, trace: str) -> None:
    library = Library.beside(tmp_path / trace)
    truth = truth_of(job(model="toy", batch=16, gpus=2, gpus_max=2), library)
    assert isinstance(truth, MeasuredTruth)
    assert (truth.gpus, truth.batch, truth.profile.name) == (2, 16, "toy")
    assert truth is truth_of(job(id="j8", model="toy", batch=16, gpus=2, gpus_max=2), library)


def test_a_built_in_application_is_adaptive_unless_its_user_chose_a_batch() -> None:
    free = truth_of(job(model="small-cnn", gpus=2, gpus_max=8, gpu_types=("a100",)), Library())
    fixed = truth_of(job(model="small-cnn", batch=512), Library())
    assert free == GoodputTruth(APPLICATIONS["small-cnn"], Adaptive(), gpus=2, gpu_type="a100")
    assert fixed == GoodputTruth(APPLICATIONS["small-cnn"], Fixed(512))


def test_a_job_counts_on_the_fastest_type_of_the_cluster_unless_it_says_which(table_file: Path) -> None:
    library = Library(throughputs=table_file)
    types = ("k80", "K80", "gpu")
    table_job = job(model="ResNet-18", batch=16, steps=600.0)
    assert truth_of(table_job, library).remaining_s(0.0) == pytest.approx(20.0)
    assert truth_of(table_job, library, types).remaining_s(0.0) == pytest.approx(100.0)
    free, picky = job(model="small-cnn"), job(model="small-cnn", gpu_types=("t4",))
    assert truth_of(free, library, ("v100", "a100")) == GoodputTruth(APPLICATIONS["small-cnn"], gpu_type="a100")
    assert truth_of(picky, library, ("v100", "a100")) == GoodputTruth(APPLICATIONS["small-cnn"], gpu_type="t4")


def test_of_shockwaves_table_only_its_own_measurements_are_used(table_file: Path) -> None:
    table_file.rename(table_file.with_name("tacc_throughputs.json"))
    library = Library.beside(table_file.with_name("x.trace"))
    assert library.table is not None
    assert library.table.gpu_types == ("v100",)


def test_a_profile_takes_precedence_over_a_built_in_application(profile_dir: Path) -> None:
    profile_dir.rename(profile_dir.with_name("small-cnn"))
    library = Library.beside("elsewhere/trace.csv", profiles=profile_dir.parent)
    assert isinstance(truth_of(job(model="small-cnn", batch=8), library), MeasuredTruth)


def test_named_profiles_replace_what_lies_beside_the_trace(
    table_file: Path, profile_dir: Path, write: Write, schedules_file: Path
) -> None:
    other = write("other/tacc_throughputs.json", {"x": {"('A3C', 1)": {"null": 1.0}}})
    for named in (other, other.parent):
        library = Library.beside(table_file.with_name("x.trace"), profiles=named)
        assert (library.throughputs, library.schedules, library.profiles) == (other, None, None)
    library = Library.beside("x.trace", profiles=str(table_file))
    assert (library.throughputs, library.schedules) == (table_file, schedules_file)
    library = Library.beside(table_file.with_name("x.trace"), profiles=profile_dir.parent)
    assert (library.throughputs, library.profiles) == (None, profile_dir.parent)


def test_files_are_not_read_before_a_job_needs_them(write: Write, tmp_path: Path) -> None:
    write("simulation_throughputs.json", "this is no JSON")
    write("batch_schedules.json", "nor is this")
    write("profiles/toy/placements.csv", "and this is no table")
    library = Library.beside(tmp_path / "x.trace")
    assert truth_of(job(duration_s=1.0), library) == FixedDuration(1.0, 1)
    assert isinstance(truth_of(job(model="recommender"), library), GoodputTruth)
    with pytest.raises(InvalidTrace, match=r"simulation_throughputs\.json:1: is not JSON"):
        truth_of(job(model="A3C", steps=1.0), library)
    with pytest.raises(InvalidTrace, match=r"placements\.csv:1: has no column"):
        truth_of(job(model="toy", batch=8), library)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "job j7: has neither a duration nor a model"),
        (
            {"model": "vit"},
            r"job j7: nothing tells how fast 'vit' trains.*no profiles were found.*'small-cnn'.*--profiles",
        ),
        ({"model": "A3C", "steps": 5.0}, r"job j7: has 5 steps of 'A3C', but no throughput table.*--profiles"),
        ({"model": "small-cnn", "batch": 99999}, "job j7: batch is 99999; application small-cnn takes 1 to 4096"),
    ],
)
def test_without_data_the_job_what_is_missing_and_the_remedy_are_named(fields: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidSpec, match=says):
        truth_of(job(**fields), Library())


def test_a_job_the_table_cannot_run_is_named(table_file: Path) -> None:
    library = Library(throughputs=table_file)
    with pytest.raises(InvalidSpec, match=r"job j7: .*no speed for 'VGG' on 1 GPUs"):
        truth_of(job(model="VGG", steps=5.0), library)
    with pytest.raises(InvalidSpec, match=r"job j7: has mode gns, but no batch_schedules\.json"):
        truth_of(job(model="ResNet-18", batch=16, steps=5.0, mode="gns"), library)
    with pytest.raises(InvalidSpec, match="job j7: has mode accordion but no batch size"):
        truth_of(job(model="A3C", steps=5.0, mode="accordion"), library)


def test_a_job_its_profile_cannot_run_is_named(profile_dir: Path) -> None:
    library = Library(profiles=profile_dir.parent)
    with pytest.raises(InvalidSpec, match="job j7: has no batch size, which the profile of toy needs"):
        truth_of(job(model="toy"), library)
    with pytest.raises(InvalidSpec, match="job j7: batch is 4; application toy was measured from 8 to 32"):
        truth_of(job(model="toy", batch=4), library)
    with pytest.raises(InvalidSpec, match=r"neither among those profiled in .*profiles \('toy'\) nor built in"):
        truth_of(job(model="vit"), library)


def test_named_profiles_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="nowhere: there is no such file or directory"):
        Library.beside("x.trace", profiles=tmp_path / "nowhere")
    with pytest.raises(InvalidSpec, match=r"holds no profiles; expected <application>/placements\.csv or tacc_"):
        Library.beside("x.trace", profiles=tmp_path)


@pytest.mark.parametrize(
    ("trace", "kind"),
    [
        ("gavel/max_min_fairness.trace", TableTruth),
        ("gavel/minimize_makespan.trace", TableTruth),
        ("shockwave/jobs-120.trace", RegimeTruth),
        ("pollux/workloads/workload-1.csv", MeasuredTruth),
        ("pollux/workloads/workload-6.csv", MeasuredTruth),
        ("philly/philly.csv", FixedDuration),
    ],
)
def test_every_job_of_the_public_traces_finds_its_truth(shared_data: Path, trace: str, kind: type) -> None:
    path = shared_data / trace
    library = Library.beside(path)
    for entry in read_trace(path).jobs[:500]:
        truth = truth_of(entry, library)
        assert isinstance(truth, kind)
        assert 0.0 <= truth.remaining_s(0.0) < 60 * 24 * 3600 * 10
