"""What a report teaches: the next belief from the last one. Pure."""

from __future__ import annotations

from dataclasses import replace

from fairlead.core.messages import JobReported
from fairlead.core.types import Belief, Observation


def learn(belief: Belief, report: JobReported) -> Belief:
    """Belief after one more report; measurements at the same configuration are pooled by their step counts."""
    pooled = {o.configuration: o for o in belief.observations}
    for new in report.observations:
        old = pooled.get(new.configuration)
        pooled[new.configuration] = new if old is None else _pool(old, new)
    regimes = belief.regimes
    if report.batch is not None and (not regimes or regimes[-1][1] != report.batch):
        regimes = (*regimes, (report.progress, report.batch))
    return Belief(
        progress=report.progress,
        reported_at=report.at,
        saved_at=report.at if report.saved else belief.saved_at,
        regimes=regimes,
        noise_scale=belief.noise_scale if report.noise_scale is None else report.noise_scale,
        observations=tuple(pooled.values()),
    )


def _pool(old: Observation, new: Observation) -> Observation:
    steps = old.steps + new.steps
    share = new.steps / steps  # and not sums, which could overflow
    step_s = old.step_s + (new.step_s - old.step_s) * share
    sync_s = old.sync_s + (new.sync_s - old.sync_s) * share
    return replace(new, step_s=step_s, sync_s=sync_s, steps=steps)
