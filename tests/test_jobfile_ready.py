"""From a job file to what runs: durations and deadlines, paths, commands, arrays, and what the scheduler sees."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Batch
from fairlead.jobfile import (
    Gpus,
    InvalidJob,
    JobRequest,
    Problem,
    check_ready,
    command_of,
    deadline_at,
    expand,
    parse_array,
    parse_duration,
    parse_gpus,
    parse_job,
    resolve_deadline,
    resolve_paths,
    to_spec,
)

NOON = 1_800_000_000.0

# -- durations, deadlines, GPUs and arrays as options ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90m", 5400), ("2h30m", 9000), ("2h 30m", 9000), ("1d", 86400), ("1d12h", 129600), ("1.5h", 5400)),
        *(("30s", 30), ("5400", 5400), ("0.5", 0.5), ("1:30:00", 5400), ("100:00:01", 360001), ("1d2h3m4s", 93784)),
    ],
)  # fmt: skip
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "h", "1x", "1:30", "1:60:00", "-1h", "1h-", "1m1h", "inf", "nan", "1e3", "٣m"]
)
def test_what_is_no_duration_is_told_by_the_name_it_was_given(text: str) -> None:
    with pytest.raises(InvalidJob, match=r"--time-limit is .*; expected a duration such as 90m"):
        parse_duration(text, field="--time-limit")


def test_gpus_and_arrays_can_be_read_alone() -> None:
    assert parse_gpus("1 - 8") == Gpus(1, 1, 8)
    assert parse_array("2-4") == (2, 3, 4)
    assert len(parse_array("10000")) == 10_000
    with pytest.raises(InvalidSpec, match=r"--gpus is '8-1'; expected"):
        parse_gpus("8-1", field="--gpus")
    with pytest.raises(InvalidSpec, match="is no number of GPUs"):
        Gpus(2, 1, 8)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


AT_1000 = 1_794_819_600.0  # 2026-11-16 10:00 in Berlin


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("text", "hours"),
    [
        *(("+6h", 6), ("+1d12h", 36), ("18:00", 8), ("9:30", 23.5), ("10:00", 24), ("2026-11-16", 14)),
        *(("2026-11-16T18:00", 8), ("2026-11-16 18:00:00", 8), ("2026-11-16T18:00Z", 9), ("2026-11-16T18:00+0300", 6)),
        *(("2026-11-16T18:00-01:00", 10), ("2026-11-15", -10), ("2026-11-17", 38)),
    ],
)  # fmt: skip
def test_a_deadline_is_a_moment(text: str, hours: float) -> None:
    assert deadline_at(text, AT_1000) == AT_1000 + hours * 3600


@pytest.mark.usefixtures("berlin")
def test_a_time_of_day_is_found_across_a_change_of_the_clock() -> None:
    evening = deadline_at("2026-10-24T20:00", 0.0)
    assert deadline_at("18:00", evening) == evening + 23 * 3600


@pytest.mark.usefixtures("berlin")
def test_a_deadline_is_made_to_mean_the_same_elsewhere() -> None:
    request = JobRequest(run="x", deadline="18:00")
    assert resolve_deadline(request, AT_1000).deadline == "2026-11-16T17:00:00Z"
    assert resolve_deadline(JobRequest(run="x"), AT_1000) == JobRequest(run="x")
    with pytest.raises(InvalidJob, match="is past"):
        resolve_deadline(replace(request, deadline="2026-11-15"), AT_1000)


# -- ready to run ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "command"),
    [
        (("a b", "$HOME", ""), ("a b", "$HOME", "")),
        ("python train.py --lr=0.1 ", ("python", "train.py", "--lr=0.1")),
        *((script, ("/bin/bash", "-e", "-o", "pipefail", "-c", script)) for script in [
            *("a\nb", "a | b", "a && b", 'echo "hi"', "echo $HOME", "ls *", "cd x", "source x", "A=1 b"),
            *("~/x", "a  # b", "echo `a`", "a > b", "a; b", "echo {1,2}", "! a", "time a", "export A=1"),
            *("a\tb", "echo \\a"),
        ]),
    ],
)  # fmt: skip
def test_a_shell_reads_a_text_only_if_it_would_change_it(run: str | tuple[str, ...], command: tuple[str, ...]) -> None:
    assert command_of(JobRequest(run=run)) == command


def test_a_script_ends_at_its_first_error_and_is_handed_over_as_it_is() -> None:
    script = 'echo "it\'s $0"\nfalse | cat\necho never\n'
    done = subprocess.run(command_of(JobRequest(run=script)), capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("it's /bin/bash\n", 1)


def test_an_array_is_as_many_requests_as_it_has_elements() -> None:
    request = parse_job("{run: x, array: 3-4}")
    element = JobRequest(run="x")
    assert expand(request) == [(3, element), (4, element)]
    assert expand(element) == [(None, element)]
    with pytest.raises(InvalidJob, match="array has 10001 elements"):
        expand(replace(request, array=tuple(range(10_001))))


@pytest.mark.parametrize(
    ("given", "found"),
    [(None, "/base"), ("a", "/base/a"), ("../a", "/a"), ("./", "/base"), ("/x", "/x"), ("~", "~"), ("~/x", "~/x")],
)
def test_a_path_is_made_to_mean_the_same_elsewhere(given: str | None, found: str) -> None:
    request = resolve_paths(JobRequest(run="x", workdir=given), Path("/base"))
    assert request.workdir == found
    check_ready(request)


def test_a_request_made_by_hand_is_checked_before_it_is_taken() -> None:
    check_ready(JobRequest(run="x"))
    with pytest.raises(InvalidJob) as caught:
        check_ready(JobRequest(run="", workdir="a", weight=float("nan"), elastic="restart", env={"RANK": "1"}))
    assert [problem.field for problem in caught.value.problems] == ["weight", "run", "env", "elastic", "workdir"]


def test_the_scheduler_sees_what_was_asked_for() -> None:
    text = """
