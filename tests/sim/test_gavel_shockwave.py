"""Gavel's policies on Shockwave's trace, under the rules of its artifact: what was published, job by job."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.sim.reproduction_shockwave import ENTRANTS, Entrant, ShockwaveData, read_shockwave_data, rerun

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "shockwave"
ECOS = Path(__file__).parent / "ecos_shares.py"
RULES = "heterogeneity=agnostic,unit=steps,round_s=120,mechanism=shockwave"
OBJECTIVES = {
    "max_min_fairness": "max-min",
    "min_total_duration": "makespan",
    "max_sum_throughput": "max-sum-throughput",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="Shockwave's data (../shared/data/shockwave) are absent"),
]


@pytest.fixture(scope="module")
def data() -> ShockwaveData:
    return read_shockwave_data(DATA)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_with_the_allocations_of_the_artifacts_solver_every_job_ends_when_it_was_published_to(
    data: ShockwaveData, name: str
) -> None:
    policy = f"{ECOS}:EcosGavel:objective={OBJECTIVES[name]},{RULES}"
    found = rerun(data, Entrant(name, policy, policy), semantics="rounds")
    assert found.differences_s is not None
    assert max(found.differences_s) < 1e-3


def test_finish_time_fairness_with_ecos_gives_what_the_artifact_gives_with_it(data: ShockwaveData) -> None:
    """Published with a commercial solver; measured with ECOS: makespan 32,329 s, mean completion 11,386 s."""
    policy = f"{ECOS}:EcosGavel:objective=finish-time-fairness,{RULES}"
    row = rerun(data, Entrant("finish_time_fairness", policy, policy), semantics="rounds").to_dict()
    assert row["makespan_s"] == pytest.approx(32_329, abs=1.0)
    assert row["jct_mean_s"] == pytest.approx(11_386, abs=1.0)


@pytest.mark.parametrize("name", [*OBJECTIVES, "finish_time_fairness"])
def test_with_our_own_solver_figures_are_within_the_spread_of_solvers(data: ShockwaveData, name: str) -> None:
    entrant = next(each for each in ENTRANTS if each.name == name)
    row = rerun(data, entrant, semantics="rounds").to_dict()
    makespan, jct = (0.03, 0.03) if name == "finish_time_fairness" else (0.02, 0.05)
    assert row["makespan_s"] == pytest.approx(row["published_makespan_s"], rel=makespan)
    assert row["jct_mean_s"] == pytest.approx(row["published_jct_mean_s"], rel=jct)
