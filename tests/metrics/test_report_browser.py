"""The report in a real browser, where there is one: it draws, fits, answers the pointer and does not complain."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from headless import Page, find_browser
from small_worlds import InOrder, Restless, alone, simulate

from fairlead.core.loop import Cadence, Policy
from fairlead.core.types import JobSpec, Node
from fairlead.sim.costs import DEFAULT
from fairlead.sim.metrics import measure
from fairlead.sim.report import Run, write_report
from fairlead.sim.truth import FixedDuration
from fairlead.sim.world import SimJob

BROWSER = find_browser()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium on PATH; install it to test the report in a browser"),
]

NODES = [Node(f"a-node-with-a-rather-long-name-{i}", 8) for i in range(4)]
LONG = "a-policy:with=many,options=and,a=very,long=name"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    policies: dict[str, tuple[Policy, Cadence]] = {
        "fifo": (InOrder(), Cadence()),
        LONG: (Restless(), Cadence(period_s=5000.0, on_events=False)),
        "<script>alert(1)</script>": (InOrder(), Cadence(period_s=600.0, on_events=False)),
    }
    runs = []
    for load in (0.5, 1.0):
        specs = [JobSpec(id=f"job-{i}", name="<img src=x>", gpus=1 + i % 5) for i in range(80)]
        jobs = [
            SimJob(s, 400.0 * i / load, FixedDuration(900.0 + 97 * i, s.gpus), DEFAULT) for i, s in enumerate(specs)
        ]
        jobs.append(SimJob(JobSpec(id="stuck" * 30, gpus=99), 0.0 if load < 1 else 9e4, FixedDuration(1.0, 99)))
        for label, (policy, cadence) in policies.items():
            result = measure(simulate(jobs, NODES, policy=policy, cadence=cadence), alone_s=alone(jobs))
            setting = {"trace": "x" * 90, "load": str(load), "cadence": str(cadence)}
            runs.append(Run.of(result, label=label, setting=setting, extra={"decision_ms_mean": 1.25}))
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, runs, "A title that is " + "long, " * 20)
    return path


@pytest.fixture(params=[(1280, False), (1280, True), (390, False), (390, True)], ids=lambda p: f"{p[0]}-{p[1]}")
def page(request: pytest.FixtureRequest, report: Path, tmp_path: Path) -> Iterator[Page]:
    assert BROWSER is not None
    width, dark = request.param
    with Page(BROWSER, tmp_path / "profile", width=width, dark=dark) as page:
        page.open(report)
        assert page.evaluate("innerWidth") == width  # a phone zooms out if something is wider than it is
        yield page


def test_a_report_draws_fits_and_answers_without_a_complaint(page: Page) -> None:
    width = page.evaluate("innerWidth")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for chart in ("jct", "rho", "queue", "gpus", "gantt", "sweep"):
        assert page.evaluate(f"document.querySelectorAll('#{chart} .chart > svg').length") == 1, chart
    assert page.evaluate("document.querySelectorAll('#jct .curve').length") == 3
    assert page.evaluate("document.querySelectorAll('#gantt .bars-g rect').length") > 50
    assert page.evaluate("document.querySelectorAll('[data-case]:not([hidden])').length") == 1

    # The pointer over a chart and over a bar tells what is there.
    for target in ("#jct .chart svg rect", "#gantt .bars-g rect"):
        page.evaluate(f"document.querySelector('{target}').scrollIntoView({{block: 'center'}})")
        page.settle()
        box = page.evaluate(f"JSON.parse(JSON.stringify(document.querySelector('{target}').getBoundingClientRect()))")
        page.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert page.evaluate("document.getElementById('tip').hidden") is False, target
    assert "job-" in page.evaluate("document.getElementById('tip').textContent")

    # Legends, tabs and the choice of a setting redraw everything.
    page.evaluate("document.querySelector('#jct .legend button').click()")
    assert page.evaluate("document.querySelectorAll('#jct .curve').length") == 2
    page.evaluate("document.querySelectorAll('#gantt .tabs button')[1].click()")
    assert page.evaluate("document.querySelector('#gantt [aria-selected=true]').textContent") == LONG
    page.evaluate("const s = document.getElementById('case'); s.value = 0; s.dispatchEvent(new Event('change'))")
    assert page.evaluate("document.querySelector('[data-case]:not([hidden])').dataset.case") == "0"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.complaints == []


#: Let a page keep what it would save, so that a test can look at it.
KEEP = """
window.saved = {};
URL.createObjectURL = (blob) => { blob.text().then((text) => { window.last = text; }); return "blob:kept"; };
HTMLAnchorElement.prototype.click = function () { window.name_of_last = this.download; };
"""


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen policies, two loads, three seeds."""
    runs = []
    for load, seed, number in itertools.product((0.5, 1.0), range(3), range(16)):
        specs = [JobSpec(id=f"job-{i}", gpus=1 + (i + seed) % 4) for i in range(8)]
        jobs = [
            SimJob(s, 100.0 * i / load, FixedDuration(500.0 + 90 * i + 20 * number, s.gpus))
            for i, s in enumerate(specs)
        ]
        result = measure(simulate(jobs, NODES[:1]), alone_s=alone(jobs))
        runs.append(Run.of(result, label=f"policy-{number}", setting={"load": str(load), "seed": str(seed)}))
    path = tmp_path_factory.mktemp("seeded") / "report.html"
    write_report(path, runs, "Sixteen", baseline="policy-0")
    return path


