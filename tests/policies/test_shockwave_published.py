"""Shockwave's 120-job trace on 32 V100: the published figures are reached, and the elastic market beats them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.sim.reproduction_shockwave import Entrant, read_shockwave_data, rerun

DATA = Path(__file__).parents[3] / "shared" / "data" / "shockwave"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not DATA.is_dir(), reason="the authors' data are not ours to ship")]


@pytest.mark.parametrize("semantics", ["event", "rounds"])
@pytest.mark.parametrize("policy", ["shockwave", "shockwave-oracle", "shockwave:window=20"])
def test_the_published_figures_are_reached(policy: str, semantics: str) -> None:
    found = rerun(read_shockwave_data(DATA), Entrant(policy, policy, policy), semantics=semantics)
    figures = found.to_dict()
    assert figures["makespan_s"] <= 24_400
    assert figures["jct_mean_s"] <= 10_000
    assert figures["rho_worst"] <= 1.8
    assert figures["unfair_share"] <= 0.05


def test_the_elastic_market_is_better_in_every_figure() -> None:
    data = read_shockwave_data(DATA)
    rigid, elastic = (rerun(data, Entrant(name, name, name)).to_dict() for name in ("shockwave", "shockwave-elastic"))
    for figure in ("makespan_s", "jct_mean_s", "rho_worst"):
        assert elastic[figure] < rigid[figure]
    assert elastic["unfair_share"] <= rigid["unfair_share"]
