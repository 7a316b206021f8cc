"""The profile that Shockwave's artifact makes of a job before it runs: the batch of every epoch, and its run time.

Its finish-time fairness divides by this run time, and its simulator ends a job that ran half as long again. It is not
what its jobs do (`regimes.py`): of an accordion job the first 30 % of all epochs count as critical here, and the
recommenders have further critical epochs; of a gns job that changes more than once the last epoch has the first batch.
"""

from __future__ import annotations

from fairlead.sim.regimes import ACCORDION, DATASETS, GnsSchedules
from fairlead.sim.tables import ThroughputTable, job_type

#: Epochs that are critical in the profiles of recommenders, and not in their simulation.
_MORE_CRITICAL = {"Recommendation": ((60, 70), (80, 90))}

#: Share of a job's epochs that is critical in any case.
_HEAD = 0.3


def profiled_batches(mode: str, model: str, batch: int, *, gpus: int, epochs: int, gns: GnsSchedules) -> list[int]:
    """The batch of every epoch."""
    if mode == "gns":
        return _gns(gns.get((model, batch, gpus), ((0, batch),)), batch, epochs)
    if mode == "static" or model not in ACCORDION:
        return [batch] * epochs
    more = _MORE_CRITICAL.get(model, ())

    def batch_in(epoch: int) -> int:
        critical = epoch <= epochs * _HEAD or any(first <= epoch < end for first, end in more)
        return batch if critical else ACCORDION[model].batch_in(epoch, batch)

    return [batch_in(epoch) for epoch in range(epochs)]


def _gns(schedule: tuple[tuple[int, int], ...], batch: int, epochs: int) -> list[int]:
    batches = [batch] * epochs
    for first, size in schedule:
        for epoch in range(first, epochs):
            batches[epoch] = size
    if len(schedule) > 2 and epochs > schedule[2][0]:
        batches[-1] = batch
    return batches


def profiled_s(table: ThroughputTable, model: str, batches: list[int], *, gpus: int, gpu_type: str) -> float:
    """Seconds that the epochs take alone. A last step that is not full counts as a part of one."""
    total_s = 0.0
    for batch in batches:
        entry = table.entry(gpu_type, (job_type(model, batch), gpus))
        assert entry is not None, "the table has every batch of a job's schedule"
        total_s += DATASETS[model] / batch / entry.alone
    return total_s
