"""Shockwave's trace under the rules of its artifact: completion times are those published with it, job by job.

The data is not ours to ship; without it in ../shared these tests are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead.sim.reproduction_shockwave import (
    ENTRANTS,
    Entrant,
    ShockwaveData,
    ShockwaveRun,
    alone_s,
    read_shockwave_data,
    rerun,
)

DATA = Path(__file__).parents[3] / "shared" / "data" / "shockwave"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"Shockwave's data is not in {DATA}")

#: What the artifact's own code gives, to the digits that it prints: makespan, mean JCT, worst rho, unfair %, busy.
RERUN_BY_ITS_CODE = {
    "gandiva_fair": (32367, 12574, 1.854, 51.67, 0.610),
    "isolated": (33208, 11268, 2.947, 25.00, 0.595),
    "fifo": (33308, 10816, 5.769, 34.17, 0.593),
}


@pytest.fixture(scope="module")
def data() -> ShockwaveData:
    return read_shockwave_data(DATA)


def entrant(name: str) -> Entrant:
    return next(each for each in ENTRANTS if each.name == name)


def in_rounds(data: ShockwaveData, name: str) -> ShockwaveRun:
    return rerun(data, entrant(name), semantics="rounds")


def figures(row: dict[str, Any]) -> tuple[float, ...]:
    return (
        round(row["makespan_s"]),
        round(row["jct_mean_s"]),
        round(row["rho_worst"], 3),
        round(100 * row["unfair_share"], 2),
        round(row["utilisation"], 3),
    )


def test_every_job_of_gandiva_fair_ends_when_the_artifact_says_it_does(data: ShockwaveData) -> None:
    found, published = in_rounds(data, "gandiva_fair"), data.published["gandiva_fair"]
    assert list(found.jct_s.values()) == published["jct_s"]
    assert list(found.rho.values()) == published["rho"]
    assert found.makespan_s == published["makespan_s"]
    assert found.differences_s == [0.0] * 120
    assert found.to_dict()["utilisation"] == pytest.approx(published["utilisation"], abs=5e-6)  # rounded for each GPU


@pytest.mark.parametrize("name", RERUN_BY_ITS_CODE)
def test_figures_are_those_of_the_artifacts_code(data: ShockwaveData, name: str) -> None:
    assert figures(in_rounds(data, name).to_dict()) == RERUN_BY_ITS_CODE[name]


def test_run_times_alone_are_those_that_published_fairness_divides_by(data: ShockwaveData) -> None:
    """Of every policy: rho is a completion time over the profiled run time, times 120 jobs on 32 GPUs."""
    for published in data.published.values():
        for job, jct_s, rho in zip(data.trace.jobs, published["jct_s"], published["rho"], strict=True):
            assert round(jct_s / (alone_s(data, job) * 120 / 32), 5) == rho


@pytest.mark.slow
def test_the_same_run_twice_is_the_same(data: ShockwaveData) -> None:
    assert in_rounds(data, "isolated").jct_s == in_rounds(data, "isolated").jct_s


@pytest.mark.slow
@pytest.mark.parametrize("name", RERUN_BY_ITS_CODE)
def test_event_by_event_all_jobs_end_and_gpus_are_no_less_busy(data: ShockwaveData, name: str) -> None:
    """GPUs are free when a job ends, and no job waits for a renewal of shares: the last one ends no later."""
    found = rerun(data, entrant(name), semantics="event").to_dict()
    makespan_s, _, _, _, busy = RERUN_BY_ITS_CODE[name]
    assert (found["unfinished"], found["jobs"]) == (0, 120)
    assert found["makespan_s"] <= makespan_s
    assert found["utilisation"] >= busy


def test_another_number_of_gpus_has_no_published_figures(data: ShockwaveData) -> None:
    row = rerun(data, entrant("gandiva_fair"), gpus=64, semantics="rounds").to_dict()
    assert row["published_makespan_s"] is None
    assert row["unfinished"] == 0