def test_sixteen_lines_differ_and_figures_can_be_saved(seeded: Path, tmp_path: Path) -> None:
    assert BROWSER is not None
    with Page(BROWSER, tmp_path / "profile", width=1280) as page:
        page.open(seeded)
        looks = page.evaluate(
            "JSON.stringify([...document.querySelectorAll('#jct .curve')].map((c) => "
            "getComputedStyle(c).stroke + ' ' + getComputedStyle(c).strokeDasharray))"
        )
        assert len(set(json.loads(looks))) == 16
        # Without colour, as in a grey print, dash and marker tell sixteen lines apart.
        for chart in ("jct", "queue", "sweep"):
            assert len(set(json.loads(page.evaluate(GREY_LOOKS % chart)))) == 16, chart
            assert page.evaluate(f"document.querySelectorAll('#{chart} .chart > svg > .marker').length") >= 32, chart
        for chart in ("jct", "rho", "queue", "gpus", "sweep"):
            assert page.evaluate(f"document.querySelectorAll('#{chart} .y-title').length") >= 1, chart
        assert page.evaluate("document.querySelectorAll('#sweep .error').length") == 32
        assert page.evaluate("document.querySelectorAll('.whisker').length") == 16
        page.evaluate(KEEP)
        for chart, header in (
            ("mean", "policy,load,jct_mean_s,ci95_low,ci95_high,n,unfinished"),
            ("jct", "policy,completion_time_s,share_of_jobs"),
            ("rho", "policy,rho,share_of_jobs"),
            ("queue", "policy,time_s,jobs_waiting"),
            ("gpus", "policy,time_s,gpus_in_use,gpus"),
            ("sweep", "policy,load,jct_mean_s,ci95_low,ci95_high,unfinished"),
            ("gantt", "policy,job,node,first_gpu,gpus,from_s,to_s"),
        ):
            lines = saved(page, f"#{chart} .save button:last-child", f"{chart}.csv").splitlines()
            assert lines[0] == header
            assert len(lines) > 5
            drawing = ElementTree.fromstring(saved(page, f"#{chart} .save button:first-child", f"{chart}.svg"))
            assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
            shown = ElementTree.tostring(drawing, encoding="unicode")
            assert "var(--" not in shown
            assert "class=" not in shown
            words = " ".join(text.text or "" for text in drawing.iter("{http://www.w3.org/2000/svg}text"))
            for told in SAVED_WORDS[chart]:
                assert told in words, chart
        assert page.complaints == []


