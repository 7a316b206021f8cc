"""Figures: those of the moment, and those of what happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from still import StillPlane

from fairlead.core.messages import (
    JobCancelled,
    JobExited,
    JobHeld,
    JobRescaled,
    JobSubmitted,
    NodeLost,
    Resize,
    Start,
    Stop,
)
from fairlead.core.types import NOTHING, Allocation, Job, JobSpec, Phase
from fairlead.server.metrics import Tally


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[StillPlane]:
    with StillPlane(tmp_path) as plane:
        yield plane


def figures(plane: StillPlane) -> dict[str, float]:
    """By name and labels, as Prometheus would read them."""
    text = plane.ask("GET", "/metrics").text
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_jobs_and_gpus_are_counted_as_they_are(plane: StillPlane) -> None:
    for _ in range(2):
        plane.submit(gpus=4, gpu_type="a100")
    plane.submit(queue="vision", depends_on=["1"])
    plane.controller.runs("1")
    plane.controller.until(lambda p: p.view is not None and "2" in p.view.jobs and "3" in p.live)
    told = figures(plane)
    assert told["fairlead_jobs queue=default state=RUNNING"] == 1
    assert told["fairlead_jobs queue=default state=PENDING"] == 1
    assert told["fairlead_pending_jobs queue=default reason=waiting"] == 1
    assert told["fairlead_pending_jobs queue=vision reason=dependency"] == 1
    assert told["fairlead_gpus gpu_type=a100 state=used"] == 4
    assert told["fairlead_gpus gpu_type=t4 state=free"] == 2
    assert told["fairlead_journal_seq"] == plane.controller.published.seq


def test_lost_and_closed_gpus_are_told_apart(plane: StillPlane) -> None:
    plane.controller.happens(NodeLost(plane.controller.now(), "n1"))
    plane.ask("POST", "/api/v1/nodes/n0/drain", "root")
    plane.controller.until(lambda p: p.nodes["n0"].draining and not p.nodes["n1"].healthy)
    told = figures(plane)
    assert told["fairlead_gpus gpu_type=a100 state=closed"] == 4
    assert told["fairlead_gpus gpu_type=t4 state=lost"] == 2


def test_what_happened_is_counted_from_the_journal(plane: StillPlane) -> None:
    plane.submit()
    plane.controller.runs("1")
    plane.ask("POST", "/api/v1/jobs/1/hold")
    plane.controller.until(lambda p: p.live["1"].phase is Phase.PENDING)
    plane.ask("POST", "/api/v1/jobs/1/release")
    plane.controller.runs("1")
    told = figures(plane)
    assert told["fairlead_submitted_total"] == 1
    assert told["fairlead_preempted_total reason=hold"] == 1
    assert told["fairlead_restarts_total"] == 1
    assert told["fairlead_admission_wait_seconds_count"] == 1
    assert figures(plane)["fairlead_submitted_total"] == 1


def test_requests_are_counted_by_route_and_never_by_path(plane: StillPlane) -> None:
    for job in ("1", "2", "3"):
        plane.ask("GET", f"/api/v1/jobs/{job}")
    plane.ask("GET", "/nowhere/17")
    plane.ask("GET", "/nowhere/18", None)
    plane.ask("BREW", "/healthz")
    told = figures(plane)
    name = "fairlead_http_request_duration_seconds_count"
    assert told[f"{name} method=GET route=/api/v1/jobs/{{job_id}} status=404"] == 3
    assert told[f"{name} method=GET route=other status=404"] == 1
    assert told[f"{name} method=GET route=other status=401"] == 1
    assert any(key.startswith(f"{name} method=OTHER") for key in told)


def test_the_loop_tells_how_long_it_took_and_how_late_it_was(plane: StillPlane) -> None:
    plane.app.state.metrics.turned(lag_s=0.25, decision_s=0.03)
    plane.app.state.metrics.turned(lag_s=0.5)
    told = figures(plane)
    assert told["fairlead_loop_lag_seconds"] == 0.5
    assert told["fairlead_decision_seconds_count"] == 1


# -- the tally ---------------------------------------------------------------------------------------------------------

N0, N1 = Allocation.of({"n0": [0]}), Allocation.of({"n1": [0, 1]})


class Counted:
    """A tally and what it has counted."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.tally = Tally(self.registry)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"fairlead_{name}", labels)


def test_a_change_of_gpus_is_a_rescale_with_a_pause() -> None:
    counted = Counted()
    for message in (Start(1.0, "a", 1, N0), Resize(10.0, "a", 1, N1), JobRescaled(12.5, "a", 1)):
        counted.tally.take(message)
    counted.tally.take(Resize(20.0, "a", 1, NOTHING))
    counted.tally.take(JobRescaled(29.0, "a", 1))
    assert counted("rescales_total") == 1
    assert counted("rescale_pause_seconds_sum") == 2.5
    assert counted("rescale_pause_seconds_count") == 1


def test_whoever_is_stopped_by_their_user_was_not_preempted_by_the_policy() -> None:
    counted = Counted()
    for job in ("a", "b", "c"):
        counted.tally.take(JobSubmitted(0.0, JobSpec(id=job)))
        counted.tally.take(Start(4.0, job, 1, N0))
    counted.tally.take(JobCancelled(5.0, "a"))
    counted.tally.take(JobHeld(5.0, "b"))
    for job in ("a", "b", "c"):
        counted.tally.take(Stop(6.0, job, 1))
    assert counted("preempted_total", reason="policy") == 1
    assert counted("preempted_total", reason="hold") == 1
    assert counted("admission_wait_seconds_sum") == 12.0


def test_a_lost_node_preempts_those_that_were_on_it() -> None:
    counted = Counted()
    for job, place in (("a", N0), ("b", N1), ("c", N0), ("d", N0)):
        counted.tally.take(Start(1.0, job, 1, place))
    counted.tally.take(JobExited(2.0, "c", 1))
    counted.tally.take(JobCancelled(2.0, "d"))
    counted.tally.take(NodeLost(3.0, "n0"))
    assert counted("preempted_total", reason="node-lost") == 1
    counted.tally.take(Start(4.0, "a", 2, N1))
    assert counted("restarts_total") == 1


def test_jobs_that_were_there_before_are_known() -> None:
    counted = Counted()
    runs = Job(JobSpec(id="a"), 3.0, phase=Phase.RESCALING, since=5.0, allocation=N0)
    counted.tally.seed([runs, Job(JobSpec(id="b"), 4.0, cancelled=True)])
    counted.tally.take(JobRescaled(6.0, "a", 1))
    counted.tally.take(Stop(7.0, "b", 1))
    counted.tally.take(NodeLost(8.0, "n0"))
    assert counted("rescale_pause_seconds_sum") == 1.0
    assert counted("preempted_total", reason="policy") == 0
    assert counted("preempted_total", reason="node-lost") == 1


def test_the_tally_does_not_remember_everybody_for_ever() -> None:
    counted = Counted()
    for number in range(5000):
        counted.tally.take(JobSubmitted(0.0, JobSpec(id=str(number))))
        counted.tally.take(JobCancelled(0.0, str(number)))
    counted.tally.forget_all_but({"7": None})
    assert len(counted.tally._came) == 1
    assert counted("submitted_total") == 5000
