"""AlloX as Shockwave's artifact has it, against the figures published with that."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.sim.reproduction_shockwave import entrants, read_shockwave_data, rerun

DATA = Path(__file__).parents[3] / "shared" / "data" / "shockwave"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"the data of Shockwave's artifact is not at {DATA}")


def test_allox_is_within_3_percent_of_the_published_figures() -> None:
    """Its matching has many optima, and the artifact's figures are those of one."""
    data = read_shockwave_data(DATA)
    (entrant,) = entrants(["allox"])
    row = rerun(data, entrant, gpus=32, semantics="rounds").to_dict()
    for figure in ("makespan_s", "jct_mean_s", "rho_worst", "unfair_share", "utilisation"):
        assert row[figure] == pytest.approx(row[f"published_{figure}"], rel=0.03), figure
