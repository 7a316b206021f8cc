"""What a job measured on one GPU type is told as of that type, once, also after it has moved to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead.backends.elastic import Elastic
from fairlead.backends.files import Appender, AttemptFiles
from fairlead.backends.hearing import Hearing
from fairlead.backends.task import Task
from fairlead.core.messages import JobReported


def seen(gpu_type: str, steps: int, step_s: float = 1.0) -> dict[str, Any]:
    where = {"gpu_type": gpu_type, "nodes": 1, "gpus": 1, "per_gpu_batch": 32, "accumulation": 0}
    return {**where, "step_s": step_s, "sync_s": 0.0, "steps": steps}


def report(*observations: dict[str, Any]) -> dict[str, Any]:
    told = {"progress": 0.1, "batch": 32, "noise_scale": None, "bounds": None, "step": 1, "epoch": 0}
    return {"kind": "report", **told, "observations": list(observations)}


def heard(*observations: dict[str, Any], now: str) -> list[str]:
    line = {**report(*observations), "saved": False}
    event = Hearing("j", 1, 5.0, now, ("fast", "slow")).event(line)
    assert isinstance(event, JobReported)
    return [each.gpu_type for each in event.observations]


def test_a_report_keeps_the_types_on_which_a_job_was_measured() -> None:
    assert heard(seen("fast", 9), seen("slow", 3), now="slow") == ["fast", "slow"]


@pytest.mark.parametrize("said", ["gpu", "of another machine"])
def test_a_type_that_this_machine_does_not_have_is_the_one_where_the_job_runs(said: str) -> None:
    assert heard(seen(said, 9), now="slow") == ["slow"]


def test_steps_on_a_new_type_are_told_although_there_were_more_on_another(tmp_path: Path) -> None:
    first = AttemptFiles(tmp_path / "jobs" / "j" / "attempt-1")
    second = AttemptFiles(tmp_path / "jobs" / "j" / "attempt-2")
    for files in (first, second):
        files.directory.mkdir(parents=True)
    Appender(first.events, root=first.root).append(report(seen("fast", 100)))
    told = list[dict[str, Any]]()
    task = Task(job="j", attempt=2, command=("true",), workdir="/", env={}, places=(("n1", 1),))
    elastic = Elastic(task, second, lambda kind, **line: told.append({"kind": kind, **line}), lambda *_: None)
    elastic._hear(report(seen("fast", 100), seen("slow", 7)))  # the first is from the checkpoint
    (line,) = [each for each in told if each["kind"] == "report"]
    assert line["observations"] == [seen("slow", 7)]
