"""The simulator as a library: `import fairlead`."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fairlead
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Node, Plan
from fairlead.policies.fifo import Backfill, Fifo
from fairlead.policies.middleware.minimum import MinimumRun
from fairlead.policies.tiresias import Tiresias

ROOT = Path(__file__).parents[2]

ROWS = [
    {"id": name, "submit_s": submit_s, "gpus": gpus, "duration_s": duration_s}
    for name, submit_s, gpus, duration_s in (
        *(("a", 0, 2, 1000), ("b", 10, 2, 3000), ("c", 20, 4, 500)),
        *(("d", 30, 1, 60), ("e", 40, 1, 60), ("f", 900, 2, 600)),
    )
]


@dataclass(frozen=True)
class Own:
    """Backfill, with something to set and something that it remembers."""

    strict: bool = False
    _seen: list[float] = field(default_factory=list, repr=False)

    def plan(self, view: Snapshot) -> Plan:
        assert not self._seen or view.now >= self._seen[-1], "a run begins with a policy that has seen nothing"
        self._seen.append(view.now)
        return (Fifo() if self.strict else Backfill()).plan(view)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "jobs.csv"
    lines = [",".join(map(str, row.values())) for row in ROWS]
    file.write_text("id,submit_s,gpus,duration_s\n" + "\n".join(lines) + "\n")
    return file


def test_the_package_loads_nothing_heavy_until_it_is_used() -> None:
    code = "import sys, fairlead; dir(fairlead); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert set(fairlead.__all__) >= {"simulate", "compare", "read_trace", "Cluster"}
    for name in fairlead.__all__:
        assert getattr(fairlead, name)
    with pytest.raises(AttributeError, match="no attribute 'simulator'"):
        fairlead.simulator  # noqa: B018


def test_a_trace_is_a_path_an_object_or_rows(path: Path) -> None:
    results = [
        fairlead.simulate(trace, "fifo", cluster="1x4", costs="none")
        for trace in (path, str(path), fairlead.read_trace(path), ROWS, fairlead.read_trace(path).jobs)
    ]
    assert {result.metrics.jct_mean_s for result in results} == {results[0].metrics.jct_mean_s}
    assert results[0].metrics.makespan_s == pytest.approx(4110)


def test_a_trace_that_is_edited_is_read_again(path: Path) -> None:
    before = fairlead.simulate(path, cluster="1x4").metrics.makespan_s
    path.write_text(path.read_text().replace("3000", "9000"))
    assert fairlead.simulate(path, cluster="1x4").metrics.makespan_s == pytest.approx((before or 0.0) + 6000)


def test_a_policy_is_an_object_or_a_text() -> None:
    by_text, by_object, own = (
        fairlead.simulate(ROWS, policy, cluster="1x4") for policy in ("backfill", Backfill(), Own())
    )
    assert by_text.metrics == by_object.metrics == own.metrics
    assert (by_text.experiment.policy, own.experiment.policy) == ("backfill", "Own")
    assert fairlead.simulate(ROWS, Own(strict=True), cluster="1x4").experiment.policy == "Own:strict=True"
    wrapped = fairlead.simulate(ROWS, MinimumRun(inner=Tiresias(promote=8.0)), cluster="1x4")
    assert wrapped.experiment.policy == "MinimumRun+Tiresias:promote=8.0"


def test_a_cluster_is_a_text_or_nodes() -> None:
    cluster = fairlead.Cluster("a100=2x8@2,v100=3x4")
    assert (cluster.gpus, cluster.gpu_types, str(cluster)) == (28, ("a100", "v100"), "a100=2x8@2,v100=3x4")
    assert fairlead.Cluster(str(cluster)) == cluster
    own = fairlead.Cluster([Node("big", 4), Node("small", 2)])
    assert str(own) == "1x4,1x2"
    assert fairlead.simulate(ROWS, cluster=own).measured.timeline.nodes[0].id == "big"
    assert fairlead.simulate(ROWS, cluster=cluster).metrics == fairlead.simulate(ROWS, cluster=str(cluster)).metrics
    with pytest.raises(fairlead.InvalidSpec, match="at least one Node"):
        fairlead.Cluster([])


def test_results_have_metrics_and_a_row_for_each_job() -> None:
    result = fairlead.simulate(ROWS, "fifo", cluster="1x4", costs="none")
    assert [job.job for job in result.jobs] == list("abcdef")
    assert result.jobs[2].jct_s == pytest.approx(3490)
    with pytest.raises(AttributeError):
        result.jobs[0].jct_s = 1.0  # type: ignore[misc]


def test_rows_become_a_data_frame_where_pandas_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Frame:
        def __init__(self, rows: list[dict[str, Any]], columns: list[str]) -> None:
            self.rows, self.columns = rows, columns

    pandas = ModuleType("pandas")
    pandas.DataFrame = Frame  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    frame = fairlead.simulate(ROWS, "fifo", cluster="1x4").to_pandas()
    assert frame.columns[:4] == ["policy", "load", "seed", "job"]
    assert (len(frame.rows), frame.rows[0]["policy"], frame.rows[0]["phase"]) == (6, "fifo", "succeeded")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fairlead.InvalidSpec, match="pip install pandas"):
        fairlead.simulate(ROWS, "fifo", cluster="1x4").to_pandas()


def test_policies_seeds_and_loads_are_compared_with_intervals_and_pairs(tmp_path: Path) -> None:
    comparison = fairlead.compare(
        ROWS,
        {"first": "fifo", "own": Own()},
        cluster="1x4",
        seeds=range(3),
        loads=(1.0, 2.0),
        resample=True,
        baseline="first",
    )
    order = [(r.experiment.load, r.experiment.seed, r.experiment.policy) for r in comparison.results]
    assert order == [(load, seed, name) for load in (1.0, 2.0) for seed in range(3) for name in ("first", "own")]
    rows = comparison.summary()
    assert [(row["policy"], row["load"], row["seeds"]) for row in rows] == [
        (name, load, 3) for load in (1.0, 2.0) for name in ("first", "own")
    ]
    jct = {(e.experiment.policy, e.experiment.seed): e.metrics.jct_mean_s or 0.0 for e in comparison.results[:6]}
    found = rows[1]["figures"]["jct_mean_s"]
    assert found["mean"] == pytest.approx(sum(jct["own", seed] for seed in range(3)) / 3)
    apart = [jct["own", seed] - jct["first", seed] for seed in range(3)]
    assert found["difference"]["mean"] == pytest.approx(sum(apart) / 3)
    assert "difference" not in rows[0]["figures"]["jct_mean_s"]
    assert len(comparison.rows()) == 12 * 6
    comparison.report(tmp_path / "page.html")
    assert "own" in (tmp_path / "page.html").read_text("utf-8")


def test_processes_give_the_same_without_running_the_script_again(tmp_path: Path) -> None:
    """A script needs no guard around its main part: workers do not load it."""
    script = tmp_path / "script.py"
    script.write_text(
        "import fairlead\n"
        f"rows = {ROWS!r}\n"
        "print('once')\n"
        "two = fairlead.compare(rows, ['fifo', 'backfill'], cluster='1x4', workers=2)\n"
        "one = fairlead.compare(rows, ['fifo', 'backfill'], cluster='1x4', workers=1)\n"
        "assert [r.metrics for r in one.results] == [r.metrics for r in two.results]\n"
    )
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "once\n", "")


def test_with_a_cache_runs_are_found_again(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = fairlead.compare(path, ["fifo", Own()], cluster="1x4", cache=True)
    assert len(list((tmp_path / "cache" / "fairlead" / "runs").iterdir())) == 1  # what an object does cannot be read
    again = fairlead.compare(path, ["fifo"], cluster="1x4", cache=True)
    assert again.results[0].wall_s == first.results[0].wall_s
    fairlead.compare(path, ["srtf"], cluster="1x4")
    assert len(list((tmp_path / "cache" / "fairlead" / "runs").iterdir())) == 1


@pytest.mark.parametrize(
    ("policies", "options", "message"),
    [
        ("fifo", {}, r"expected a list, as in \['fifo'\]"),
        ([], {}, "nothing to compare"),
        ([object()], {}, "no policy"),
        (["fifo"], {"seeds": [0, 1]}, "several seeds would give the same run"),
        (["fifo"], {"baseline": "srtf"}, "'srtf' is none of the policies: fifo"),
        (["fifo"], {"loads": [0.0]}, "load is 0.0"),
        (["nofo"], {}, "there is no policy 'nofo'"),
        ([Own(), Own(strict=False, _seen=[-1.0])], {}, "two policies are called 'Own'"),
        (["fifo"], {"cluster": "1x1"}, "needs 2 GPUs"),
        (["fifo"], {"warmup_s": 901.0}, "no job arrives in the measured window"),
        (["fifo"], {"estimates": "none", "estimate_error": 1.0}, "leave out --estimates none"),
        (["fifo"], {"noise": 9.0}, "noise is 9.0; expected"),
    ],
)
def test_what_cannot_be_meant_is_refused(policies: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(fairlead.InvalidSpec, match=message):
        fairlead.compare(ROWS, policies, **{"cluster": "1x4", **options})


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        (
            fairlead.simulate,
            {"wokers": 3},
            "simulate has no option 'wokers'; did you mean 'workers'? That is an option of",
        ),
        (fairlead.simulate, {"workers": 3}, "did you mean 'workers'? That is an option of fairlead.compare"),
        (fairlead.simulate, {"nosie": 0.1}, "simulate has no option 'nosie'; did you mean 'noise'? Known are "),
        (fairlead.simulate, {"format": "philly"}, "simulate has no option 'format': give it read_trace(path, format)"),
        (fairlead.compare, {"wokers": 3}, "compare has no option 'wokers'; did you mean 'workers'? Known are "),
        (fairlead.compare, {"load": 2.0}, "compare has no option 'load'; did you mean 'loads'?"),
        (fairlead.compare, {"xyzzy": 1}, "compare has no option 'xyzzy'; known are adapt, "),
    ],
)
def test_a_keyword_that_no_call_has_is_refused_with_the_one_that_was_meant(
    call: Any, options: dict[str, Any], message: str
) -> None:
    policy = "fifo" if call is fairlead.simulate else ["fifo"]
    with pytest.raises(fairlead.InvalidSpec, match=re.escape(message)):
        call(ROWS, policy, cluster="1x4", **options)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": "a", "submit_s": 0}], "rows:1: a row has no 'gpus'"),
        ([{"id": "a", "submit_s": 0, "gpus": 1, "durations": 5}], "'durations', which no job has"),
        ([{"id": "a", "submit_s": "soon", "gpus": 1}], "no number"),
        ([ROWS[0], ROWS[0]], "rows:2: job 'a' is there already on line 1"),
        (["a"], "expected a TraceJob, or a mapping"),
        (7, "a trace is a file name, rows or"),
    ],
)
def test_a_row_that_is_no_job_is_named(rows: Any, message: str) -> None:
    with pytest.raises(fairlead.InvalidSpec, match=message):
        fairlead.simulate(rows, "fifo", cluster="1x4")


def test_the_example_runs_as_written() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "own_experiment.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "8 GPUs, 60 jobs" in done.stdout
    assert "against fifo" in done.stdout