#: Of a chart's lines, what is left of their look without colour: the dash of a line, and the outline of a marker.
GREY_LOOKS = """JSON.stringify((() => {
  const box = document.querySelector("#%s .chart");
  return [...box.querySelectorAll(".legend button")].map((button) => {
    const [line, marker] = button.querySelectorAll("line, path");
    return getComputedStyle(line).strokeDasharray + " " + marker.getAttribute("d").replace(/-?[0-9.]+/g, "#");
  });
})())"""

#: What a saved figure says by itself: its setting, what its lines and intervals are, and which policy it is of.
SAVED_WORDS = {
    "mean": ("Mean completion time at load 1.0", "95 % confidence intervals of the mean over seeds", "policy-15"),
    "jct": ("How long jobs took, load 1.0", "Share of jobs completed within a time", "policy-15"),
    "rho": ("load 1.0", "right of 1 is worse than fair"),
    "queue": ("Jobs waiting, load 1.0", "Submitted jobs that hold no GPU"),
    "gpus": ("load 1.0", "the dashed line above is the size of the cluster"),
    "sweep": ("Mean completion time as load grows", "upright lines are 95", "policy-15"),
    "gantt": ("Who held which GPU: policy-0, load 1.0", "every job keeps its colour."),
}


def test_tables_are_saved_as_numbers_in_one_rectangle_each(seeded: Path, tmp_path: Path) -> None:
    assert BROWSER is not None
    with Page(BROWSER, tmp_path / "profile", width=1280) as page:
        page.open(seeded)
        page.evaluate(KEEP)
        metrics = rows_of(saved(page, "section.card .save button:first-child", "metrics.csv"))
        differences = rows_of(saved(page, "section.card .save button:last-child", "differences.csv"))
        assert page.complaints == []
    assert list(metrics[0]) == ["policy", "load", "figure", "unit", "mean", "ci95_low", "ci95_high", "n"]
    assert len(metrics) == 2 * 16 * len({row["figure"] for row in metrics})
    assert {row["load"] for row in metrics} == {"0.5", "1.0"}
    found = next(row for row in metrics if (row["policy"], row["figure"]) == ("policy-3", "jct_mean_s"))
    low, mean, high = (float(found[name]) for name in ("ci95_low", "mean", "ci95_high"))
    assert low < mean < high
    assert (found["unit"], found["n"], 2 * mean) == ("s", "3", pytest.approx(low + high, rel=1e-6))
    for row in (*metrics, *differences):
        for name in ("mean", "difference", "ci95_low", "ci95_high", "relative", "relative_ci95_low"):
            assert not row.get(name) or math.isfinite(float(row[name])), row
    assert {row["baseline"] for row in differences} == {"policy-0"}
    assert len(differences) == 2 * 15 * len({row["figure"] for row in differences})
    apart = next(row for row in differences if (row["policy"], row["figure"]) == ("policy-3", "jct_mean_s"))
    base = next(row for row in metrics if (row["policy"], row["figure"]) == ("policy-0", "jct_mean_s"))
    assert float(apart["difference"]) == pytest.approx(mean - float(base["mean"]), rel=1e-6)
    assert float(apart["relative"]) == pytest.approx(mean / float(base["mean"]) - 1, rel=1e-6)


def rows_of(text: str) -> list[dict[str, str]]:
    """Of a rectangular table: every line has all the fields, and no more."""
    rows = list(csv.DictReader(text.splitlines(), strict=True))
    assert all(None not in row and None not in row.values() for row in rows)
    return rows


def saved(page: Page, button: str, name: str) -> str:
    """What a button would have saved under that name."""
    page.evaluate(f"window.last = null; document.querySelector('{button}').click()")
    for _ in range(200):
        if (text := page.evaluate("window.last")) is not None:
            break
        page.settle()
    assert page.evaluate("window.name_of_last") == name
    assert isinstance(text, str)
    return text
