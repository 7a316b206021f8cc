"""The report: what it says, that it stands alone, and that it stays small."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_worlds import alone, simulate

from fairlead.core.errors import BackendError, InvalidSpec
from fairlead.core.types import JobSpec, Node
from fairlead.sim.metrics import Measured, Metrics, measure
from fairlead.sim.report import Run, write_report
from fairlead.sim.report import series as chart_series
from fairlead.sim.report.page import render
from fairlead.sim.report.runs import cases_of
from fairlead.sim.report.wording import TABLE, change, duration, extra_row, listing, number, percent
from fairlead.sim.timeline import Segments, Timeline
from fairlead.sim.truth import FixedDuration
from fairlead.sim.world import SimJob

NODES = [Node(f"n{i}", 4) for i in range(3)]
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


def measured(*, names: str = "job", big: int = 0, length: float = 1.0) -> Measured:
    specs = [JobSpec(id=f"{names}-{i}", gpus=1 + i % 4) for i in range(20)]
    jobs = [
        SimJob(spec, 30.0 * i, FixedDuration(length * (50.0 + 37.0 * i), spec.gpus)) for i, spec in enumerate(specs)
    ]
    jobs += [SimJob(JobSpec(id=f"big-{i}", gpus=99), 900.0, FixedDuration(9.0, 99)) for i in range(big)]
    return measure(simulate(jobs, NODES), alone_s=alone(jobs))


def run_of(label: str, *, seed: int = 1, measured_run: Measured | None = None, **setting: str) -> Run:
    setting = {"policy": label, "trace": "toy", "seed": str(seed), **setting}
    return Run.of(measured_run or measured(), label=label, setting=setting, extra={"wall_s": 1.5})


class Checker(HTMLParser):
    """Fails on a tag that is not closed; collects what the page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()


