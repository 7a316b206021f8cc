"""An experiment in Python, cell by cell: a trace, a policy of your own, seeds, intervals, and results per job.

Run it as a script, or open it in an editor that shows `# %%` as cells (VS Code, PyCharm, Jupyter with jupytext).
It takes a few seconds:

    python examples/own_experiment.py
"""

# %% A trace: read from a file of any known format, or made of rows as here.
import random
from dataclasses import dataclass

import numpy as np

import fairlead
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Plan
from fairlead.policies.filling import start_waiting, waiting
from fairlead.policies.reasons import queued_reasons

draw = random.Random(1)
rows = [
    {
        "id": f"job-{n}",
        "submit_s": 400.0 * n,
        "gpus": draw.choice([1, 1, 1, 2, 4]),
        "duration_s": draw.lognormvariate(7.5, 1.2),
    }
    for n in range(60)
]


# %% A policy: a class with a method plan(view). Fields of a dataclass are its options.
@dataclass(frozen=True)
class Shortest:
    """The job that promises the shortest run starts first."""

    def plan(self, view: Snapshot) -> Plan:
        queue = waiting(view)
        order = queue[np.argsort(view.columns.estimate_s_J[queue], kind="stable")]
        allocations = start_waiting(view, order, skip=True)
        return Plan(allocations, queued_reasons(view, allocations, "shortest promise first"))


# %% One run.
cluster = fairlead.Cluster("2x4")
result = fairlead.simulate(rows, Shortest(), cluster=cluster)
print(f"{cluster.gpus} GPUs, {result.metrics.jobs} jobs, mean completion time {result.metrics.jct_mean_s:.0f} s")
slowest = max(result.jobs, key=lambda job: job.jct_s or 0.0)
print(f"slowest: {slowest.job}, {slowest.jct_s:.0f} s, of which {slowest.queue_s:.0f} s without GPUs")

# %% Many runs: five seeds draw the jobs anew, promises are wrong by a factor of about 2, the first jobs do not count.
comparison = fairlead.compare(
    rows,
    {"fifo": "fifo", "shortest": Shortest(), "tiresias": "tiresias"},
    cluster=cluster,
    seeds=range(5),
    resample=True,
    estimate_error=0.7,
    warmup_s=2000.0,
    baseline="fifo",
)
for row in comparison.summary():
    found = row["figures"]["jct_mean_s"]
    low, high = found["ci95"]
    line = f"{row['policy']:9} {found['mean']:6.0f} s  [{low:.0f}, {high:.0f}]"
    if "difference" in found:
        apart = found["difference"]["relative"]
        line += f"  {apart['mean']:+.0%} [{apart['ci95'][0]:+.0%}, {apart['ci95'][1]:+.0%}] against {row['baseline']}"
    print(line)

# %% The same per job: a pandas DataFrame where pandas is installed, else rows.
try:
    table = comparison.to_pandas()
    print(table.groupby(["policy", "gpus"])["queue_s"].mean().unstack().round(0))
except fairlead.InvalidSpec as error:
    print(f"note: {error}")
    print(f"{len(comparison.rows())} rows, for example {comparison.rows()[0]}")
