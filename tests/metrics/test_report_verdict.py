"""What the head of a report says: who won, and what an oracle reached, only as far as it is true."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html import unescape

import pytest

from fairlead.sim.metrics import measure
from fairlead.sim.report import Run
from fairlead.sim.report.page import render


def run(label: str, jct_s: float, *, seed: int = 0, unfinished: int = 0) -> Run:
    found = replace(measure([]).summary, jobs=10, completed=10 - unfinished, unfinished=unfinished, jct_mean_s=jct_s)
    return Run(label=label, oracle="oracle" in label, setting={"seed": str(seed)}, metrics=found)


def page_of(runs: Sequence[Run]) -> str:
    return unescape(re.sub(r"<[^>]+>", "", render(runs, "t")).replace("\u00a0", " "))


NO_BOUND = "On several GPU types, or with jobs of several GPUs, an oracle is no bound."


@pytest.mark.parametrize(
    ("oracle_s", "told"),
    [
        (3000.0, "With knowledge of the future it could be 50m 00s: srtf (oracle)."),
        (3600.0, "With knowledge of the future it is the same: srtf (oracle)."),
        (5400.0, f"Knowledge of the future does not help here: srtf (oracle) takes 1h 30m. {NO_BOUND}"),
    ],
)
def test_an_oracle_is_said_to_be_better_only_where_it_is(oracle_s: float, told: str) -> None:
    page = page_of([run("fifo", 3600.0), run("srtf (oracle)", oracle_s), run("tiresias", 7200.0)])
    assert "fifo finishes jobs fastest: 1h 00m on average, 50 % less than tiresias." in page
    assert told in page
    assert page.count("nowledge of the future") == 1


def test_seeds_that_cannot_tell_an_oracle_from_the_best_policy_are_said_to() -> None:
    runs = [run("fifo", 3600.0 + 10 * seed, seed=seed) for seed in range(3)]
    runs += [run("las", 9000.0 + 10 * seed, seed=seed) for seed in range(3)]
    apart = (-900.0, 900.0, -300.0)
    page = page_of([*runs, *(run("srtf (oracle)", 3600.0 + by, seed=seed) for seed, by in enumerate(apart))])
    assert "it is 58m 20s, which these 3 seeds cannot tell from it: srtf (oracle)." in page
    assert "could be" not in page


def test_an_oracle_that_left_more_jobs_unfinished_is_not_held_up() -> None:
    page = page_of([run("fifo", 3600.0), run("las", 4000.0), run("srtf (oracle)", 60.0, unfinished=3)])
    assert "knowledge of the future" not in page


def test_one_policy_beside_an_oracle_is_not_said_to_have_left_jobs_unfinished() -> None:
    page = page_of([run("fifo", 3600.0), run("srtf (oracle)", 1800.0)])
    assert "Under fifo a job took 1h 00m on average." in page
    assert "unfinished" not in page.split("could be")[0].split("Under fifo")[1]
    page = page_of([run("fifo", 3600.0), run("las", 60.0, unfinished=2), run("srtf (oracle)", 1800.0)])
    assert "fifo left the fewest jobs unfinished" in page


def test_that_oracles_are_not_marked_as_best_is_said_where_there_are_any() -> None:
    runs = [run("fifo", 3600.0), run("las", 4000.0), run("srtf (oracle)", 1800.0)]
    told = "srtf (oracle) is left out of that: an oracle knows what no scheduler can."
    assert told in page_of(runs)
    assert "left out of that" not in page_of(runs[:2])