def parsed(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    return checker


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_a_report_is_one_well_formed_page_that_loads_nothing(tmp_path: Path) -> None:
    write_report(
        tmp_path / "r.html", [run_of("fifo"), run_of("las", measured_run=measured(length=0.5))], "Two policies"
    )
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    checker = parsed(page)
    assert checker.loads == []
    assert "link" not in checker.tags
    assert "iframe" not in checker.tags
    assert set(re.findall(r"https?://[^\s\"'`]+", page)) <= {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "@import" not in page
    assert "url(" not in page
    assert "<figcaption>" in page
    assert 'aria-label="Metrics of every policy"' in page
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_every_name_is_escaped() -> None:
    evil = '<script>alert("x")</script>'
    runs = [run_of(evil, measured_run=measured(names=evil, big=1), cluster=evil), run_of("b&b", cluster=evil)]
    page = render([replace(run, extra={evil: 1.0}) for run in runs], evil)
    assert evil not in page
    assert page.count("<script") == 2
    assert parsed(page).tags.count("script") == 2
    assert data_of(page)["policies"] == [evil, "b&b"]


def test_the_headline_says_in_words_who_won_and_by_how_much() -> None:
    fast, slow = measured(length=0.5), measured()
    page = render([run_of("fifo", measured_run=slow), run_of("las", measured_run=fast)], "t")
    fast_s, slow_s = fast.summary.jct_mean_s, slow.summary.jct_mean_s
    assert fast_s
    assert slow_s
    assert (
        f"<b>las</b> finishes jobs fastest: {duration(fast_s)} on average, {percent(1 - fast_s / slow_s)} less" in page
    )
    assert "2 policies · 20 jobs · 12 GPUs" in page
    assert "Fifo and las tie" in render([run_of("fifo"), run_of("las")], "t")
    assert "Under <b>fifo</b> a job took" in render([run_of("fifo")], "t")
    nothing = Run(label="fifo", metrics=measure([]).summary)
    assert "No job completed." in render([nothing], "t")


def test_the_best_value_of_a_row_is_marked_and_equal_ones_are_not() -> None:
    page = render([run_of("fifo"), run_of("las", measured_run=measured(length=0.5))], "t")
    rows = dict(re.findall(r'<tr><th scope="row"[^>]*>([^<]+)</th>(.*?)</tr>', page))
    assert re.findall(r"<td( class=\"best\")?>", rows["mean"]) == ["", ' class="best"']
    assert "best" not in rows["submitted"]


def test_unfinished_jobs_are_shown_in_a_banner_and_their_policy_is_not_ranked() -> None:
    flattered = run_of("las", measured_run=measured(length=0.1, big=2))
    page = render([run_of("fifo"), flattered, run_of("srtf", measured_run=measured(length=0.9))], "t")
    assert 'role="alert"' in page
    assert "left 2 of 22 jobs unfinished" in page
    assert "big-0 and big-1" in page
    assert "<b>srtf</b> finishes jobs fastest" in page
    assert max(data_of(page)["cases"][0]["entries"][1]["jct"]["y"]) == pytest.approx(20 / 22, abs=1e-4)
    assert 'role="alert"' not in render([run_of("fifo")], "t")


def test_every_metric_has_a_row_in_the_table() -> None:
    rows = {row.field for _, rows in TABLE for row in rows}
    assert rows == set(Metrics.__dataclass_fields__) - {"unfinished_ids", "deadline_jobs"}


def test_seeds_are_averaged_and_loads_become_cases_and_a_sweep() -> None:
    runs = [
        run_of(label, seed=seed, load=str(load), measured_run=measured(length=load * seed * speed))
        for load in (1.0, 0.5)
        for seed in (1, 2)
        for label, speed in (("fifo", 1.0), ("las", 0.5))
    ]
    cases = cases_of(runs)
    assert [(case.name, case.load) for case in cases] == [("load 0.5", 0.5), ("load 1.0", 1.0)]
    assert [[len(entry.runs) for entry in case.entries] for case in cases] == [[2, 2], [2, 2]]
    page = render(runs, "t")
    sweep = data_of(page)["sweep"]
    assert [line["label"] for line in sweep] == ["fifo", "las"]
    assert sweep[0]["x"] == [0.5, 1.0]
    expected = np.mean([run.metrics.jct_mean_s for run in runs if run.label == "fifo" and run.setting["load"] == "1.0"])
    assert sweep[0]["y"][1] == pytest.approx(expected, rel=1e-5)
    assert '<select id="case">' in page
    assert "± " in page
    parsed(page)


def test_a_figure_that_is_no_number_is_shown_as_missing() -> None:
    page = render([replace(run_of("fifo"), extra={"wall_s": float("nan"), "solver_gap_share": None})], "t")
    assert page.count("<td>n/a</td>") == 2
    assert "nan" not in page.split("</table>")[0].split("<table>")[1]


def test_a_setting_that_each_policy_has_of_its_own_is_a_row_and_no_case() -> None:
    runs = [run_of("fifo", cadence="event"), run_of("gavel", cadence="360s")]
    assert len(cases_of(runs)) == 1
    assert '<th scope="row">cadence</th><td class="text">event</td><td class="text">360s</td>' in render(runs, "t")


def test_a_report_of_no_runs_or_into_no_folder_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="at least one run"):
        write_report(tmp_path / "r.html", [], "t")
    with pytest.raises(BackendError, match=r"cannot write .*r\.html: No such file"):
        write_report(tmp_path / "missing" / "r.html", [run_of("fifo")], "t")
    write_report(tmp_path / "r.html", [run_of("fifo")], "before")
    with pytest.raises(UnicodeEncodeError):
        write_report(tmp_path / "r.html", [run_of("fifo")], "after \ud800")
    assert "before" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def long_timeline(rows: int, gpus: int, stays: int) -> Timeline:
    random = np.random.default_rng(1)
    times = np.sort(random.uniform(0, 1e7, rows))
    values = random.integers(0, gpus, rows).astype(float)
    start_s = random.uniform(0, 1e7, stays)
    gpu = random.integers(0, gpus, stays)
    return Timeline(
        times_s=times,
        gpus_in_use=values,
        gpus=np.full(rows, float(gpus)),
        queued=random.integers(0, 5000, rows).astype(float),
        running=values,
        requested=values,
        stranded=values,
        healthy_nodes=values,
        price_per_hour=values,
        start_s=0.0,
        end_s=1e7,
        nodes=tuple(Node(f"node-{i}", 8) for i in range(gpus // 8)),
        jobs=tuple(f"application-{i:06}" for i in range(82_247)),
        segments=Segments(gpu // 8, gpu % 8, start_s, start_s + 9000.0, random.integers(0, 82_247, stays)),
    )


@pytest.mark.parametrize("cases", [1, 12])
def test_a_page_stays_below_two_megabytes_whatever_it_compares(cases: int) -> None:
    outcome = measured().jobs[0]
    random = np.random.default_rng(2)
    jobs = [replace(outcome, jct_s=float(x), rho=float(x) / 999) for x in random.lognormal(8, 2, 20_000)]
    run = replace(run_of("p"), jobs=jobs, timeline=long_timeline(100_000, 2480, 200_000))
    runs = [
        replace(run, label=f"policy {i}", setting={"load": str(load), "seed": "1"})
        for load in range(cases)
        for i in range(5)
    ]
    page = render(runs, "large")
    assert len(page.encode()) < 2_000_000
    gantt = data_of(page)["cases"][0]["entries"][0]["gantt"]
    assert len(gantt["nodes"]) == 16
    assert gantt["all_nodes"] == 310
    assert 0 < len(gantt["bars"]) <= 4000
    assert not gantt["whole"]


def test_thinning_a_step_series_keeps_its_extremes() -> None:
    timeline = long_timeline(50_000, 2480, 10)
    values = timeline.queued.copy()
    values[31_234], values[41_234] = 9999.0, -1.0
    thin = chart_series.steps(timeline, values, points=800)
    assert len(thin["v"]) <= 801
    assert len(thin["t"]) == len(thin["v"]) + 1
    assert max(thin["v"]) == 9999.0
    assert min(thin["v"]) == -1.0
    assert thin["t"] == sorted(thin["t"])


def test_thinning_a_distribution_keeps_its_ends() -> None:
    values = np.arange(1.0, 100_001.0)
    thin = chart_series.distribution(values, of=200_000, points=400)
    assert thin is not None
    assert (thin["x"][0], thin["x"][-1], thin["y"][-1], len(thin["x"])) == (1, 100_000, 0.5, 400)
    assert chart_series.distribution(np.array([]), of=3, points=400) is None


def test_gpus_that_one_job_holds_side_by_side_are_one_bar() -> None:
    result = measured()
    run = run_of("fifo", measured_run=result)
    gantt = chart_series.gantt(run, result.timeline, chart_series.Budget())
    assert gantt is not None
    assert gantt["whole"]
    assert sum(bar[1] for bar in gantt["bars"]) == len(result.timeline.segments)
    assert len(gantt["bars"]) < len(result.timeline.segments)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.44, "0.4 s"),
        (42, "42 s"),
        (119.6, "120 s"),
        (725, "12m 05s"),
        (3599.7, "1h 00m"),
        (4980, "1h 23m"),
        (172799, "48h 00m"),
        (273600, "3d 4h"),
        (-60, "-60 s"),
    ],
)
def test_durations_read_like_words(seconds: float, words: str) -> None:
    assert duration(seconds).replace("\u00a0", " ") == words


def test_numbers_carry_no_false_precision() -> None:
    assert [number(x) for x in (0, 3, 0.1234, 12.345, 12345.6, 0.00012)] == [
        "0",
        "3",
        "0.123",
        "12.3",
        "12,346",
        "0.0001",
    ]
    assert [percent(x).replace("\u00a0", " ") for x in (0, 0.012, 0.853, 1)] == ["0 %", "1.2 %", "85 %", "100 %"]
    assert [change(x).replace("\u00a0", " ") for x in (0.2, -0.031, -0.0001)] == ["+20 %", "-3.1 %", "0 %"]
    assert listing(["a"]) == "a"
    assert listing(["a", "b", "c"]) == "a, b and c"
    assert listing(["a", "b", "c"], 2) == "a, b and 1 other"
    assert (extra_row("solver_ms").label, extra_row("solve_s").label) == ("solver, ms", "solve")