name: n
run: a b
gpus: 2-8
gpu_type: a100
queue: q
priority: 5
weight: 2
preemptible: false
batch: 64
deadline: +1h
budget: 3
time_limit: 2h
max_restarts: 1
restart_on: 3
backoff: 4
depends_on: j
labels: {a: b}
"""
    spec = to_spec(parse_job(text), job_id="7", user="ann", now=NOON, cluster_gpus=64)
    assert (spec.id, spec.name, spec.tenant, spec.command) == ("7", "n", "ann", ("a", "b"))
    assert (spec.gpus, spec.least, spec.most, spec.in_place, spec.gpu_types) == (2, 2, 8, True, ("a100",))
    assert (spec.queue, spec.priority, spec.weight, spec.preemptible) == ("q", 5, 2.0, False)
    assert (spec.batch, spec.deadline, spec.budget, spec.estimate_s) == (Batch(64), NOON + 3600, 3.0, 7200.0)
    assert (spec.max_restarts, spec.restart_on, spec.backoff_s) == (1, (3,), 4.0)
    assert (spec.depends_on, spec.labels) == (("j",), {"a": "b"})


@pytest.mark.parametrize(
    ("written", "bounds", "in_place"),
    [
        ("gpus: 4", (4, 4, 4), False),
        ("gpus: 2-8\nelastic: restart", (2, 2, 8), False),
        ("gpus: auto", (1, 1, 16), True),
    ],
)
def test_gpus_become_bounds(written: str, bounds: tuple[int, int, int], in_place: bool) -> None:
    spec = to_spec(parse_job(f"run: x\n{written}"), job_id="1", user="ann", now=NOON, cluster_gpus=16)
    assert ((spec.gpus, spec.least, spec.most), spec.in_place) == (bounds, in_place)


def test_a_job_may_wait_for_a_cluster_that_has_no_gpus_yet() -> None:
    assert to_spec(parse_job("{run: x, gpus: auto}"), job_id="1", user="ann", now=NOON, cluster_gpus=0).most == 1


def test_a_deadline_that_is_past_is_refused() -> None:
    with pytest.raises(InvalidJob, match="deadline is '2020-01-01', which is past") as caught:
        to_spec(parse_job("{run: x, deadline: 2020-01-01}"), job_id="1", user="ann", now=NOON, cluster_gpus=1)
    assert caught.value.problems == (
        Problem("deadline", "deadline is '2020-01-01', which is past; give a later one, or +6h"),
    )
