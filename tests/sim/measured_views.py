"""Views of a cluster whose jobs were promised, started and measured, for tests of what is foretold of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fairlead.core import messages as m
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Node
from fairlead.sim.applications import APPLICATIONS, GoodputTruth
from fairlead.sim.truth import Setting
from fairlead.testing.scenario import GivenJob, allocation, job, make_state


def view_of(nodes: str, jobs: Sequence[GivenJob], now: float = 0.0) -> Snapshot:
    return make_state(nodes, jobs, now=now).snapshot()


def reported(state: State, job_id: str, *reports: tuple[float, float], **more: Any) -> None:
    """Progress that a job told of at certain times."""
    for at, progress in reports:
        state.apply(m.JobReported(at, job_id, state.live[job_id].attempt, progress, **more))


def measured_state(sizes: Sequence[int]) -> tuple[State, GoodputTruth]:
    """A job of an application on 2 GPUs that was measured on several sizes, and reported its speed on these 2."""
    app = replace(APPLICATIONS["small-cnn"], regimes=1, noise_scale=(6000.0, 6000.0))
    real = GoodputTruth(app)
    nodes = [Node("n0", 8, "t4")]
    given = job("a", 2, gpus_min=1, gpus_max=8, on="n0[0,1]", batch=app.batch)
    state = make_state(nodes, [given], now=10.0)
    paces = {k: real.pace(Setting(0.0, allocation(f"n0[{','.join(map(str, range(k)))}]"), "t4")) for k in sizes}
    seen = tuple(replace(pace.observation, steps=100) for pace in paces.values() if pace.observation is not None)
    share = real.pace(Setting(0.0, allocation("n0[0,1]"), "t4")).speed / app.samples
    reported(state, "a", (10.0, 0.1), noise_scale=6000.0, observations=seen)
    reported(state, "a", (20.0, 0.1 + 10.0 * share))
    return state, real
