"""Shockwave's workload without its files: measured speeds as figures, and jobs drawn as its authors drew theirs.

Speeds and schedules are facts measured by the authors (P. Zheng et al., "Shockwave", NSDI '23, and its artifact at
github.com/uw-mad-dash/shockwave, MIT licence), in four digits. Jobs are drawn by our own generator from the stated
distributions of the canonical trace: arrivals 40 s apart on average, run times of 0.2 to 5 hours of which most are
short, a model and batch each as often as any other, half of the jobs accordion and half gns, and 1, 2, 4 or 8 GPUs with
60, 30, 9 and 1 % for models that were measured on several. They are other jobs than the authors', so published figures
do not compare.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fairlead.sim.tables import job_type
from fairlead.sim.traces.files import write_text

#: By model and batch: steps per second on 1, 2, 4 and 8 V100s, as far as they were measured.
STEPS_PER_S: Mapping[str, Mapping[int, tuple[float, ...]]] = {
    "ResNet-18": {
        16: (57.68, 84.83, 151.4, 194.5),
        32: (42.97, 66.71, 130.1, 184.9),
        64: (21.43, 37.35, 72.91, 135.0),
        128: (11.78, 21.78, 43.01, 80.25),
        256: (6.32, 12.11, 23.53, 44.49),
    },
    "ResNet-50": {
        16: (10.6, 13.02, 36.88, 69.47),
        32: (5.899, 6.969, 21.56, 42.16),
        64: (3.108, 5.939, 11.64, 22.95),
        128: (1.598, 3.079, 6.09, 11.68),
    },
    "Transformer": {
        16: (8.713, 13.81, 27.53, 41.05),
        32: (4.531, 8.057, 15.14, 27.17),
        64: (2.075, 3.758, 7.162, 12.77),
        128: (1.151, 2.15, 4.073, 7.068),
    },
    "LM": {
        5: (133.8, 125.6, 198.9, 199.3),
        10: (94.91, 109.8, 175.0, 188.9),
        20: (68.05, 90.37, 146.9, 171.3),
        40: (46.82, 66.98, 114.9, 150.3),
        80: (21.71, 36.34, 68.13, 103.4),
    },
    "Recommendation": {
        512: (169.3,),
        1024: (107.3,),
        2048: (59.26,),
        4096: (25.07,),
        8192: (11.63,),
    },
}

#: By model, first batch and GPUs: the epochs at which the gradient noise scale lets the batch double.
DOUBLES: Mapping[tuple[str, int], Mapping[int, tuple[int, ...]]] = {
    ("ResNet-18", 16): {1: (31, 41, 51, 71), 2: (21, 31, 91, 111), 4: (11, 21, 81, 91)},
    ("ResNet-18", 32): {1: (21, 31, 51), 2: (11, 21, 41), 4: (21, 31, 61)},
    ("ResNet-18", 64): {1: (11, 31), 2: (21, 41), 4: (11, 61)},
    ("ResNet-18", 128): {1: (11,), 2: (41,), 4: (11,)},
    ("ResNet-50", 32): {2: (101, 111), 4: (131, 221)},
    ("ResNet-50", 64): {1: (101,), 2: (81,), 4: (191,)},
    ("LM", 5): {1: (31, 41, 61, 71), 2: (31, 51, 61, 71), 4: (11, 31, 71, 91)},
    ("LM", 10): {1: (11, 21, 41), 2: (11, 31, 41), 4: (11, 31, 61)},
    ("LM", 20): {1: (11, 41), 2: (31, 41), 4: (11, 61)},
    ("LM", 40): {1: (11,), 2: (11,), 4: (61,)},
    ("Recommendation", 512): {1: (21, 41, 71, 91)},
    ("Recommendation", 1024): {1: (21, 51, 91)},
    ("Recommendation", 2048): {1: (21, 41)},
    ("Recommendation", 4096): {1: (41,)},
}

SIZES, SIZE_SHARES = (1, 2, 4, 8), (0.6, 0.3, 0.09, 0.01)
GAP_S = 40.0
#: Run times in hours: the range, and of its parts (up to a share of the range) how many jobs are in each.
HOURS, PARTS = (0.2, 5.0), ((0.2, 0.72), (0.5, 0.20), (0.9, 0.05), (1.0, 0.03))
#: A job shorter than this does not adapt by accordion.
SHORT_S = 1000.0

TRACE_NAME, TABLE_NAME, SCHEDULES_NAME = "jobs-120.trace", "tacc_throughputs.json", "batch_schedules.json"


def write_shockwave_workload(directory: Path, *, seed: int, jobs: int, gap_s: float = GAP_S) -> None:
    """A trace, a throughput table and batch schedules, in the form of the artifact's; a job comes every `gap_s`."""
    write_text(directory / TRACE_NAME, "".join(_rows(np.random.default_rng(seed), jobs, gap_s)))
    table = {
        str((job_type(model, batch), gpus)): {"null": speed}
        for model, by_batch in STEPS_PER_S.items()
        for batch, speeds in by_batch.items()
        for gpus, speed in zip(SIZES, speeds, strict=False)
    }
    write_text(directory / TABLE_NAME, json.dumps({"v100": table}))
    schedules = {
        f"{model}|{batch}|sf{gpus}": [[0, batch], *([epoch, batch * 2 ** (n + 1)] for n, epoch in enumerate(epochs))]
        for (model, batch), by_gpus in DOUBLES.items()
        for gpus, epochs in by_gpus.items()
    }
    write_text(directory / SCHEDULES_NAME, json.dumps({"gns": schedules}))


def _rows(rng: np.random.Generator, jobs: int, gap_s: float) -> list[str]:
    kinds = [(model, batch) for model, by_batch in STEPS_PER_S.items() for batch in by_batch]
    at_s, rows = 0.0, []
    for _ in range(jobs):
        model, batch = kinds[int(rng.integers(len(kinds)))]
        speeds = STEPS_PER_S[model][batch]
        size = int(rng.choice(len(SIZES), p=SIZE_SHARES)) if len(speeds) > 1 else 0
        duration_s = 3600.0 * _hours(rng)
        mode = "accordion" if rng.random() < 0.5 else "gns"
        if mode == "accordion" and duration_s < SHORT_S:
            mode = "static"
        steps = max(1, round(duration_s * speeds[size]))
        fields = [job_type(model, batch), "-", "-", "--steps", 1, steps, SIZES[size], mode, 1, -1]
        rows.append("\t".join(map(str, [*fields, round(duration_s), round(at_s)])) + "\n")
        at_s += float(rng.exponential(gap_s))
    return rows


def _hours(rng: np.random.Generator) -> float:
    part = int(rng.choice(len(PARTS), p=[share for _, share in PARTS]))
    low, high = PARTS[part - 1][0] if part else 0.0, PARTS[part][0]
    least, most = HOURS
    return least + (most - least) * float(rng.uniform(low, high))
