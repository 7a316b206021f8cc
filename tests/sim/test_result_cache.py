"""What decides a result is in its fingerprint; what was kept comes back as it was, and takes bounded room."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairlead.sim.experiment import Experiment, Inputs, Result, run_experiment
from fairlead.sim.fingerprint import code_digest, fingerprint
from fairlead.sim.result_cache import ResultCache, decode, encode
from fairlead.sim.traces import read_trace

JOBS = "id,submit_s,gpus,duration_s\na,0,2,1000\nb,10,2,3000\nc,20,4,500\n"
OWN = "from helper_of_own import order\nfrom fairlead.policies.fifo import Fifo\n\nclass Own(Fifo):\n    pass\n"


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    (tmp_path / "jobs.csv").write_text(JOBS)
    return Experiment(trace=str(tmp_path / "jobs.csv"), policy="fifo", cluster="1x4")


def test_every_option_and_the_content_of_the_trace_decide(experiment: Experiment, tmp_path: Path) -> None:
    (tmp_path / "longer.csv").write_text(JOBS.replace("3000", "3001"))
    others = [
        experiment,
        replace(experiment, policy="backfill"),
        replace(experiment, policy="tiresias:promote=8"),
        replace(experiment, cluster="2x4"),
        replace(experiment, seed=1),
        replace(experiment, load=2.0),
        replace(experiment, costs="none"),
        replace(experiment, failures_h=(5.0, 1.0)),
        replace(experiment, trace=str(tmp_path / "longer.csv")),
    ]
    assert len({fingerprint(each) for each in others}) == len(others)
    assert None not in {fingerprint(each) for each in others}


def test_the_name_and_the_form_of_the_file_do_not_decide(experiment: Experiment, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text(JOBS)
    assert fingerprint(replace(experiment, trace=str(tmp_path / "other.csv"))) == fingerprint(experiment)
    assert fingerprint(experiment, Inputs(trace=read_trace(experiment.trace))) == fingerprint(experiment)


def test_a_trace_that_is_edited_in_place_is_another(experiment: Experiment) -> None:
    before = fingerprint(experiment)
    Path(experiment.trace).write_text(JOBS.replace("500", "501"))
    assert fingerprint(experiment) != before


def test_a_policy_of_ones_own_has_no_fingerprint(experiment: Experiment, tmp_path: Path) -> None:
    """It may depend on anything, such as a file that it reads; a result that was kept would then be another's."""
    (tmp_path / "mine.py").write_text("from fairlead.policies.fifo import Fifo\n\nclass Mine(Fifo):\n    pass\n")
    mine = replace(experiment, policy=f"{tmp_path / 'mine.py'}:Mine")
    assert fingerprint(mine) is None
    assert fingerprint(replace(experiment, policy=f"drain+{tmp_path / 'mine.py'}:Mine")) is None
    assert fingerprint(replace(experiment, policy="drain+minimum-run+fifo")) is not None


def test_profiles_beside_the_trace_decide(experiment: Experiment, tmp_path: Path) -> None:
    before = fingerprint(experiment)
    (tmp_path / "tacc_throughputs.json").write_text("{}")
    between = fingerprint(experiment)
    (tmp_path / "tacc_throughputs.json").write_text("{ }")
    assert len({before, between, fingerprint(experiment)}) == 3


def test_the_sources_of_the_package_decide(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.py").write_text("x = 1\n")
    first = code_digest(tmp_path)
    (tmp_path / "deep" / "__pycache__").mkdir()
    (tmp_path / "deep" / "__pycache__" / "a.pyc").write_text("whatever")
    assert code_digest(tmp_path) == first
    (tmp_path / "deep" / "a.py").write_text("x = 2\n")
    assert code_digest(tmp_path) != first


def test_an_object_has_no_fingerprint(experiment: Experiment) -> None:
    assert fingerprint(experiment, Inputs(policy=object())) is None  # type: ignore[arg-type]


def same(one: Result, two: Result) -> bool:
    lines = [result.measured.timeline for result in (one, two)]
    arrays = all(
        np.array_equal(getattr(lines[0], name), getattr(lines[1], name))
        for name in ("times_s", "gpus_in_use", "queued")
    )
    segments = all(
        np.array_equal(getattr(lines[0].segments, name), getattr(lines[1].segments, name)) for name in ("job", "end_s")
    )
    words = (
        one.to_dict() == two.to_dict() and one.measured.jobs == two.measured.jobs and lines[0].nodes == lines[1].nodes
    )
    return arrays and segments and words


def test_a_result_comes_back_as_it_was(experiment: Experiment) -> None:
    result = run_experiment(replace(experiment, failures_h=(0.2, 0.01), policy="srtf"))
    assert same(decode(encode(result), result.experiment), result)
    with pytest.raises(ValueError, match="damaged"):
        decode(encode(result)[:-1], result.experiment)


def test_the_least_recently_used_entries_make_room(experiment: Experiment, tmp_path: Path) -> None:
    result = run_experiment(experiment)
    size = len(encode(result))
    cache = ResultCache(tmp_path / "runs", most_bytes=3 * size + size // 2)
    for number, name in enumerate("abc"):
        cache.keep(name, result)
        os.utime(tmp_path / "runs" / f"{name}.run", (number, number))
    assert cache.find("a", experiment) is not None  # used again, and so the latest
    cache.keep("d", result)
    assert sorted(path.stem for path in (tmp_path / "runs").iterdir()) == ["a", "c", "d"]
    assert ResultCache(tmp_path / "none").find("a", experiment) is None
