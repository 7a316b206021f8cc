"""Reproductions, without the command: what is read, under which rules a policy runs, and how figures compare."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.plugins import make_policy
from fairlead.sim import reproduction as paper
from fairlead.sim.experiment import Result, run_experiment
from fairlead.sim.reproduction import PolluxData, Published, Rerun, Rules, Variant

WriteProfile = Callable[..., Path]

HEADER = "name,time,application,num_replicas,batch_size\n"
JOBS = [("toy", 0, 1, 8), ("other", 10, 2, 32), ("toy", 70, 4, 64), ("other", 100, 1, 16), ("toy", 130, 2, 16)]


@pytest.fixture
def data(tmp_path: Path, write_profile: WriteProfile) -> Path:
    """Five jobs of two applications, as workloads 2 and 10."""
    for name in ("toy", "other"):
        write_profile(name, under="data/profiles")
    workloads = tmp_path / "data" / "workloads"
    workloads.mkdir()
    rows = [f"{name}-{place},{at},{name},{gpus},{batch}\n" for place, (name, at, gpus, batch) in enumerate(JOBS)]
    for number in (10, 2):
        (workloads / f"workload-{number}.csv").write_text(HEADER + "".join(rows))
    return tmp_path / "data"


def publish(data: Path, content: Any) -> None:
    (data / "published_jct.json").write_text(content if isinstance(content, str) else json.dumps(content))


# -- the data --------------------------------------------------------------------------------------------------------


def test_workloads_are_found_by_number_and_published_figures_by_policy_and_workload(data: Path) -> None:
    (data / "workloads" / "workload-odd.csv").write_text("not ours")
    publish(data, {"pollux": {"avgs": {"workload-2": 70.5}, "jcts": {"workload-2": {"toy-0": 70}}, "mean": 70.5}})
    found = paper.read_pollux_data(data)
    assert list(found.workloads) == [2, 10]
    assert found.published == {"pollux": {2: Published(70.5, {"toy-0": 70.0})}}
    assert found.choose([]) == found.workloads
    assert list(found.choose([10])) == [10]


def test_nothing_has_to_be_published(data: Path) -> None:
    assert paper.read_pollux_data(data).published == {}
    publish(data, {"tiresias": {"avgs": {"workload-2": 3}}})
    assert paper.read_pollux_data(data).published == {"tiresias": {2: Published(3.0)}}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        [],
        {"pollux": 3},
        {"pollux": {"jcts": {}}},
        {"pollux": {"avgs": {"workload-x": 3}}},
        *({"pollux": {"avgs": {"workload-2": value}}} for value in ("long", None, 0)),
        {"pollux": {"avgs": {"workload-2": 1}, "jcts": {"workload-2": [3]}}},
    ],
)
def test_published_figures_that_cannot_be_read_are_refused_with_their_file(data: Path, content: Any) -> None:
    publish(data, content)
    with pytest.raises(InvalidSpec, match=r"published_jct\.json cannot be used: .* expected \{policy: \{avgs"):
        paper.read_pollux_data(data)


def test_without_data_one_learns_where_it_comes_from_and_how_it_is_laid_out() -> None:
    with pytest.raises(InvalidSpec) as refused:
        paper.read_pollux_data(None)
    for word in ("--data", "petuum/adaptdl", "osdi21-artifact", "simulator/traces", "simulator/workloads", "profiles/"):
        assert word in str(refused.value)


def test_what_is_missing_is_named_with_what_is_there(data: Path) -> None:
    found = paper.read_pollux_data(data)
    with pytest.raises(InvalidSpec, match=r"has no workload-7\.csv; it has 'workload-2\.csv', 'workload-10\.csv'"):
        found.choose([2, 7])
    with pytest.raises(InvalidSpec, match=r"there is no directory .*nowhere"):
        paper.read_pollux_data(data / "nowhere")
    with pytest.raises(InvalidSpec, match=r"has no workloads/workload-N\.csv; it has 'other', 'toy'\."):
        paper.read_pollux_data(data / "profiles")
    (data / "profiles").rename(data / "traces")
    with pytest.raises(
        InvalidSpec, match=r"has no profiles/<application>/placements\.csv; it has 'traces', 'workloads'\."
    ):
        paper.read_pollux_data(data)


def test_a_missing_profile_is_refused_even_of_an_application_that_is_built_in(data: Path) -> None:
    workload = data / "workloads" / "workload-2.csv"
    workload.write_text(workload.read_text() + "cifar10-9,500,cifar10,1,128\n")
    found = paper.read_pollux_data(data)
    expected = r"workload-2\.csv has jobs of 'cifar10', which .* has no profile of; it has 'other', 'toy'"
    with pytest.raises(InvalidSpec, match=expected):
        found.choose([2])
    found.choose([10])


def test_profiles_are_the_datas_own_even_if_workloads_lie_elsewhere(data: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "artifact" / "simulator" / "workloads"
    elsewhere.parent.mkdir(parents=True)
    (data / "workloads").rename(elsewhere)
    (data / "workloads").symlink_to(elsewhere)
    found = paper.read_pollux_data(data)
    (tiresias,) = paper.pollux_variants(["tiresias"], paper.pollux_rules())
    assert run_experiment(paper.pollux_experiment(found, 2, tiresias)).measured.summary.unfinished == 0


# -- the rules -------------------------------------------------------------------------------------------------------


def test_the_papers_rules_are_the_default(data: Path) -> None:
    (pollux,) = paper.pollux_variants(["pollux"], paper.pollux_rules())
    experiment = paper.pollux_experiment(paper.read_pollux_data(data), 2, pollux)
    assert (experiment.cluster, experiment.cadence, experiment.costs) == ("16x4", "60s", "start=30,restart=30")
    assert (experiment.estimates, experiment.adapt, experiment.in_place) == ("none", "auto", False)
    assert experiment.retune_every_s == 60.0  # the artifact's jobs tune their batch when decisions are made


def test_tiresias_and_optimus_are_the_artifacts_and_all_others_are_taken_as_they_are() -> None:
    names = ["tiresias", "optimus", "tiresias:promote=8", "pollux:p=-2", "pilot:hurry=0", "fifo"]
    variants = paper.pollux_variants(names, paper.pollux_rules())
    assert [variant.label for variant in variants] == names
    assert variants[0].policy == "tiresias:thresholds=57600,within=entry,service=held,placing=spread"
    assert [variant.policy for variant in variants[1:]] == names[1:]
    assert [variant.against for variant in variants] == [
        "tiresias",
        "optimus",
        "tiresias",
        "pollux",
        "pollux",
        "pollux",
    ]
    assert [variant.same for variant in variants] == [True, True, True, False, False, False]


def test_only_policies_that_adapt_jobs_rescale_in_place() -> None:
    rules = paper.pollux_rules(restart_s=45.0, rescale_s=2.5)
    tiresias, optimus, pilot = (v.rules for v in paper.pollux_variants(["tiresias", "optimus", "pilot"], rules))
    assert (tiresias.costs, tiresias.rescale_s, tiresias.retune_every_s) == ("start=45,restart=45", None, 60.0)
    assert optimus == pilot == rules
    assert (rules.costs, rules.retune_every_s) == ("start=45,restart=45,rescale=2.5", 10.0)


@pytest.mark.parametrize(("cadence", "often_s"), [("60s", 60.0), ("2m", 120.0), ("event", 30.0), ("event+60s", 60.0)])
def test_jobs_tune_their_batch_as_often_as_decisions_are_made(cadence: str, often_s: float) -> None:
    assert paper.pollux_rules(cadence=cadence).retune_every_s == often_s


@pytest.mark.parametrize(
    "options", [{"cluster": "16"}, {"cadence": "never"}, {"restart_s": math.nan}, {"rescale_s": math.inf}]
)
def test_rules_that_cannot_be_meant_are_refused_before_anything_runs(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec):
        paper.pollux_rules(**options)


def test_levers_are_tried_alone_together_and_left_out_one_by_one() -> None:
    rules = paper.pollux_rules()
    variants = {v.label: v for v in paper.pollux_levers(rules, rescale_s=3.0)}
    assert len(variants) == 3 + 2 * len(paper.LEVERS)
    assert variants["pollux"].rules == variants["pilot, no lever"].rules == variants["pilot, + hurry"].rules == rules
    assert variants["pilot, no lever"].policy == "pilot:hurry=0,lore=false"
    assert variants["pilot, + hurry"].policy == "pilot:lore=false"
    assert variants["pilot, all levers"].policy == "pilot"
    all_but_events = variants["pilot, all but events"].rules
    assert (all_but_events.cadence, all_but_events.rescale_s) == ("60s", 3.0)
    assert variants["pilot, all levers"].rules == replace(all_but_events, cadence="event")
    assert {v.against for v in variants.values()} == {"pollux"}
    for variant in variants.values():
        make_policy(variant.policy)


# -- the comparison --------------------------------------------------------------------------------------------------


def rerun(data: PolluxData, name: str, rules: Rules | None = None) -> Rerun:
    (variant,) = paper.pollux_variants([name], rules or paper.pollux_rules())
    return paper.pollux_rerun(data, 2, variant, run_experiment(paper.pollux_experiment(data, 2, variant)))


@pytest.fixture
def published(data: Path) -> PolluxData:
    """Our own Tiresias as if published, but for one job that took 7 s longer; and a Pollux of twice its mean."""
    ours = rerun(paper.read_pollux_data(data), "tiresias").result.measured
    jcts = {job.job: job.jct_s or 0.0 for job in ours.jobs}
    jcts["toy-2"] += 7.0
    mean_s = ours.summary.jct_mean_s or 0.0
    content = {"tiresias": {"avgs": {"workload-2": mean_s}, "jcts": {"workload-2": jcts}}}
    publish(data, content | {"pollux": {"avgs": {"workload-2": 2.0 * mean_s}}})
    return paper.read_pollux_data(data)


def test_a_policy_is_compared_with_its_own_mean_and_job_by_job(published: PolluxData) -> None:
    row = rerun(published, "tiresias").to_dict()
    assert (row["workload"], row["policy"], row["published_policy"]) == (2, "tiresias", "tiresias")
    assert row["policy_spec"] == paper.AS_PUBLISHED["tiresias"]
    assert (row["published_jct_mean_s"], row["reduction_vs_published"]) == (row["jct_mean_s"], 0.0)
    assert (row["jobs_equal"], row["jct_max_difference_s"]) == (4, 7.0)
    assert row["setting_estimates"] == "none"
    assert row["cpu_s"] > 0.0
    json.dumps(row, allow_nan=False)


def test_others_are_compared_with_the_mean_of_pollux(published: PolluxData) -> None:
    fifo = rerun(published, "fifo")
    row = fifo.to_dict()
    assert row["published_policy"] == "pollux"
    assert row["reduction_vs_published"] == pytest.approx(1.0 - row["jct_mean_s"] / row["published_jct_mean_s"])
    assert fifo.ratio == pytest.approx(row["jct_mean_s"] / row["published_jct_mean_s"])
    assert (row["jobs_equal"], row["jct_max_difference_s"]) == (None, None)


@pytest.mark.parametrize("options", [{"jobs": 3}, {"cluster": "8x4"}])
def test_fewer_jobs_or_another_cluster_compare_with_nothing(published: PolluxData, options: dict[str, Any]) -> None:
    row = rerun(published, "tiresias", paper.pollux_rules(**options)).to_dict()
    assert row["published_jct_mean_s"] is row["reduction_vs_published"] is row["jobs_equal"] is None
    assert row["jct_mean_s"] > 0.0


def test_the_papers_cluster_by_another_name_is_the_papers(published: PolluxData) -> None:
    row = rerun(published, "tiresias", paper.pollux_rules(cluster="t4=8x4,t4=8x4")).to_dict()
    assert row["jobs_equal"] == 4


def test_a_mean_that_lacks_jobs_compares_with_nothing(published: PolluxData) -> None:
    whole = rerun(published, "tiresias")
    measured = whole.result.measured
    jobs = (replace(measured.jobs[0], jct_s=None), *measured.jobs[1:])
    cut = replace(measured, summary=replace(measured.summary, unfinished=1), jobs=jobs)
    part = replace(whole, result=replace(whole.result, measured=cut))
    assert (whole.reduction, part.reduction, part.ratio) == (0.0, None, None)
    assert (part.to_dict()["jobs_equal"], part.to_dict()["jct_max_difference_s"]) == (3, None)


def test_a_mean_over_workloads_is_known_only_if_it_is_known_of_each() -> None:
    assert paper.mean_of([1.0, 2.0]) == 1.5
    assert paper.mean_of([1.0, None]) is paper.mean_of([]) is None


def test_reruns_are_grouped_by_variant_in_order_of_appearance(published: PolluxData) -> None:
    result: Result = rerun(published, "tiresias").result
    one, two = (Variant(label, "fifo", paper.pollux_rules(), "pollux") for label in ("b", "a"))
    runs = [Rerun(workload, variant, result, None, None) for workload in (2, 10) for variant in (one, two)]
    assert paper.by_label(runs) == {"b": [runs[0], runs[2]], "a": [runs[1], runs[3]]}
