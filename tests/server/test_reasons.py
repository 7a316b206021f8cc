"""Why a job is where it is and what happened to it, in sentences that say everything once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.core.messages import JobExited, JobPinned
from fairlead.core.types import Allocation, Job, JobSpec, Launch, Phase
from fairlead.server.published import Published
from fairlead.server.reasons import ADVICE, SILENT_S, reason_of
from fairlead.server.story import sentence

PUBLISHED = Published(0, 0.0, {}, {}, {})
FAILED = Job(JobSpec(id="a"), 0.0, phase=Phase.FAILED, attempt=2)


@pytest.mark.parametrize(
    ("code", "detail", "reason", "event"),
    [
        (3, "", "failed with exit code 3 on attempt 2", "attempt 2 ended with exit code 3"),
        (3, "it ended with exit code 3", "failed with exit code 3 on attempt 2", "attempt 2 ended with exit code 3"),
        (
            3,
            "rank 1 ended with exit code 3",
            "failed on attempt 2: rank 1 ended with exit code 3",
            "attempt 2 is over: rank 1 ended with exit code 3",
        ),
        (
            1,
            "setup ended with exit code 1; see its log, setup.log",
            "failed on attempt 2: setup ended with exit code 1; see its log, setup.log",
            "attempt 2 is over: setup ended with exit code 1; see its log, setup.log",
        ),
        (
            1,
            "somebody said exit code 137",
            "failed with exit code 1 on attempt 2: somebody said exit code 137",
            "attempt 2 ended with exit code 1: somebody said exit code 137",
        ),
        (
            137,
            "it was killed by SIGKILL; perhaps memory ran out",
            "failed with exit code 137 on attempt 2: it was killed by SIGKILL; perhaps memory ran out",
            "attempt 2 ended with exit code 137: it was killed by SIGKILL; perhaps memory ran out",
        ),
    ],
)
def test_the_exit_code_is_said_once(code: int, detail: str, reason: str, event: str) -> None:
    found = reason_of(PUBLISHED, replace(FAILED, exit_code=code, detail=detail))
    assert found is not None
    assert found.text == reason
    assert sentence(JobExited(0.0, "a", 2, code, detail)) == event


def test_a_job_that_failed_before_it_could_exit_says_so() -> None:
    found = reason_of(PUBLISHED, replace(FAILED, detail="its node was lost"))
    assert found is not None
    assert found.text == "failed without an exit code on attempt 2: its node was lost"


def test_an_elastic_job_that_never_reports_says_so_after_a_while() -> None:
    spec = JobSpec(id="a", gpus=1, gpus_min=1, gpus_max=4, in_place=True)
    starting = Job(spec, 0.0, phase=Phase.STARTING, attempt=1, since=100.0, allocation=Allocation.of({"n0": (0,)}))

    def code(job: Job, after_s: float) -> str:
        found = reason_of(replace(PUBLISHED, now=100.0 + after_s), job)
        assert found is not None
        return found.code

    assert code(starting, SILENT_S - 1.0) == "undecided"
    assert code(starting, SILENT_S) == "silent"
    assert code(replace(starting, phase=Phase.RUNNING), SILENT_S) == "undecided"
    assert code(replace(starting, spec=replace(spec, in_place=False)), SILENT_S) == "undecided"
    found = reason_of(replace(PUBLISHED, now=190.0), starting)
    assert found is not None
    assert "holds 1 GPU, but does not train after 90 s" in found.text


@pytest.mark.parametrize(
    ("gpus", "copies"), [(1, ""), (2, "; each has a copy of the command, and the 2 copies do not train together")]
)
def test_a_pinned_job_says_why_its_size_does_not_change(gpus: int, copies: str) -> None:
    spec = JobSpec(id="a", gpus=gpus)
    held = Allocation.of({"n0": range(gpus)})
    job = Job(spec, 0.0, phase=Phase.RUNNING, attempt=1, allocation=held, pinned_from=(1, 1, 4))
    found = reason_of(PUBLISHED, job)
    assert found is not None
    count = "1 GPU" if gpus == 1 else "2 GPUs"
    fixed = "so it cannot change size while it runs"
    why = f"its command does not use fairlead.train, {fixed}"
    assert (found.code, found.text) == ("pinned", f"runs on {count}: {why}{copies}")
    assert "fairlead.train" in ADVICE[found.code]
    assert fixed in sentence(JobPinned(0.0, "a", 1))
    once = reason_of(PUBLISHED, replace(job, spec=replace(spec, launch=Launch.ONCE)))
    assert once is not None
    assert once.text == f"runs on {count}: its command is started once for all of them, {fixed}"
    assert sentence(JobPinned(0.0, "a", 1, pinned=False)).startswith("uses fairlead.train after all")
