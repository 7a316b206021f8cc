"""Replays of Pollux's own experiment against the completion times that its artifact published, job by job.

16 nodes of four GPUs, 160 jobs over eight hours, measured step times. The artifact's Tiresias and Optimus are
deterministic, so every job must end in the very second in which it ended there. Each does: 160 of 160 on each workload
under both policies. What that takes, beyond the two policies themselves:

- A decision every 60 s, and 30 s without progress after every start, the first one included.
- Epochs last a whole number of seconds. One that is due up to half a second after a decision ends at the decision's
  second, but the decision does not know it yet: a job that ends so keeps its GPUs for another minute.
- Nodes in the order in which they were filled, which for these policies is by descending number of GPUs. Some of the
  measured times depend on it.
- Between measured placements, the tetrahedra of scipy's triangulation. On a grid of points it is not unique, and some
  of its tetrahedra overlap; the points must come in the artifact's order, and scipy must look for the tetrahedron.
- Optimus takes a job on one GPU to need two micro-steps, which is not always what the job does, and the steps that are
  left as those after the epoch under way.

Pollux itself is a genetic algorithm without a seed, so its numbers cannot be met one by one.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.sim.experiment import Experiment, run_experiment

DATA = Path(__file__).parents[3] / "shared" / "data" / "pollux"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"the data of the Pollux artifact is not at {DATA}")

POLICIES = {"tiresias": "tiresias:thresholds=57600,within=entry,service=held,placing=spread", "optimus": "optimus"}
WORKLOADS = ["workload-1", "workload-3", pytest.param("workload-6", marks=pytest.mark.slow)]


def jct_s(workload: str, policy: str) -> dict[str, float | None]:
    experiment = Experiment(
        trace=str(DATA / "workloads" / f"{workload}.csv"),
        policy=policy,
        cluster="16x4",
        cadence="60s",
        costs="start=30,restart=30",
    )
    return {job.job: job.jct_s for job in run_experiment(experiment).measured.jobs}


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("name", POLICIES)
def test_every_job_ends_in_the_second_in_which_it_ended_in_the_artifact(workload: str, name: str) -> None:
    published = json.loads((DATA / "published_jct.json").read_text())[name]["jcts"][workload]
    ours = jct_s(workload, POLICIES[name])
    assert len(ours) == 160
    assert {job: (ours[job], s) for job, s in published.items() if ours[job] != s} == {}


@pytest.mark.parametrize("option", ["within=entry", "service=held", "placing=spread"])
def test_each_option_that_makes_tiresias_the_artifacts_is_needed(option: str) -> None:
    published = json.loads((DATA / "published_jct.json").read_text())["tiresias"]["jcts"]["workload-1"]
    ours = jct_s("workload-1", POLICIES["tiresias"].replace(f",{option}", ""))
    assert sum(ours[job] == s for job, s in published.items()) < 160
