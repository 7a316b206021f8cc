"""`fairlead reproduce elasticity`: the arithmetic by hand, the forms of output, and small real runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import Any

import pytest
from click.testing import Result

from fairlead.cli.reproduce_elasticity import REAL, tell
from fairlead.goodput.throughput import ThroughputParams
from fairlead.sim.reproduction_elasticity import (
    IN_PLACE,
    OURS,
    RESTART,
    STARTS,
    STATIC,
    TRAININGS,
    Outcome,
    Way,
    simulate,
    summarise,
    ways,
)
from fairlead.train.reproduction import Emulated, Step, measured_run, run_real

Run = Callable[..., Result]
Figures = Callable[..., Any]

#: A step takes a second whatever the size, with 10 samples for each worker and 80 at most: 8 workers are worthwhile.
TOY = replace(
    TRAININGS["cifar10"],
    params=ThroughputParams(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0),
    max_local=10,
    max_global=80,
    total=10_000.0,
)


# -- simulated ---------------------------------------------------------------------------------------------------------


def test_a_static_job_takes_its_samples_over_its_throughput() -> None:
    static = simulate(TOY, Way(STATIC), 4)
    assert (static.start, static.target, static.growths, static.shrinks) == (4, 4, 0, 0)
    assert (static.jct_s, static.gpu_s) == pytest.approx((250.0, 1000.0))
    assert static.find_s is static.grow_s is static.shrink_s is None


def test_a_search_in_place_by_hand() -> None:
    # With 4 workers 11 s, the first step unmeasured: 440 samples. A pause of 2 s. With 8 11 s: 880. A pause. With 12
    # no more than with 8, believed after 101 s: 8,080. A pause, and 600 samples are left for 8 workers at 80 a second.
    scaled = simulate(TOY, Way(IN_PLACE, pause_s=2.0), 4)
    assert (scaled.start, scaled.target, scaled.growths, scaled.shrinks) == (4, 8, 2, 1)
    assert scaled.find_s == pytest.approx(11.0 + 2.0 + 11.0 + 2.0 + 101.0 + 2.0)
    assert scaled.jct_s == pytest.approx(129.0 + 600.0 / 80.0)
    # What is given up is held until the pause is over.
    assert scaled.gpu_s == pytest.approx(4 * 11.0 + 8 * 13.0 + 12 * 105.0 + 8 * 7.5)
    assert (scaled.grow_s, scaled.shrink_s) == (2.0, 2.0)


def test_a_search_by_checkpoint_and_restart_by_hand() -> None:
    scaled = simulate(TOY, Way(RESTART, restart_s=10.0), 4)
    assert (scaled.target, scaled.growths, scaled.shrinks) == (8, 2, 1)
    assert scaled.find_s == pytest.approx(11.0 + 10.0 + 11.0 + 10.0 + 101.0 + 10.0)
    assert scaled.jct_s == pytest.approx(153.0 + 7.5)
    assert scaled.gpu_s == pytest.approx(4 * 11.0 + 8 * 21.0 + 12 * 111.0 + 8 * 17.5)


def test_changes_are_against_static_from_the_same_start() -> None:
    def outcome(way: str, start: int, jct_s: float, gpu_s: float, find_s: float | None, grown: int) -> Outcome:
        pause_s = None if way == STATIC else float(start)
        return Outcome(
            training="toy", way=way, start=start, target=8, jct_s=jct_s, gpu_s=gpu_s, find_s=find_s,
            growths=grown, shrinks=0, grow_s=pause_s, shrink_s=None,
        )  # fmt: skip

    (summary,) = summarise(
        [
            outcome(STATIC, 4, 100.0, 400.0, None, 0),
            outcome(STATIC, 16, 50.0, 800.0, None, 0),
            outcome(IN_PLACE, 4, 60.0, 480.0, 10.0, 1),
            outcome(IN_PLACE, 16, 60.0, 480.0, 30.0, 3),
        ]
    )
    assert (summary.jct.mean, summary.jct.least, summary.jct.most) == pytest.approx((-0.1, -0.4, 0.2))
    assert (summary.gpu.mean, summary.gpu.least, summary.gpu.most) == pytest.approx((-0.1, -0.4, 0.2))
    assert (summary.find_s.mean, summary.find_s.most) == (20.0, 30.0)
    assert summary.grow_s == pytest.approx((4.0 + 3 * 16.0) / 4)
    assert summary.shrink_s is None


@pytest.mark.parametrize(("gpus", "images_per_s"), [(16, 2200.0), (32, 4000.0), (64, 5000.0)])
def test_the_curve_of_imagenet_is_that_of_the_slides(gpus: int, images_per_s: float) -> None:
    assert TRAININGS["imagenet"].throughput(gpus // 8, gpus) == pytest.approx(images_per_s, rel=0.01)


# -- the command -------------------------------------------------------------------------------------------------------


def test_json_has_every_run_its_changes_and_what_was_published(figures: Figures) -> None:
    told = figures("reproduce", "elasticity", "--simulated-only", "--starts", "8,60")
    assert [(run["training"], run["way"], run["start"]) for run in told["runs"]] == [
        (training, way, start)
        for training in ("cifar10", "imagenet")
        for way in (STATIC, IN_PLACE, OURS, RESTART)
        for start in (8, 60)
    ]
    assert {run["setting"] for run in told["runs"]} == {"simulated"}
    static, _, _, scaled = told["runs"][:4]
    assert (static["find_s"], static["jct_change"]) == (None, 0.0)
    assert scaled["jct_change"] < 0.0, "60 workers are too many for CIFAR-10"
    assert scaled["gpu_change"] < -0.8
    by_way = {(each["training"], each["way"]): each for each in told["summaries"]}
    assert by_way["cifar10", IN_PLACE]["find_s"]["mean"] < 0.2 * by_way["cifar10", RESTART]["find_s"]["mean"]
    assert told["published"]["cifar10"]["restart_s"] == 72.756
    assert told["published"]["imagenet"]["gpu_worst"] == 0.147


def test_csv_has_a_line_for_each_run(run: Run) -> None:
    result = run("reproduce", "elasticity", "--simulated-only", "--starts", "8", "-o", "csv")
    assert result.exit_code == 0, result.stderr
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["way"] for row in rows] == [STATIC, IN_PLACE, OURS, RESTART] * 2


def test_the_table_stands_next_to_the_published_figures(run: Run) -> None:
    result = run("reproduce", "elasticity", "--simulated-only", "--starts", "4,32")
    assert result.exit_code == 0, result.stderr
    text = result.stdout.replace("\u00a0", " ")
    assert "ResNet on CIFAR-10, simulated, 2 starting sizes" in text
    for figure in ("-8.2 %", "-16.0 %", "-85.1 %", "+14.7 %", "583.0 s", "6.813 s", "81.186 s"):
        assert figure in text
    assert "emulated" not in text


def test_by_default_it_begins_with_every_size_of_the_authors_script() -> None:
    assert list(STARTS) == list(range(4, 61, 4))


@pytest.mark.parametrize("starts", ["3", "4,61", "many", ""])
def test_sizes_out_of_bounds_are_refused(run: Run, starts: str) -> None:
    result = run("reproduce", "elasticity", "--simulated-only", "--starts", starts)
    assert result.exit_code == 2
    assert "starts" in result.stderr or "start of" in result.stderr


# -- real --------------------------------------------------------------------------------------------------------------


def test_what_is_measured_of_a_real_run_by_hand() -> None:
    # Steps of 1 s; then 3 s until the first with two workers, which take 0.5 s; then 0.7 s until the first with one.
    at = [(0.0, 1), (1.0, 1), (2.0, 1), (5.0, 2), (5.5, 2), (6.0, 2), (6.7, 1), (7.7, 1), (8.7, 1)]
    run = measured_run(IN_PLACE, [Step(t, n, k) for n, (t, k) in enumerate(at)], jct_s=10.0, gpu_s=12.0)
    assert (run.start, run.target, run.growths, run.shrinks) == (1, 1, 1, 1)
    assert run.grow_s == pytest.approx(2.5)
    assert run.shrink_s == 0.0, "the step was faster than usual"
    assert run.find_s == pytest.approx(6.7)
    assert (run.jct_s, run.gpu_s) == (10.0, 12.0)


#: Two workers take 0.055 s for a step, and one 0.1 s.
SMALL = Emulated(batch=10, steps=80, sample_s=0.01, worker_s=0.005, most=2, every_steps=5)


@pytest.mark.skipif(find_spec("torch") is None, reason="real runs need PyTorch")
def test_a_real_job_changes_its_size_in_place() -> None:
    run = run_real(SMALL, IN_PLACE, 2)
    # One size says nothing, so it tries one worker. What comes then depends on how busy this machine is.
    assert (run.start, run.target) == (2, 2 + run.growths - run.shrinks)
    assert run.shrinks >= 1
    assert run.shrink_s is not None
    assert run.find_s is not None
    assert 0.0 < run.find_s < run.jct_s < run.gpu_s


@pytest.mark.skipif(find_spec("torch") is None, reason="real runs need PyTorch")
def test_a_real_job_changes_its_size_by_checkpoint_and_restart() -> None:
    run = run_real(SMALL, RESTART, 1)
    assert (run.start, run.target, run.growths, run.shrinks) == (1, 2, 1, 0)
    assert run.grow_s is not None
    assert run.grow_s > 0.5, "processes do not start in less"
    assert run.find_s is not None
    assert run.grow_s < run.find_s < run.jct_s < run.gpu_s


def test_real_runs_stand_beside_the_simulated_ones(capsys: pytest.CaptureFixture[str]) -> None:
    def real(way: str, sizes: list[int]) -> Outcome:
        steps = [Step(float(second), second, workers) for second, workers in enumerate(sizes)]
        return Outcome(
            training=REAL, **asdict(measured_run(way, steps, jct_s=float(len(sizes)), gpu_s=float(sum(sizes))))
        )

    runs = [real(STATIC, [1, 1, 1, 1]), real(IN_PLACE, [1, 2, 2]), real(RESTART, [1, 2, 2, 2])]
    simulated = [simulate(training, way, 8) for training in TRAININGS.values() for way in ways(training)]
    tell(simulated, runs, "table")
    table = capsys.readouterr().out.replace("\u00a0", " ")
    assert "on an emulated accelerator" in table
    assert "+25.0 %" in table, "5 GPU-seconds instead of 4, in place"
    tell(simulated, runs, "json")
    told = json.loads(capsys.readouterr().out)
    assert [run["way"] for run in told["runs"] if run["setting"] == "real"] == [STATIC, IN_PLACE, RESTART]
    tell(simulated, runs, "csv")
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(simulated) + len(runs)
