"""Gavel's jobs (Narayanan et al., OSDI '20): how fast each of its 26 job types trains, and workloads with its mix.

The speeds are the authors' measurements, in a compact form (`gavel_throughputs.json`, which names its source).
Workloads are drawn as the paper states: the type of a job is uniform; its duration on V100s is 10^1.5 to 10^3 minutes
for 80 % of the jobs and 10^3 to 10^4 minutes for the rest, uniform in the exponent; 70 % of the multi-GPU workload's
jobs have one GPU, 10 % two, 15 % four and 5 % eight; arrivals are Poisson. At the start the cluster has jobs
for all of its GPUs.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files

import numpy as np

from fairlead.core.errors import InvalidSpec
from fairlead.sim.tables import Entry, Key, ThroughputTable
from fairlead.sim.traces.record import Trace, TraceJob

#: (GPUs, share of the jobs) of the workload with several GPUs.
SIZES = ((1, 0.70), (2, 0.10), (4, 0.15), (8, 0.05))
#: The type whose speeds make steps of a duration.
REFERENCE = "v100"
#: Share of the long jobs, and the exponents of their minutes and of those of the others.
LONG_SHARE, SHORT, LONG = 0.2, (1.5, 3.0), (3.0, 4.0)

_JOB_TYPE = re.compile(r"(.+?) \(batch size (\d+)\)")


@cache
def published_table() -> ThroughputTable:
    """Steps per second by GPU type, job type and GPUs, and in pairs on one GPU."""
    data = json.loads((files("fairlead.sim") / "gavel_throughputs.json").read_text(encoding="utf-8"))
    names = list(data["alone"])
    entries: dict[str, dict[Key, Entry]] = {}
    for place, gpu_type in enumerate(data["gpu_types"]):
        rows = entries[gpu_type] = {
            (name, int(gpus)): Entry(speeds[place])
            for name, by_gpus in data["alone"].items()
            for gpus, speeds in by_gpus.items()
        }
        for name, kept in zip(names, data["kept_percent"][gpu_type], strict=True):
            entry = rows[name, 1]
            shares = zip(names, map(int, kept.split()), strict=True)
            entry.packed.update({(other, 1): entry.alone * percent / 100 for other, percent in shares})
    return ThroughputTable("Gavel's published throughputs", entries)


def table_json(table: ThroughputTable) -> str:
    """A table in Gavel's own format, which `load_table` reads."""
    data = {
        gpu_type: {
            str(key): {
                "null": entry.alone,
                **{
                    str(other): [speed, rows[other].packed.get(key, 0.0) if other in rows else 0.0]
                    for other, speed in entry.packed.items()
                },
            }
            for key, entry in rows.items()
        }
        for gpu_type, rows in table.entries.items()
    }
    return json.dumps(data)


def gavel_trace(
    table: ThroughputTable, *, jobs: int, per_hour: float | None, seed: int, multi_gpu: bool, at_start: int = 0
) -> Trace:
    """So many jobs, those that ask for the first `at_start` GPUs at once; `per_hour` None: all come at once."""
    if jobs < 1 or at_start > jobs or (per_hour is not None and not 0.0 < per_hour < float("inf")):
        raise InvalidSpec(
            f"a workload of {jobs} jobs, {at_start} GPUs asked for at the start, at {per_hour} an hour; expected some"
        )
    rng = np.random.default_rng(seed)
    can_have = {gpus: _types(table, gpus) for gpus, _ in SIZES}
    sizes, shares = zip(*SIZES, strict=True)
    gpus_J = rng.choice(sizes, size=jobs, p=shares) if multi_gpu else np.ones(jobs, dtype=np.int64)
    is_long_J = rng.random(jobs) < LONG_SHARE
    exponent_J = np.where(is_long_J, rng.uniform(*LONG, jobs), rng.uniform(*SHORT, jobs))
    gap_J = np.zeros(jobs) if per_hour is None else rng.exponential(3600.0 / per_hour, jobs)
    gap_J[: int(np.searchsorted(np.cumsum(gpus_J), at_start)) + 1 if at_start else 0] = 0.0
    submit_J = np.cumsum(gap_J)
    made = []
    for place in range(jobs):
        gpus = int(gpus_J[place])
        name = can_have[gpus][int(rng.integers(len(can_have[gpus])))]
        duration_s = 60.0 * 10.0 ** float(exponent_J[place])
        speed = table.entries[REFERENCE][name, gpus].alone
        match = _JOB_TYPE.fullmatch(name)
        made.append(
            TraceJob(
                id=str(place),
                submit_s=float(submit_J[place]),
                gpus=gpus,
                gpus_min=gpus,
                gpus_max=gpus,
                model=match[1] if match else name,
                batch=int(match[2]) if match else None,
                steps=max(1.0, round(duration_s * speed)),
            )
        )
    return Trace(jobs=tuple(made), format="fairlead", source=f"generated for Gavel with seed {seed}")


def _types(table: ThroughputTable, gpus: int) -> list[str]:
    """The job types that were measured on so many GPUs of the reference type, in order of their names."""
    rows = table.entries[REFERENCE]
    return sorted(name for (name, count), entry in rows.items() if count == gpus and entry.alone > 0.0)
